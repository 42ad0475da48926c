"""Series from the entries of a GluonTS dataset."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from gluonts.dataset.common import ListDataset
from helpers.series import wave_entries

from pts_scott.data.offsets import parse_offset
from pts_scott.datasets.entries import series_from_entries
from pts_scott.errors import (
    DataError,
    FrequencyError,
    InfiniteValuesError,
    MixedFrequencyError,
)


@pytest.mark.parametrize("freq", ["h", None])
def test_gluonts_dataset_is_read_unchanged(freq):
    entries = wave_entries()
    read = series_from_entries(ListDataset(wave_entries(), freq="h"), freq)
    assert read.item_ids == ["s0", "s1", "s2"]
    assert read.starts == [entry["start"] for entry in entries]
    assert parse_offset(read.freq) == parse_offset("h")
    for given, entry in zip(read.targets, entries):
        np.testing.assert_allclose(given, entry["target"], rtol=1e-6)


def test_monthly_periods_start_on_first_days():
    start = pd.Period("2020-01", "M")
    read = series_from_entries([{"start": start, "target": np.arange(4.0)}])
    assert (read.starts, read.freq) == ([pd.Timestamp("2020-01-01")], "MS")


@pytest.mark.parametrize(
    ("entries", "freq", "error", "words"),
    [
        (wave_entries(), None, FrequencyError, "freq is missing"),
        (wave_entries() * 2, "h", DataError, "'s0', 's1', 's2' .* more than once"),
        ([{"start": "2020", "target": np.ones((2, 5))}], "D", DataError, "2 dimensions"),
        ([{"start": "2020", "target": []}], "D", DataError, "'0' have no values"),
        ([{"start": "2020", "target": [np.inf]}], "D", InfiniteValuesError, "infinite"),
        ([], "D", DataError, "no series"),
        ([3], "D", DataError, "contains an object of type int"),
        (
            [{"start": pd.Period("2020", "D"), "target": [1.0]}],
            "h",
            MixedFrequencyError,
            "'D'",
        ),
    ],
)
def test_bad_entries_are_rejected(entries, freq, error, words):
    with pytest.raises(error, match=words):
        series_from_entries(entries, freq)


def test_value_that_is_not_a_dataset_is_rejected():
    with pytest.raises(DataError, match="int is not a dataset"):
        series_from_entries(5)
