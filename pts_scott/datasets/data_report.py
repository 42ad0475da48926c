"""Reports on missing values and zeros in a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pts_scott._utils.text import quote, shorten
from pts_scott.data.timeline import Timeline
from pts_scott.datasets.formatting import format_moment, format_size, format_steps

if TYPE_CHECKING:
    from pts_scott.datasets.series_data import SeriesData

OFTEN = 0.2  # share of zeros above which a report names a series


@dataclass(frozen=True)
class Stretch:
    """Consecutive steps of one series."""

    item_id: str
    steps: int
    begin: pd.Timestamp
    end: pd.Timestamp

    def __str__(self) -> str:
        span = f"{format_moment(self.begin)} to {format_moment(self.end)}"
        return f"{format_steps(self.steps)} of series {quote(self.item_id)}, {span}"


@dataclass(frozen=True, eq=False, repr=False)
class DataReport:
    """Missing values and zeros of a dataset; ``print`` it.

    Parameters
    ----------
    data
        The series.
    table
        One row per series: item_id, start, steps, missing, longest_missing, zeros and
        longest_zeros, all counted in steps.
    longest_missing, longest_zeros
        The longest stretch of each kind, if there is one.
    all_zero
        Moments at which every series with a value is zero; empty for a single series.
    """

    data: SeriesData
    table: pd.DataFrame
    longest_missing: Stretch | None
    longest_zeros: Stretch | None
    all_zero: pd.DatetimeIndex

    def __str__(self) -> str:
        return "\n".join(
            part
            for part in (self._size(), self._missing(), self._zeros(), self._remarks())
            if part
        )

    __repr__ = __str__

    def _size(self) -> str:
        begin, end = map(format_moment, self.data.span())
        return (
            f"{self.data.name}: {format_size(self.data.targets)} of "
            f"freq={self.data.freq!r}, {begin} to {end}."
        )

    def _missing(self) -> str:
        if self.longest_missing is None:
            return "No value is missing."
        missing, steps = self.table["missing"], self.table["steps"].sum()
        return (
            f"{missing.sum():,} values ({missing.sum() / steps:.2%}) are missing, in "
            f"{(missing > 0).sum()} series; the longest stretch is "
            f"{self.longest_missing}."
        )

    def _zeros(self) -> str:
        if self.longest_zeros is None:
            return "No value is zero."
        zeros, steps = self.table["zeros"], self.table["steps"]
        text = (
            f"{zeros.sum():,} values ({zeros.sum() / steps.sum():.2%}) are zero; the "
            f"longest stretch is {self.longest_zeros}."
        )
        often = self.table["item_id"][zeros > OFTEN * steps].tolist()
        if often:
            text += (
                f" Zero more than {OFTEN:.0%} of the time: {len(often)} series, "
                f"{shorten(often)}."
            )
        if len(self.all_zero):
            count = format_steps(len(self.all_zero))
            moments = shorten([format_moment(moment) for moment in self.all_zero], 3)
            text += f" All series are zero at {count}: {moments}."
        return text

    def _remarks(self) -> str:
        dropped = self.data.dropped
        text = f"Constant series dropped: {shorten(dropped)}." if dropped else ""
        return "\n".join(part for part in (text, self.data.note) if part)


def build_report(data: SeriesData) -> DataReport:
    """Count missing values and zeros, per series and per moment."""
    timeline = data.timeline()
    zeros = np.zeros(len(timeline.moments), dtype=np.int64)  # series, per moment
    observed = np.zeros_like(zeros)
    missing_stretch, zero_stretch = _LongestStretch(), _LongestStretch()
    rows = []
    for number, target in enumerate(data.targets):
        origin = int(timeline.origins[number])
        span = slice(origin, origin + len(target))
        missing, zero = np.isnan(target), target == 0
        zeros[span] += zero
        observed[span] += ~missing
        rows.append(
            {
                "item_id": data.item_ids[number],
                "start": data.starts[number],
                "steps": len(target),
                "missing": int(missing.sum()),
                "longest_missing": missing_stretch.update(number, origin, missing),
                "zeros": int(zero.sum()),
                "longest_zeros": zero_stretch.update(number, origin, zero),
            }
        )
    all_zero = (zeros == observed) & (observed > 0) & (len(data) > 1)
    return DataReport(
        data,
        pd.DataFrame(rows),
        missing_stretch.resolve(data, timeline),
        zero_stretch.resolve(data, timeline),
        timeline.moments[all_zero],
    )


@dataclass
class _LongestStretch:
    """The longest stretch of all series so far."""

    steps: int = 0
    series: int = 0
    begin: int = 0  # row of the timeline

    def update(self, series: int, origin: int, mask: np.ndarray) -> int:
        """Return the length of the longest stretch of one series."""
        steps, begin = _longest_run(mask)
        if steps > self.steps:
            self.steps, self.series, self.begin = steps, series, origin + begin
        return steps

    def resolve(self, data: SeriesData, timeline: Timeline) -> Stretch | None:
        """Return the stretch with names and moments, if there is one."""
        if not self.steps:
            return None
        ends = timeline.moments[[self.begin, self.begin + self.steps - 1]]
        return Stretch(data.item_ids[self.series], self.steps, *ends)


def _longest_run(mask: np.ndarray) -> tuple[int, int]:
    """Return length and begin of the longest run of True."""
    padded = np.concatenate([[False], mask, [False]])
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    if not edges.size:
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(lengths.argmax())
    return int(lengths[longest]), int(edges[2 * longest])
