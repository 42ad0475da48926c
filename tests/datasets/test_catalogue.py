"""Loading by name, from files and from memory; constant series."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.loaded_series import load_real, ramp
from helpers.series import wave_entries

from pts_scott import datasets
from pts_scott.datasets.known import KNOWN
from pts_scott.datasets.synthetic import synthetic_series
from pts_scott.errors import (
    ArgumentError,
    ConstantSeriesError,
    DatasetNotFoundError,
    EmptyDatasetError,
    FileLayoutError,
    ScottWarning,
)

# By name.


@pytest.mark.parametrize(
    "name", [name for name, known in KNOWN.items() if not known.download]
)
def test_part_of_a_dataset_is_read_from_the_folder(name):
    data, known = load_real(name, constant="keep"), KNOWN[name]
    assert (len(data), len(data.targets[0])) == (known.series, known.steps)
    assert f"{known.series}x{known.steps}" in data.name
    assert set(data.starts) == {pd.Timestamp(known.start)}


def test_real_values_equal_those_in_the_file(exchange_rate):
    data = load_real("exchange_rate")
    np.testing.assert_array_equal(np.stack(data.targets), exchange_rate)
    assert (data.freq, data.starts[0]) == ("B", pd.Timestamp("1990-01-01"))
    assert data.item_ids == tuple("01234567")


@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_complete_dataset_is_found_by_folder_or_environment(
    tmp_path, monkeypatch, ending
):
    rows = np.random.default_rng(0).random((7588, 8)).round(4)
    pd.DataFrame(rows).to_csv(
        tmp_path / f"exchange_rate{ending}", header=False, index=False
    )
    monkeypatch.delenv("PTS_SCOTT_DATA", raising=False)
    given = datasets.load("exchange_rate", folder=tmp_path)
    monkeypatch.setenv("PTS_SCOTT_DATA", str(tmp_path))
    named = datasets.load("exchange_rate")
    for data in (given, named):
        np.testing.assert_array_equal(np.stack(data.targets), rows.T)


def test_file_of_another_shape_is_rejected(tmp_path):
    (tmp_path / "traffic.txt").write_text("1,2\n3,4\n5,6\n")
    with pytest.raises(
        FileLayoutError, match="3 rows × 2 columns, but traffic has 17544"
    ):
        datasets.load("traffic", folder=tmp_path)


def test_synthetic_is_the_papers_data():
    data = datasets.load("synthetic", seed=3)
    np.testing.assert_array_equal(np.stack(data.targets), synthetic_series(seed=3))
    assert data.item_ids == ("TS1", "TS2", "TS3", "TS4")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("exchange-rate", "'exchange-rate'.* Did you mean 'exchange_rate'"),
        ("Traffic", "Did you mean 'traffic'"),
        ("syntetic", "Did you mean 'synthetic'"),
        ("zzz", "Known names: 'exchange_rate', 'traffic'"),
        ("folder/none.csv", "no file"),
    ],
)
def test_unknown_name_error_suggests_the_nearest(name, words):
    with pytest.raises(DatasetNotFoundError, match=words):
        datasets.load(name)


def test_known_names_and_entries_accept_no_start_and_no_columns():
    with pytest.raises(ArgumentError, match="its own start and freq"):
        datasets.load("traffic", start="2020-01-01")
    with pytest.raises(ArgumentError, match="target names a column"):
        datasets.load("synthetic", target="y")
    with pytest.raises(ArgumentError, match="entries of a dataset have a start"):
        datasets.load(wave_entries(), start="2020-01-01", freq="h")


def test_available_lists_found_files_and_how_to_get_the_others(tmp_path):
    (tmp_path / "traffic.txt").write_text("1\n")
    table = datasets.available(tmp_path).set_index("name")
    assert [*KNOWN, "synthetic"] == list(table.index)
    assert table.loc["traffic", "where"] == str(tmp_path / "traffic.txt")
    assert table.loc["traffic", "get"] == ""
    assert table.loc["electricity", "where"] == ""
    assert "GluonTS" in table.loc["electricity", "get"]
    assert "electricity-2x26304.txt.gz" in table.loc["electricity-2x26304", "get"]
    assert tuple(table.loc["synthetic", ["series", "steps"]]) == (4, 192000)


# From files and memory.


def test_file_is_loaded_under_its_own_name(tmp_path):
    path = tmp_path / "my.sales.csv"
    path.write_text("date,a\n2020-01-01,1\n2020-01-02,2\n2020-01-03,4\n")
    for given in (path, str(path)):
        data = datasets.load(given)
        assert (data.name, data.freq, data.item_ids) == ("my.sales", "D", ("a",))


def test_frame_and_entries_are_loaded():
    times = pd.date_range("2020-01-01", periods=5)
    frame = pd.DataFrame({"when": times, "id": "x", "v": np.arange(5.0)})
    data = datasets.load(frame, timestamp="when", item_id="id", target="v")
    assert data.item_ids == ("x",)
    assert len(datasets.load(wave_entries(), freq="h")) == 3


def test_loading_the_returned_dataset_gives_the_same_series():
    data = datasets.load(wave_entries(), freq="h")
    again = datasets.load(data.dataset(), freq="h")
    assert again.starts == data.starts
    for one, other in zip(again.targets, data.targets):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_unread_columns_are_named():
    frame = pd.DataFrame(
        {
            "timestamp": pd.date_range("2024-01-01", periods=40, freq="D"),
            "item_id": "a",
            "target": np.arange(40.0),
            "price": 1.0,
            "promo": 0.0,
        }
    )
    with pytest.warns(ScottWarning, match="not read: 'price', 'promo'"):
        data = datasets.load(frame)
    assert "not read: 'price', 'promo'" in str(data.report())
    wide = frame.drop(columns="item_id")
    with pytest.warns(ScottWarning, match="not read: 'price', 'promo'"):
        datasets.load(wide, target="target")
    datasets.load(wide.drop(columns=["price", "promo"]))


# Constant series.


@pytest.mark.parametrize("value", [0.0, 2.5, np.nan])
def test_constant_series_is_rejected_dropped_or_kept(value):
    flat = np.full(9, value)
    flat[3] = np.nan
    entries = [
        {"item_id": name, "start": "2020-01-01", "target": target}
        for name, target in (("good", ramp(9)), ("flat", flat))
    ]
    shown = "missing" if np.isnan(value) else f"{value:g}"
    words = f"1 of 2 series .*flat = {shown}.*constant='drop'.*constant='keep'"
    with pytest.raises(ConstantSeriesError, match=words):
        datasets.load(entries, freq="D")
    dropped = datasets.load(entries, freq="D", constant="drop")
    assert (dropped.item_ids, dropped.dropped) == (("good",), ("flat",))
    assert "dropped: 'flat'" in str(dropped.report())
    assert datasets.load(entries, freq="D", constant="keep").item_ids == ("good", "flat")


def test_dataset_of_only_constant_series_is_rejected():
    entries = [{"start": "2020-01-01", "target": np.ones(4)}]
    with pytest.raises(EmptyDatasetError, match="all series .* are constant"):
        datasets.load(entries, freq="D", constant="drop")
    with pytest.raises(ArgumentError, match="constant='dorp': .* Did you mean 'drop'"):
        datasets.load(entries, freq="D", constant="dorp")


def test_client_that_is_always_zero_is_found():
    with pytest.raises(ConstantSeriesError, match="1 of 321 .*'182 = 0'"):
        load_real("electricity-321x840")
    assert load_real("electricity-321x840", constant="drop").dropped == ("182",)
