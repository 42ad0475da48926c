"""Entries: the series of a dataset, checked where they enter.

What is wrong with a dataset is said here, with the name of the series, before a window
index or a library's pipeline stumbles over it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from pts_scott.data.timeline import (
    check_one_frequency,
    frequency_of,
    parse_offset,
    parse_start,
    without_anchor,
)
from pts_scott.errors import (
    DataError,
    FrequencyError,
    ScottError,
    ScottWarning,
    cause,
    one_line,
    quote,
    shorten,
)

Entry = Mapping[str, Any]


def require_dataset(dataset: Any) -> Iterable[Any]:
    """``dataset`` if it can be one, or how to make one."""
    wrong = Mapping | pd.DataFrame | pd.Series | str | bytes
    if not isinstance(dataset, Iterable) or isinstance(dataset, wrong):
        raise DataError(
            f"{type(dataset).__name__} is not a dataset: expected entries with 'start' "
            "and 'target', e.g. gluonts.dataset.common.ListDataset(entries, freq='h')."
        )
    return dataset


def entries_of(dataset: Any) -> Iterator[Entry]:
    """The entries of a dataset, read once and in its order.

    Raises
    ------
    DataError
        If it is no dataset, holds something else than entries, or fails while it is read.
    """
    position = 0
    try:
        for entry in require_dataset(dataset):
            if not isinstance(entry, Mapping):
                raise DataError(
                    f"the dataset holds a {type(entry).__name__}; expected entries such "
                    "as {'item_id': 'a', 'start': '2024-01-01', 'target': values}."
                )
            yield entry
            position += 1
    except ScottError:
        raise
    except Exception as error:
        raise DataError(
            f"reading the dataset failed at series number {position} (the first is 0): "
            f"{cause(error)}. See that its source can be read, and repair that series or "
            "leave it out."
        ) from error


def name_of(entry: Entry, position: int) -> str:
    """The name of a series: its ``item_id``, or its place in the dataset."""
    given = entry.get("item_id")
    unnamed = given is None or (pd.api.types.is_scalar(given) and pd.isna(given))
    return str(position if unnamed else given)


def read_field(entry: Entry, name: str, item_id: str) -> Any:
    """A field that every entry has."""
    try:
        return entry[name]
    except KeyError:
        raise DataError(
            f"series {quote(item_id)} has no field {name!r}; every entry of a dataset "
            "needs 'start' and 'target'."
        ) from None


def read_target(entry: Entry, item_id: str) -> np.ndarray:
    """The target of an entry as floats, of shape (steps,) or (dimensions, steps).

    What is masked, None or ``pandas.NA`` is missing: NaN.
    """
    target = read_field(entry, "target", item_id)
    try:
        target = _floats(target)
    except Exception as error:  # an array type of any library may be behind it
        raise DataError(
            f"the target of series {quote(item_id)} is not numeric: {one_line(error)}. "
            "Give an array of numbers, with NaN where one is missing."
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
        raise TypeError(f"it holds text, such as {quote(first)}")
    if given.dtype.kind not in "biufO":
        raise TypeError(f"it holds {given.dtype.name}")
    if given.dtype.kind == "O":
        given = np.where(pd.isna(given), np.nan, given)
    return given.astype(np.float64)


def check_scale(target: np.ndarray, stored: np.ndarray, item_id: str) -> None:
    """Refuse a target of which nothing is left in the type that it is stored in."""
    if not stored.any() and target.any():
        raise DataError(
            f"the values of series {quote(item_id)} are so small that all become zero in "
            f"{stored.dtype}; multiply them, e.g. by 1e{_magnitude(target)}."
        )


def _magnitude(target: np.ndarray) -> int:
    """By how many powers of ten the largest value lies below 1."""
    return int(np.ceil(-np.log10(np.nanmax(np.abs(target)))))


class Unobserved:
    """The names of series that have no value at all."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def see(self, target: np.ndarray, item_id: str) -> None:
        """Look at a series; empty ones are too short, not missing."""
        if target.size and np.isnan(target.flat[0]) and np.isnan(target).all():
            self._names.append(item_id)

    def warn(self, series: int) -> None:
        """Name them, unless all are such, which is an error elsewhere."""
        if 0 < len(self._names) < series:
            warnings.warn(
                f"{len(self._names)} of {series} series have no value at all, and "
                f"nothing can be learned from them: {shorten(self._names)}. Leave them "
                "out, and see how they were read.",
                ScottWarning,
                stacklevel=3,
            )


class CheckedDataset:
    """A dataset for a library's pipeline, which itself checks little.

    Targets become single precision, in which the libraries' networks compute; not all of
    their pipelines see to that themselves.

    Parameters
    ----------
    dataset
        Entries with ``start`` and ``target``.
    freq
        Frequency that the model is for; None for that of the first series.

    Raises
    ------
    DataError
        If it cannot be a dataset; while it is read, if an entry is not as it must be.
    """

    def __init__(self, dataset: Any, freq: Any = None) -> None:
        self._dataset = require_dataset(dataset)
        self._freq = freq

    def __iter__(self) -> Iterator[Entry]:
        first, seen, unobserved = None, set(), Unobserved()
        position = -1
        for position, entry in enumerate(entries_of(self._dataset)):
            item_id = name_of(entry, position)
            start = read_field(entry, "start", item_id)
            parse_start(start, item_id)
            own = frequency_of(start)
            if own is None:
                raise FrequencyError(
                    f"series {quote(item_id)} starts at {quote(start)}, which does not "
                    "say its frequency, and the model's features need it; pass "
                    "gluonts.dataset.common.ListDataset(entries, freq='h')."
                )
            first = start if first is None else first
            if (type(start), own) not in seen:
                expected = frequency_of(first)
                if self._freq is not None and not without_anchor(self._freq, expected):
                    expected = self._freq
                check_one_frequency([first, start], parse_offset(expected))
                seen.add((type(start), own))
            target = read_target(entry, item_id)
            with np.errstate(over="ignore"):  # a value that overflows is refused later
                stored = target.astype(np.float32, copy=False)
            check_scale(target, stored, item_id)
            unobserved.see(target, item_id)
            yield {**entry, "target": stored}
        unobserved.warn(position + 1)

    def __len__(self) -> int:
        """Not known before it is read; PyTorchTS asks, and takes this for an answer."""
        raise NotImplementedError
