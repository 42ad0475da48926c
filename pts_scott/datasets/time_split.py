"""Splits by time: training, tuning and test ranges that share no predicted step."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from pandas.tseries.offsets import Tick

from pts_scott._utils.text import shorten
from pts_scott.data.offsets import nanoseconds
from pts_scott.data.timeline import Timeline
from pts_scott.datasets.formatting import format_moment
from pts_scott.errors import ScottWarning, SplitError

if TYPE_CHECKING:
    from pts_scott.datasets.series_data import SeriesData


@dataclass(frozen=True, eq=False, repr=False)
class TimeSplit:
    """A dataset split by time, at the same moments for all series; ``print`` it.

    Parameters
    ----------
    name
        Of the dataset.
    context_length, prediction_length
        Of the windows.
    train
        Values before ``train_end``.
    test
        Values from ``train_end`` on, so that its windows contain no training value.
    fit
        Values before ``tune_begin``, on which tuning trains.
    tuning
        Values from ``tune_begin`` to ``train_end``, preceded by one context: windows with
        full context predict only steps from ``tune_begin`` on.
    backtest
        The whole series of those with a window in ``test``; their last
        ``prediction_length`` steps are to be forecast.
    tune_begin, train_end
        The moments that separate the parts.
    left_out
        By part, the names of the series that have no window in it.
    """

    name: str
    context_length: int
    prediction_length: int
    train: SeriesData
    test: SeriesData
    fit: SeriesData
    tuning: SeriesData
    backtest: SeriesData
    tune_begin: pd.Timestamp
    train_end: pd.Timestamp
    left_out: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def left_out_sentence(self) -> str:
        """Name the series that are left out of a part."""
        parts = (f"{part}: {shorten(names)}" for part, names in self.left_out.items())
        return (
            f"series of {self.name} without a window of {self._window_length} steps in a "
            f"part are left out of it ({'; '.join(parts)})."
        )

    def windows(self, part: SeriesData) -> int:
        """Return the number of windows with full context in a part.

        Parameters
        ----------
        part
            One of the parts, e.g. ``split.train``.
        """
        return sum(len(target) - self._window_length + 1 for target in part.targets)

    @property
    def _window_length(self) -> int:
        return self.context_length + self.prediction_length

    def __str__(self) -> str:
        lines = [
            f"{self.name}, split by time for windows of {self.context_length} + "
            f"{self.prediction_length} steps; training ends before "
            f"{format_moment(self.train_end)}, tuning measures from "
            f"{format_moment(self.tune_begin)} on:"
        ]
        for name in ("train", "fit", "tuning", "test"):
            part = getattr(self, name)
            begin, end = map(format_moment, part.span())
            lines.append(
                f"  {name:<6}  {begin:<16} to {end:<16}  {len(part)} series  "
                f"{self.windows(part):,} windows"
            )
        if self.left_out:
            lines.append(f"  {self.left_out_sentence()}")
        return "\n".join(lines)

    __repr__ = __str__


def split_by_time(
    data: SeriesData, context: int, prediction: int, train: float, tune: float
) -> TimeSplit:
    """Split series by time; see `SeriesData.split`."""
    calendar = _Calendar.of(data)
    train_steps = _share(train, calendar.steps)
    tune_steps = _share(tune, train_steps)
    context_step = max(train_steps - tune_steps - context, 0)
    # First step of each part, and the step before which it ends.
    ranges: dict[str, tuple[int, int | None]] = {
        "train": (0, train_steps),
        "test": (train_steps, None),
        "fit": (0, train_steps - tune_steps),
        "tuning": (context_step, train_steps),
    }
    parts = {}
    left_out: dict[str, tuple[str, ...]] = {}
    for name, (begin, end) in ranges.items():
        part, rows = calendar.cut(begin, end, context + prediction)
        missing = set(range(len(data))) - set(rows)
        if missing:
            left_out[name] = tuple(data.item_ids[row] for row in sorted(missing))
        if not rows:
            steps = (calendar.steps if end is None else end) - begin
            raise _too_short(data, name, steps, calendar.steps, context, prediction)
        parts[name] = part
        if name == "test":
            parts["backtest"] = data.pick(rows)
    split = TimeSplit(
        data.name,
        context,
        prediction,
        **parts,
        tune_begin=calendar.moment(train_steps - tune_steps),
        train_end=calendar.moment(train_steps),
        left_out=left_out,
    )
    if left_out:
        warnings.warn(split.left_out_sentence(), ScottWarning, stacklevel=3)
    return split


def _share(share: float, steps: int) -> int:
    return math.floor(share * steps + 1e-9)  # 0.29 * 100 gives 29


def _too_short(
    data: SeriesData, part: str, steps: int, all_steps: int, context: int, prediction: int
) -> SplitError:
    before = f", including {context} of context before it," if part == "tuning" else ""
    return SplitError(
        f"{data.name} cannot be split: the {part} part has {steps} of the {all_steps} "
        f"steps{before} and no series has a window there, which needs "
        f"{context + prediction} (context_length={context} + "
        f"prediction_length={prediction}). Use longer series, shorten the window, or "
        "change the shares train= and tune=."
    )


@dataclass(frozen=True)
class _Calendar:
    """All steps from the first moment of any series to the last."""

    data: SeriesData
    timeline: Timeline
    stamps: np.ndarray  # the timeline's moments as numbers
    first: pd.Timestamp
    steps: int

    @classmethod
    def of(cls, data: SeriesData) -> _Calendar:
        timeline = data.timeline()
        first, last = timeline.moments.min(), timeline.moments.max()
        offset = timeline.offset
        if isinstance(offset, Tick):
            later = (last - first) // pd.Timedelta(offset.nanos, "ns")
        else:
            later = len(pd.date_range(first + offset, last, freq=offset))
        return cls(data, timeline, nanoseconds(timeline.moments), first, int(later) + 1)

    def moment(self, step: int) -> pd.Timestamp:
        """Return the moment at which a step begins."""
        return self.first + step * self.timeline.offset if step else self.first

    def cut(self, begin: int, end: int | None, need: int) -> tuple[SeriesData, list[int]]:
        """Return the series cut to steps ``begin`` to ``end`` − 1, and their indices.

        Series with fewer than ``need`` values there are left out.
        """
        rows, starts, spans = [], [], []
        steps = [begin] if end is None else [begin, end]
        edges = nanoseconds(pd.DatetimeIndex([self.moment(step) for step in steps]))
        for row, target in enumerate(self.data.targets):
            origin = int(self.timeline.origins[row])
            stamps = self.stamps[origin : origin + len(target)]
            low, high = [*stamps.searchsorted(edges).tolist(), len(target)][:2]
            if high - low >= need:
                rows.append(row)
                starts.append(self.timeline.moments[origin + low])
                spans.append((low, high))
        part = self.data.pick(rows)
        features = part.features
        if features is not None:
            features = features.cut(spans, to_end=end is None)
        targets = [t[low:high] for t, (low, high) in zip(part.targets, spans)]
        part = replace(
            part, starts=tuple(starts), targets=tuple(targets), features=features
        )
        return part, rows
