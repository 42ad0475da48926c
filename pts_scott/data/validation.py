"""Validation of datasets: the entries of a dataset, checked where they enter.

Errors name the series, and are raised before a window index or a library's pipeline fails
on it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from pts_scott._utils.text import cause, one_line, quote, shorten
from pts_scott.data.offsets import (
    check_one_frequency,
    frequency_of,
    omits_suffix,
    parse_offset,
    parse_start,
)
from pts_scott.errors import (
    DataError,
    EmptyDatasetError,
    FrequencyError,
    ScottError,
    ScottWarning,
)

Entry = Mapping[str, Any]


def require_dataset(dataset: Any) -> Iterable[Any]:
    """Return ``dataset`` if it can be one; raise otherwise, and say how to make one."""
    wrong = Mapping | pd.DataFrame | pd.Series | str | bytes
    if not isinstance(dataset, Iterable) or isinstance(dataset, wrong):
        raise DataError(
            f"{type(dataset).__name__} is not a dataset: expected entries with 'start' "
            "and 'target', e.g. gluonts.dataset.common.ListDataset(entries, freq='h')."
        )
    return dataset


def no_series_error() -> EmptyDatasetError:
    """Return the error for a dataset without entries."""
    return EmptyDatasetError(
        "the dataset has no series; a generator that was already consumed is empty: "
        "pass a list or a GluonTS dataset."
    )


def entries_of(dataset: Any) -> Iterator[Entry]:
    """Iterate over the entries of a dataset, once and in its order.

    Raises
    ------
    DataError
        If it is not a dataset, contains something other than entries, or cannot be read.
    """
    position = 0
    try:
        for entry in require_dataset(dataset):
            if not isinstance(entry, Mapping):
                raise DataError(
                    f"the dataset contains an object of type {type(entry).__name__}; "
                    "expected entries such as {'item_id': 'a', 'start': '2024-01-01', "
                    "'target': values}."
                )
            yield entry
            position += 1
    except ScottError:
        raise
    except Exception as error:
        raise DataError(
            f"reading the dataset failed at series number {position} (the first is 0): "
            f"{cause(error)}. Check that its source can be read, and repair or remove "
            "that series."
        ) from error


def name_of(entry: Entry, position: int) -> str:
    """Return the name of a series: its ``item_id``, or its position in the dataset."""
    given = entry.get("item_id")
    unnamed = given is None or (pd.api.types.is_scalar(given) and pd.isna(given))
    return str(position if unnamed else given)


def read_field(entry: Entry, name: str, item_id: str) -> Any:
    """Return a field that every entry needs; raise if it is absent."""
    try:
        return entry[name]
    except KeyError:
        raise DataError(
            f"series {quote(item_id)} has no field {name!r}; every entry of a dataset "
            "needs 'start' and 'target'."
        ) from None


def read_target(entry: Entry, item_id: str) -> np.ndarray:
    """Return the target of an entry as floats: (steps,) or (dimensions, steps).

    Values that are masked, None or ``pandas.NA`` become NaN.
    """
    target = read_field(entry, "target", item_id)
    try:
        target = _floats(target)
    except Exception as error:  # any library's array type can raise anything
        raise DataError(
            f"the target of series {quote(item_id)} is not numeric: {one_line(error)}. "
            "Give an array of numbers, with NaN for missing values."
        ) from error
    if target.ndim not in (1, 2) or (target.ndim == 2 and len(target) == 0):
        raise DataError(
            f"the target of series {quote(item_id)} has shape {target.shape}; expected "
            "(steps,) or (dimensions, steps)."
        )
    return target


def _floats(target: Any) -> np.ndarray:
    if isinstance(target, np.ma.MaskedArray):
        target = np.ma.filled(target.astype(np.float64), np.nan)
    if isinstance(target, np.ndarray) and target.dtype.kind == "f":
        return target
    given = np.asarray(target)
    text = (value for value in given.flat if isinstance(value, str | bytes))
    if given.dtype.kind in "OUS" and (first := next(text, None)) is not None:
        raise TypeError(f"it contains text, such as {quote(first)}")
    if given.dtype.kind not in "biufO":
        raise TypeError(f"it contains {given.dtype.name}")
    if given.dtype.kind == "O":
        given = np.where(pd.isna(given), np.nan, given)
    return given.astype(np.float64)


def check_scale(target: np.ndarray, stored: np.ndarray, item_id: str) -> None:
    """Raise if all values of a target underflow in the type in which it is stored."""
    if not stored.any() and target.any():
        raise DataError(
            f"the values of series {quote(item_id)} are so small that all become zero in "
            f"{stored.dtype}; multiply them, e.g. by 1e{_magnitude(target)}."
        )


def _magnitude(target: np.ndarray) -> int:
    """Return the power of ten that brings the largest value to 1."""
    return int(np.ceil(-np.log10(np.nanmax(np.abs(target)))))


class UnobservedSeries:
    """The names of the series without any observed value."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def check(self, target: np.ndarray, item_id: str) -> None:
        """Record the series if it has no value; an empty one is too short instead."""
        if target.size and np.isnan(target.flat[0]) and np.isnan(target).all():
            self._names.append(item_id)

    def warn(self, total: int) -> None:
        """Warn about the recorded series; if all are recorded, an error follows."""
        if 0 < len(self._names) < total:
            warnings.warn(
                f"{len(self._names)} of {total} series have no value at all, and "
                f"nothing can be learned from them: {shorten(self._names)}. Remove "
                "them, and check how they were read.",
                ScottWarning,
                stacklevel=3,
            )


class CheckedDataset:
    """A validated dataset for a library's pipeline, which checks little itself.

    Targets become single precision, in which the libraries' networks compute; some of
    their pipelines do not convert them.

    Parameters
    ----------
    dataset
        Entries with ``start`` and ``target``.
    freq
        Frequency of the model; None for that of the first series.

    Raises
    ------
    DataError
        If it cannot be a dataset; during iteration, if an entry is invalid.
    """

    def __init__(self, dataset: Any, freq: Any = None) -> None:
        self._dataset = require_dataset(dataset)
        self._freq = freq

    def __iter__(self) -> Iterator[Entry]:
        first, seen, unobserved = None, set(), UnobservedSeries()
        position = -1
        for position, entry in enumerate(entries_of(self._dataset)):
            item_id = name_of(entry, position)
            start = read_field(entry, "start", item_id)
            parse_start(start, item_id)
            own = frequency_of(start)
            if own is None:
                raise FrequencyError(
                    f"series {quote(item_id)} starts at {quote(start)}, which does not "
                    "carry a frequency, and the model's features need it; pass "
                    "gluonts.dataset.common.ListDataset(entries, freq='h')."
                )
            first = start if first is None else first
            if (type(start), own) not in seen:
                check_one_frequency([first, start], parse_offset(self._expected(first)))
                seen.add((type(start), own))
            target = read_target(entry, item_id)
            with np.errstate(over="ignore"):  # an overflow is reported later
                stored = target.astype(np.float32, copy=False)
            check_scale(target, stored, item_id)
            unobserved.check(target, item_id)
            yield {**entry, "target": stored}
        unobserved.warn(position + 1)

    def _expected(self, first: Any) -> Any:
        """Return the frequency that all series need."""
        own = frequency_of(first)
        if self._freq is None or omits_suffix(self._freq, own):
            return own
        return self._freq

    def __len__(self) -> int:
        """Raise: the length is unknown, which PyTorchTS accepts."""
        raise NotImplementedError
