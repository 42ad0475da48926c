"""The series store: datasets are read once, or refused with a remedy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.series import wave_entries

from pts_scott import WindowIndex
from pts_scott.errors import DataError, EmptyDatasetError, InfiniteValuesError


def test_empty_dataset_is_rejected():
    with pytest.raises(EmptyDatasetError, match="no series"):
        WindowIndex.from_dataset([], "D", 2, 1)


def test_consumed_generator_is_rejected():
    entries = (entry for entry in wave_entries())
    WindowIndex.from_dataset(entries, "h", 6, 2)
    with pytest.raises(EmptyDatasetError, match="generator"):
        WindowIndex.from_dataset(entries, "h", 6, 2)


def test_error_names_infinite_value():
    entry = {"item_id": "x", "start": "2020-01-01", "target": [1.0, np.inf, 3.0]}
    with pytest.raises(InfiniteValuesError, match="'x' is infinite at 2020-01-02"):
        WindowIndex.from_dataset([entry], "D", 1, 1)


def test_overflow_in_single_precision_is_rejected():
    entry = {"start": "2020-01-01", "target": [1.0, 1e39, 3.0]}
    with pytest.raises(InfiniteValuesError, match="float32"):
        WindowIndex.from_dataset([entry], "D", 1, 1)
    WindowIndex.from_dataset([entry], "D", 1, 1, dtype=torch.float64)


def test_series_without_item_id_are_named_by_position():
    entries = [{"item_id": None, "start": "2020-01-01", "target": np.ones(5)}] * 2
    windows = WindowIndex.from_dataset(entries, "D", 1, 1)
    assert windows.series.item_ids == ("0", "1")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"start": "2020-01-01"}, "no field 'target'"),
        ({"target": [1.0, 2.0]}, "no field 'start'"),
        ({"start": "2020-01-01", "target": ["a", "b"]}, "not numeric"),
        ({"start": "2020-01-01", "target": ["1", "2"]}, "not numeric"),
        ({"start": "2020-01-01", "target": [1j, 2j]}, "not numeric"),
        ("start", "of type str"),
        ({"start": "2020-01-01", "target": np.zeros((2, 2, 2))}, "has shape"),
    ],
)
def test_invalid_entries_are_rejected(entry, message):
    with pytest.raises(DataError, match=message):
        WindowIndex.from_dataset([entry], "D", 1, 1)


@pytest.mark.parametrize("given", [None, {"start": 1}, pd.DataFrame({"a": [1]})])
def test_objects_that_are_not_datasets_are_rejected(given):
    with pytest.raises(DataError, match="ListDataset"):
        WindowIndex.from_dataset(given, "D", 1, 1)


def test_dataset_without_any_value_is_rejected():
    entry = {"start": "2020-01-01", "target": [np.nan] * 9}
    with pytest.raises(EmptyDatasetError, match="all targets are missing"):
        WindowIndex.from_dataset([entry], "D", 1, 1)


def test_series_of_different_dimensions_are_rejected():
    entries = [
        {"start": "2020-01-01", "target": np.zeros(5)},
        {"start": "2020-01-01", "target": np.zeros((2, 5))},
    ]
    with pytest.raises(DataError, match="all series need the same"):
        WindowIndex.from_dataset(entries, "D", 1, 1)
