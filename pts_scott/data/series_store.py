"""The series of a dataset in one tensor, validated, on the training device."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pts_scott._utils.text import quote
from pts_scott.data.given_features import Given, collected, features_of
from pts_scott.data.timeline import Timeline
from pts_scott.data.validation import (
    UnobservedSeries,
    check_scale,
    entries_of,
    name_of,
    no_series_error,
    read_field,
    read_target,
)
from pts_scott.errors import (
    ArgumentError,
    DataError,
    EmptyDatasetError,
    InfiniteValuesError,
)


@dataclass(frozen=True)
class SeriesStore:
    """All series of a dataset in one tensor.

    Parameters
    ----------
    values
        Targets, of shape (rows,) or (rows, dimensions), with NaN for missing values. It
        contains the series one after the other, possibly with other rows in between.
    begins, lengths
        First row of each series in ``values``, and its number of steps.
    item_ids
        Name of each series: its ``item_id``, or its position in the dataset.
    timeline
        Moments of the steps.
    missing
        Whether any target is missing.
    dtype
        Floating point type of the windows.
    features
        Features of each series as its entry gives them, for stratifiers; empty without.
    unread
        Names of features that the source has, and that were not read.
    """

    values: Tensor
    begins: Tensor
    lengths: Tensor
    item_ids: tuple[str, ...]
    timeline: Timeline
    missing: bool
    dtype: torch.dtype
    features: tuple[Given, ...] = ()
    unread: tuple[str, ...] = ()

    @classmethod
    def from_dataset(
        cls,
        dataset: Iterable[Mapping[str, Any]],
        freq: Any,
        dtype: torch.dtype = torch.float32,
        warns: bool = True,
    ) -> SeriesStore:
        """Read a GluonTS dataset, once and in its order.

        A dataset with its own ``series_store(freq, dtype)``, such as `ArrowDataset`,
        provides the store itself.

        Parameters
        ----------
        dataset
            Entries with ``start`` and ``target`` (and ``item_id``).
        freq
            Frequency of the series, as a pandas alias.
        dtype
            Floating point type of the stored targets.
        warns
            Whether to warn about series without any value.

        Raises
        ------
        EmptyDatasetError, InfiniteValuesError, MixedFrequencyError, DataError
        """
        if dtype not in (torch.float16, torch.float32, torch.float64):
            raise ArgumentError(
                f"dtype={dtype}: expected torch.float32, torch.float64 or torch.float16."
            )
        if hasattr(dataset, "series_store"):
            return dataset.series_store(freq, dtype)  # type: ignore[no-any-return]
        values = GrowingArray(dtype)
        lengths = array("q")
        starts: list[Any] = []
        item_ids: list[str] = []
        features: list[Given] = []
        unobserved = UnobservedSeries()
        for position, entry in enumerate(entries_of(dataset)):
            item_id = name_of(entry, position)
            target = read_target(entry, item_id)
            unobserved.check(target, item_id)
            target = target if target.ndim == 1 else target.T
            if values.shape not in (None, target.shape[1:]):
                raise DataError(
                    f"series {quote(item_id)} has target dimensions {target.shape[1:]}, "
                    f"but {quote(item_ids[0])} has {values.shape}; all series need the "
                    "same."
                )
            check_scale(target, values.append(target), item_id)
            lengths.append(len(target))
            starts.append(read_field(entry, "start", item_id))
            item_ids.append(item_id)
            features.append(features_of(entry))
        if not item_ids:
            raise no_series_error()
        if warns:
            unobserved.warn(len(item_ids))
        timeline = Timeline.build(starts, lengths, freq, item_ids)
        steps = torch.from_numpy(np.array(lengths))
        begins = steps.cumsum(0) - steps
        return cls(
            values.tensor(),
            begins,
            steps,
            tuple(item_ids),
            timeline,
            missing=False,
            dtype=dtype,
            features=collected(features),
        ).checked()

    def checked(self) -> SeriesStore:
        """Check all values, chunk by chunk; return the store with ``missing`` set.

        Raises
        ------
        InfiniteValuesError
            If a value is infinite in the type of the windows.
        EmptyDatasetError
            If all values are missing.
        """
        observed = int(self.lengths.sum()) == 0  # empty series are too short, not missing
        missing = False
        for begin, values in self._chunks():
            infinite = values.to(self.dtype).isinf()
            if bool(infinite.any()):
                row = begin + int(infinite.nonzero()[0, 0])
                item_id, moment = self.place(row)
                raise InfiniteValuesError(
                    f"series {quote(item_id)} is infinite at {moment} in {self.dtype}; "
                    "replace the value, or mark it as missing with NaN."
                )
            is_nan = values.isnan()
            missing = missing or bool(is_nan.any())
            observed = observed or not bool(is_nan.all())
        if not observed:
            raise EmptyDatasetError(
                "no series has a value: all targets are missing. Check how they were "
                "read: values that cannot be parsed or matched often become NaN."
            )
        return replace(self, missing=missing)

    def _chunks(self, rows: int = 2**22) -> Iterator[tuple[int, Tensor]]:
        """Iterate over the values of all series in chunks, each with its first row."""
        ends = self.begins + self.lengths
        # Adjacent series form one stretch of values.
        breaks = (self.begins[1:] != ends[:-1]).nonzero().flatten() + 1
        edges = [0, *breaks.tolist(), len(self.begins)]
        for first, last in itertools.pairwise(edges):
            end = int(ends[last - 1])
            for begin in range(int(self.begins[first]), end, rows):
                yield begin, self.values[begin : min(begin + rows, end)]

    @property
    def dimensions(self) -> int | None:
        """Dimensions of a multivariate target; None for univariate series."""
        return self.values.shape[1] if self.values.ndim == 2 else None

    def place(self, row: int) -> tuple[str, pd.Timestamp]:
        """Return the series and moment of a row of ``values``, for messages."""
        inside = (self.begins <= row) & (row < self.begins + self.lengths)
        series = int(inside.nonzero()[0, 0])
        step = row - int(self.begins[series])
        origin = int(self.timeline.origins[series])
        return self.item_ids[series], self.timeline.moments[origin + step]

    def first_missing(self) -> tuple[str, pd.Timestamp] | None:
        """Return the series and moment of the first missing target, if any."""
        if not self.missing:
            return None
        for begin, values in self._chunks():
            missing = values.isnan()
            if bool(missing.any()):
                return self.place(begin + int(missing.nonzero()[0, 0]))
        return None

    def to(self, device: torch.device | str) -> SeriesStore:
        """Return the same series on another device."""
        return replace(
            self,
            values=self.values.to(device),
            begins=self.begins.to(device),
            lengths=self.lengths.to(device),
        )


class GrowingArray:
    """An array that grows by appended series, so that values are held only once."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = torch.empty(0, dtype=dtype).numpy().dtype
        self._rows = 0
        self.shape: tuple[int, ...] | None = None  # of one step

    def append(self, target: np.ndarray) -> np.ndarray:
        """Append the steps of one series, and return them as stored."""
        if self.shape is None:
            self.shape = target.shape[1:]
            self._array = np.empty(target.shape, self._dtype)
        end = self._rows + len(target)
        if end > len(self._array):
            # Large blocks of memory grow by moving pages, not by copying values.
            self._array.resize((end + end // 4, *self.shape), refcheck=False)
        with np.errstate(over="ignore"):  # an overflow is reported later
            self._array[self._rows : end] = target
        stored = self._array[self._rows : end]
        self._rows = end
        return stored

    def widen(self, dtype: np.dtype) -> None:
        """Change to a type that can also hold values of ``dtype``."""
        self._dtype = np.result_type(self._dtype, dtype)
        if self.shape is not None and self._array.dtype != self._dtype:
            self._array = self._array.astype(self._dtype)

    def tensor(self) -> Tensor:
        """Return the values as a tensor, and release the spare memory."""
        self._array.resize((self._rows, *self._array.shape[1:]), refcheck=False)
        return torch.from_numpy(self._array)
