"""Cheap features of windows, by which learned strata are described.

Features of many contexts come from running sums over the series, so that a window costs
the same however long its context is; `context_features` computes them from the contexts
themselves. Missing and padded values count as zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from pts_scott.data.offsets import step_days
from pts_scott.data.window_index import WindowIndex
from pts_scott.strata.calendar import CALENDAR_PARTS

CONTEXT = ("level", "spread", "last value", "recent values", "zeros")
SERIES = ("series level", "series spread", "series change")
CALENDAR = ("hour", "weekday", "day", "month")

CONSTANT = 1e-4  # of the level; a smaller spread may be rounding
MAX_SUMMED = 2**23  # values up to which running sums are kept: 320 MB
CHUNK = 2**14  # windows whose contexts are read at once where they are not
STRETCH = 2**20  # values of adjacent series that are summed at once


def context_features(contexts: np.ndarray) -> np.ndarray:
    """Return the features ``CONTEXT`` of contexts: (windows, steps) or with dimensions.

    Level is log(1 + mean |x|); spread is the standard deviation by mean |x|; last value
    and recent values (the last quarter) are distances from the mean in standard
    deviations; zeros is their share.
    """
    x = np.asarray(contexts, dtype=np.float64)
    x = x if x.ndim == 2 else x.mean(axis=2)
    mean = x.mean(axis=1)
    variance = np.square(x - mean[:, None]).mean(axis=1)
    recent = x[:, -recent_steps(x.shape[1]) :].mean(axis=1)
    size, zeros = np.abs(x).mean(axis=1), (x == 0).mean(axis=1)
    return _features(mean, variance, size, zeros, x[:, -1], recent)


def recent_steps(length: int) -> int:
    """Return how many of the last steps of a context are recent."""
    return max(1, length // 4)


def _features(
    mean: np.ndarray,
    variance: np.ndarray,
    size: np.ndarray,
    zeros: np.ndarray,
    last: np.ndarray,
    recent: np.ndarray,
) -> np.ndarray:
    spread = np.sqrt(np.maximum(variance, 0.0))
    spread = np.where(spread > CONSTANT * size, spread, 0.0)
    unit = np.where(spread > 0, spread, 1.0)
    moved = spread > 0
    columns = (
        np.log1p(size),
        spread / np.where(size > 0, size, 1.0),
        np.where(moved, last - mean, 0.0) / unit,
        np.where(moved, recent - mean, 0.0) / unit,
        zeros,
    )
    return np.stack(columns, axis=1)


class WindowFeatures:
    """The features of all windows of an index, computed on demand.

    Parameters
    ----------
    windows
        The index.

    Attributes
    ----------
    names
        The names of the features, in order.
    """

    def __init__(self, windows: WindowIndex) -> None:
        self._windows = windows
        self._moments = _calendar(windows.series.timeline.moments)
        days = step_days(windows.series.timeline.offset)
        self._usable = [CALENDAR_PARTS[name].max_days > days for name in CALENDAR]
        parts = [n for n, use in zip(CALENDAR, self._usable, strict=True) if use]
        self.names = (*CONTEXT, *SERIES, *parts)
        values = windows.series.values
        self._sums = _RunningSums(windows) if len(values) <= MAX_SUMMED else None
        self.series = _series_features(windows)

    def at(self, numbers: np.ndarray) -> np.ndarray:
        """Return the features of some windows, of shape (windows, features)."""
        series, rows = self._windows.rows(numbers)
        parts = (
            self._contexts(numbers),
            self.series[series],
            self._moments[rows][:, self._usable],
        )
        return np.concatenate(parts, axis=1).astype(np.float32)

    @cached_property
    def namesakes(self) -> np.ndarray:
        """The number of the first series with the same name, of each series."""
        first: dict[str, int] = {}
        names = self._windows.series.item_ids
        return np.array([first.setdefault(name, k) for k, name in enumerate(names)])

    def _contexts(self, numbers: np.ndarray) -> np.ndarray:
        if self._sums is not None:
            return self._sums.features(numbers)
        chunks = torch.from_numpy(numbers).to(self._windows.device).split(CHUNK)
        parts = (self._windows.contexts(chunk).cpu().numpy() for chunk in chunks)
        return np.concatenate([context_features(part) for part in parts])


def instance_features(
    instance: Mapping[str, Any], moment: pd.Timestamp, series: np.ndarray, names: Any
) -> np.ndarray:
    """Return the features of one instance, in the order of ``names``."""
    context = np.nan_to_num(np.asarray(instance["past_target"], dtype=np.float32))
    known = dict(zip(CONTEXT, context_features(context[None])[0], strict=True))
    known |= dict(zip(SERIES, series, strict=True))
    known |= dict(zip(CALENDAR, _calendar(pd.DatetimeIndex([moment]))[0], strict=True))
    return np.array([known[name] for name in names], dtype=np.float32)


def _calendar(moments: pd.DatetimeIndex) -> np.ndarray:
    columns = [np.asarray(CALENDAR_PARTS[name].read(moments)) for name in CALENDAR]
    return np.stack(columns, axis=1).astype(np.float64)


class _RunningSums:
    """Sums over any stretch of a series, as differences of running sums.

    Values are distances from the mean of their series, in units of its largest value:
    sums of all series are one array, in which small numbers must not be lost among large
    ones.
    """

    def __init__(self, windows: WindowIndex) -> None:
        store = windows.series
        self._windows, self._length = windows, windows.context_length
        values = np.nan_to_num(store.values.cpu().numpy().astype(np.float64))
        x = values if values.ndim == 1 else values.mean(axis=1)
        self._begins = store.begins.cpu().numpy()
        lengths = store.lengths.cpu().numpy()
        unit, centre = np.ones(len(lengths)), np.zeros(len(lengths))
        centred, sizes = np.zeros_like(x), np.zeros_like(x)
        for part, rows, begins in _stretches(self._begins, lengths):
            some, counts = x[rows], lengths[part]
            largest = np.maximum.reduceat(np.abs(some), begins)
            unit[part] = np.where(largest > 0, largest, 1.0)
            scaled = some / np.repeat(unit[part], counts)
            centre[part] = np.add.reduceat(scaled, begins) / counts
            centred[rows] = scaled - np.repeat(centre[part], counts)
            sizes[rows] = np.abs(scaled)
        self._unit, self._centre = unit, centre
        self._last = centred
        self._sum, self._square = _running(centred), _running(np.square(centred))
        self._size, self._zeros = _running(sizes), _running(x == 0)

    def features(self, numbers: np.ndarray) -> np.ndarray:
        """Return the features ``CONTEXT`` of some windows."""
        windows, length = self._windows, self._length
        located = windows.locate(torch.from_numpy(numbers).to(windows.device))
        series, starts = (part.cpu().numpy() for part in located)
        first, unit = self._begins[series], self._unit[series]
        end = first + starts - windows.lead_time
        begin = np.maximum(first, end - length)
        recent = np.maximum(first, end - recent_steps(length))
        # A padded step is zero, which is −centre from the series' mean.
        centre, padded = self._centre[series], (length - (end - begin)) / length

        def mean(sums: np.ndarray) -> np.ndarray:
            return (sums[end] - sums[begin]) / length

        shift = mean(self._sum) - padded * centre
        square = mean(self._square) + padded * centre**2
        steps = recent_steps(length)
        some = self._sum[end] - self._sum[recent] - (steps - (end - recent)) * centre
        last = self._last[np.maximum(end - 1, first)]
        return _features(
            unit * shift,
            unit**2 * (square - shift**2),
            unit * mean(self._size),
            mean(self._zeros) + padded,
            unit * np.where(end > first, last, -centre),
            unit * some / steps,
        )


def _running(values: np.ndarray) -> np.ndarray:
    """Return the sum of all values before each row, and of all."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


