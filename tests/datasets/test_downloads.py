"""Known datasets without a file: GluonTS' copy, or what to do."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from gluonts.dataset.repository import datasets as repository

from pts_scott import datasets
from pts_scott.datasets.known import KNOWN
from pts_scott.errors import DatasetNotFoundError


@pytest.fixture(autouse=True)
def no_folder(monkeypatch):
    monkeypatch.delenv("PTS_SCOTT_DATA", raising=False)


@pytest.fixture
def no_download(monkeypatch):
    def fail(name, **arguments):
        raise OSError("no network")

    monkeypatch.setattr(repository, "get_dataset", fail)


def test_missing_part_without_download_says_which_file_to_add(tmp_path):
    words = (
        r"no download\. Put traffic-21x17544.txt.gz .* PTS_SCOTT_DATA .*17544 rows × 21"
    )
    with pytest.raises(DatasetNotFoundError, match=words):
        datasets.load("traffic-21x17544")
    with pytest.raises(DatasetNotFoundError, match=f"no traffic-.* in '{tmp_path}'"):
        datasets.load("traffic-21x17544", folder=tmp_path)


def test_failed_download_says_which_file_to_put_where(no_download):
    words = "OSError: no network.* Put traffic.txt.gz .*17544 rows × 862 columns, comma"
    with pytest.raises(DatasetNotFoundError, match=words):
        datasets.load("traffic")


def mock_download(lengths, monkeypatch, tmp_path):
    """Make GluonTS' repository return rolling entries of these lengths."""
    rows = np.random.default_rng(0).random((KNOWN["exchange_rate"].series, max(lengths)))
    calls = []

    def get_dataset(name, regenerate):
        calls.append((name, regenerate))
        start = pd.Timestamp("1990-01-01")
        entries = [
            {"item_id": number, "start": start, "target": row[:length]}
            for length in lengths
            for number, row in enumerate(rows)
        ]
        return SimpleNamespace(test=entries)

    monkeypatch.setattr(repository, "get_dataset", get_dataset)
    monkeypatch.setattr(repository, "default_dataset_path", tmp_path)
    return rows, calls


def test_longest_downloaded_entry_per_series_is_kept(monkeypatch, tmp_path):
    rows, calls = mock_download((7400, 7588, 7500), monkeypatch, tmp_path)
    data = datasets.load("exchange_rate")
    np.testing.assert_array_equal(np.stack(data.targets), rows)
    assert (data.name, data.note) == ("exchange_rate", "")
    assert calls == [("exchange_rate", True)]


def test_partial_download_has_its_shape_in_the_name(monkeypatch, tmp_path):
    mock_download((6200, 6221), monkeypatch, tmp_path)
    data = datasets.load("exchange_rate")
    assert data.name == "exchange_rate-8x6221"
    assert "6221 of 7588 steps" in str(data.report())


def test_incomplete_download_is_fetched_again(monkeypatch, tmp_path):
    _, calls = mock_download((7588,), monkeypatch, tmp_path)
    (tmp_path / "exchange_rate").mkdir()
    datasets.load("exchange_rate")
    (tmp_path / "exchange_rate" / "test").mkdir()
    datasets.load("exchange_rate")
    assert [again for _, again in calls] == [True, False]
