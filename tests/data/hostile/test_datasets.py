"""Hostile datasets: the dataset as a whole."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gluonts.dataset.common import FileDataset
from helpers.hostile_data import (
    CONTEXT,
    HOURLY,
    NO_DATE,
    NOT_A_DATASET,
    NOT_NUMERIC,
    PREDICTION,
    SIZES,
    WAVE,
    Case,
    DeepAREstimator,
    cases,
    check_case,
    good,
    series,
)
from helpers.training import quiet_trainer

from pts_scott.backends import backend
from pts_scott.errors import DataError, EmptyDatasetError, FileLayoutError


def consumed_generator() -> Iterator[Any]:
    entries = (entry for entry in [series()])
    list(entries)
    return entries


def fails_in_the_middle() -> Iterator[Any]:
    yield series()
    raise OSError("disk gone")


def stops_in_the_middle() -> Iterator[Any]:
    yield series()
    next(iter([]))


class NoIterator:
    """An iterable whose iterator is a number."""

    def __iter__(self) -> Any:
        return 5


def one_buffer() -> Iterator[Any]:
    """Yield series that are read one by one into the same memory, as for large files."""
    buffer = np.empty(60, dtype=np.float32)
    for level in range(3):
        buffer[:] = WAVE + level
        yield series(item_id=str(level), target=buffer)


def file_dataset(text: str | None) -> Any:
    """Return a GluonTS dataset of a file with this text; None deletes the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.json"
        path.write_text(text or '{"start": "2021-03-01", "target": [1, 2]}\n')
        data = FileDataset(Path(folder), freq=HOURLY)
        if text is None:
            path.unlink()
            return data
        try:  # while the folder exists
            return Replayed(list(data))
        except Exception as error:
            return Replayed([], error)


@dataclass
class Replayed:
    """The result of reading a dataset earlier, repeated."""

    entries: list[Any]
    error: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        yield from self.entries
        if self.error is not None:
            raise self.error


TABLE = {
    "None as dataset": Case(lambda: None, DataError, NOT_A_DATASET),
    "one entry instead of a list": Case(series, DataError, NOT_A_DATASET),
    "a data frame without times": Case(
        lambda: pd.DataFrame({"a": [1]}),
        FileLayoutError,
        "'a' is read as the timestamps.* pts_scott.load",
    ),
    "the path of a file": Case(lambda: "data.csv", DataError, NOT_A_DATASET),
    "a number": Case(lambda: 5, DataError, NOT_A_DATASET),
    "entries that are text": Case(lambda: ["a"], DataError, "of type str; .*'target'"),
    "entries that are arrays": Case(lambda: [WAVE], DataError, "ndarray; .*'target'"),
    "None between entries": Case(
        lambda: [series(), None], DataError, "of type NoneType; .*'target'"
    ),
    "no entries": Case(list, EmptyDatasetError, "no series; .* pass a list"),
    "a generator, read once": Case(lambda: (e for e in good()), same_as=good),
    "a consumed generator": Case(
        consumed_generator,
        EmptyDatasetError,
        "generator that was already consumed .* pass a list",
    ),
    "an iterator that fails in the middle": Case(
        fails_in_the_middle,
        DataError,
        r"series number 1 \(.*OSError: disk gone\. .* remove that series",
        cause=OSError,
    ),
    "a generator that raises StopIteration": Case(
        stops_in_the_middle,
        DataError,
        "series number 1 .*RuntimeError: generator raised StopIteration",
        cause=RuntimeError,
    ),
    "an __iter__ that returns no iterator": Case(
        NoIterator, DataError, "series number 0 .* non-iterator", cause=TypeError
    ),
    "a deleted file": Case(
        lambda: file_dataset(None), DataError, "Check that its source can be read"
    ),
    "a file with a broken line": Case(
        lambda: file_dataset("{'start'\n"), DataError, "repair or remove that series"
    ),
    "series that share one buffer": Case(
        one_buffer,
        same_as=lambda: [{**e, "target": e["target"].copy()} for e in one_buffer()],
    ),
}


@cases(TABLE)
def test_hostile_dataset_is_rejected_with_a_remedy_or_trains(model, case):
    check_case(model, case)


@pytest.mark.skipif(
    backend.NAME == "gluonts", reason="GluonTS' estimators take no trainer"
)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(TABLE["None between entries"], id="None between entries"),
        pytest.param(
            Case(lambda: [series(target=["1"] * 60)], DataError, NOT_NUMERIC),
            id="target of digits",
        ),
        pytest.param(
            Case(lambda: [series(start=20210301)], DataError, NO_DATE),
            id="start that is a number",
        ),
    ],
)
def test_pytorchts_estimators_without_with_scott_reject_the_same_data(case):
    untouched = DeepAREstimator(
        freq=HOURLY,
        prediction_length=PREDICTION,
        context_length=CONTEXT,
        lags_seq=[1, 2],
        trainer=quiet_trainer(),
        **SIZES,
    )
    with pytest.raises(case.error, match=case.match):
        untouched.train(case.given(), num_workers=0, prefetch_factor=None)