def _series_features(windows: WindowIndex) -> np.ndarray:
    """Return level, spread and mean change of each series, of shape (series, 3)."""
    store = windows.series
    lengths = store.lengths.cpu().numpy()
    result = np.zeros((len(lengths), len(SERIES)))
    for part, rows, begins in _stretches(store.begins.cpu().numpy(), lengths):
        values = store.values[rows].cpu().numpy().astype(np.float64)
        x = np.nan_to_num(values if values.ndim == 1 else values.mean(axis=1))
        counts = lengths[part]

        def mean(
            values: np.ndarray, begins: np.ndarray = begins, counts: np.ndarray = counts
        ) -> np.ndarray:
            return np.add.reduceat(values, begins) / counts

        size, centred = mean(np.abs(x)), x - np.repeat(mean(x), counts)
        size = np.where(size > 0, size, 1.0)
        change = np.abs(np.diff(x, prepend=x[:1]))
        change[begins] = 0.0
        result[part, 0] = np.log1p(size)
        result[part, 1] = np.sqrt(mean(np.square(centred))) / size
        result[part, 2] = mean(change) * counts / np.maximum(counts - 1, 1) / size
    return result


def _stretches(
    begins: np.ndarray, lengths: np.ndarray
) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Yield groups of adjacent series: which they are, their rows, and where each begins.

    A group has about `STRETCH` values, so that work on it needs little memory.
    """
    first = 0
    ends = begins + lengths
    breaks = np.flatnonzero(begins[1:] != ends[:-1]) + 1
    for stop in [*breaks.tolist(), len(begins)]:
        while first < stop:
            last = int(np.searchsorted(ends[first:stop], begins[first] + STRETCH)) + first
            last = min(max(last, first + 1), stop)
            part = slice(first, last)
            rows = slice(int(begins[first]), int(ends[last - 1]))
            yield part, rows, begins[part] - begins[first]
            first = last
