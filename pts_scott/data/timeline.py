"""The timeline of a dataset: the moments of all its series, each stored once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.tseries.offsets import BaseOffset, Tick

from pts_scott._utils.text import quote
from pts_scott.data.offsets import (
    Start,
    beyond_date_bounds,
    check_one_frequency,
    index_ordinals,
    parse_offset,
    parse_start,
    quiet_pandas,
    uncountable_steps,
)
from pts_scott.errors import DataError

MAX_GAP = 1024  # steps without any series that a grid may hold

OUT_OF_BOUNDS = (
    OverflowError,
    pd.errors.OutOfBoundsDatetime,
    pd.errors.OutOfBoundsTimedelta,
)


@dataclass(frozen=True)
class Timeline:
    """The moments of all series of a dataset.

    Series that overlap on a grid of steps share its moments, so memory grows with the
    time span and not with the number of series.

    Parameters
    ----------
    offset
        Frequency of every series.
    moments
        Beginning of each step, one grid after the other.
    ordinals
        Steps since 1970 of each moment; None if they cannot be counted.
    origins
        For each series, the row of ``moments`` at which it starts.
    """

    offset: BaseOffset
    moments: pd.DatetimeIndex
    ordinals: np.ndarray | None
    origins: np.ndarray

    @classmethod
    def build(
        cls,
        starts: Sequence[Start],
        lengths: Sequence[int],
        freq: Any,
        item_ids: Sequence[str] | None = None,
    ) -> Timeline:
        """Arrange the series on as few grids of steps as their starts allow.

        Parameters
        ----------
        starts, lengths
            Start and number of steps of each series.
        freq
            Frequency of all series, as a pandas alias.
        item_ids
            Names of the series, for messages; None for their positions.

        Raises
        ------
        DataError, FrequencyError, MixedFrequencyError
        """
        offset = parse_offset(freq)
        starts = list(starts)  # keeps them alive, so that their ids stay unique
        names = range(len(starts)) if item_ids is None else item_ids
        known: dict[int, pd.Period | pd.Timestamp] = {}  # many series share one
        for start, name in zip(starts, names, strict=True):
            if id(start) not in known:
                known[id(start)] = parse_start(start, str(name))
        parsed = [known[id(start)] for start in starts]
        check_one_frequency(starts, offset)
        with quiet_pandas():
            try:
                return cls._arrange(parsed, np.asarray(lengths, dtype=np.int64), offset)
            except OUT_OF_BOUNDS as error:
                raise _out_of_bounds(parsed, lengths, offset, names) from error

    @classmethod
    def _arrange(
        cls,
        starts: list[pd.Period | pd.Timestamp],
        lengths: np.ndarray,
        offset: BaseOffset,
    ) -> Timeline:
        origins = np.full(len(starts), -1, dtype=np.int64)
        moments: list[pd.DatetimeIndex] = []
        ordinals: list[np.ndarray | None] = []
        rows = 0
        while (left := np.flatnonzero(origins < 0)).size:
            first = min(starts[i] for i in left)
            positions, on_grid = _positions([starts[i] for i in left], first, offset)
            members, positions = left[on_grid], positions[on_grid]
            for group in _overlapping(positions, lengths[members]):
                begin = int(positions[group].min())
                size = int((positions[group] + lengths[members[group]]).max()) - begin
                earliest = members[group[positions[group].argmin()]]
                grid = _grid(starts[earliest], size, offset)
                origins[members[group]] = rows + positions[group] - begin
                rows += size
                moments.append(_moments(grid))
                ordinals.append(index_ordinals(grid, offset))
        countable = all(part is not None for part in ordinals)
        return cls(
            offset,
            moments[0].append(moments[1:]) if len(moments) > 1 else moments[0],
            np.concatenate(ordinals) if countable else None,  # type: ignore[arg-type]
            origins,
        )

    def require_ordinals(self) -> np.ndarray:
        """Return the ordinals; raise a FrequencyError if there are none."""
        if self.ordinals is None:
            raise uncountable_steps(self.offset.freqstr)
        return self.ordinals


def _positions(
    starts: Sequence[Any], first: Any, offset: BaseOffset
) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps from ``first`` to each start, and which starts are on its grid."""
    if isinstance(first, pd.Period):
        ordinals = (start.ordinal for start in starts)
        distance = np.fromiter(ordinals, dtype=np.int64, count=len(starts))
        distance -= first.ordinal
        return distance // first.freq.n, distance % first.freq.n == 0
    if isinstance(offset, Tick):
        # Python integers, because a Timedelta ends at 292 years.
        distances = [divmod(start.value - first.value, offset.nanos) for start in starts]
        steps, rest = np.array(distances, dtype=np.int64).T
        return steps, rest == 0
    grid = pd.DatetimeIndex([first]).union(
        pd.date_range(first, max(max(starts), first + offset), freq=offset)
    )
    positions = grid.get_indexer(pd.DatetimeIndex(starts))
    return positions, positions >= 0


def _overlapping(positions: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Group series whose steps overlap; only a gap above ``MAX_GAP`` splits a group."""
    order = np.argsort(positions, kind="stable")
    reach = np.maximum.accumulate((positions + lengths)[order])
    gaps = positions[order][1:] > reach[:-1] + MAX_GAP
    return np.split(order, np.flatnonzero(gaps) + 1)


def _grid(first: Any, size: int, offset: BaseOffset) -> pd.PeriodIndex | pd.DatetimeIndex:
    if isinstance(first, pd.Period):
        return pd.period_range(first, periods=size, freq=first.freq)
    # A start that is not on the offset is followed by start + offset, as in GluonTS 0.9.
    later = pd.date_range(first + offset, periods=max(size - 1, 0), freq=offset)
    return pd.DatetimeIndex([first][:size]).append(later)


def _moments(grid: pd.PeriodIndex | pd.DatetimeIndex) -> pd.DatetimeIndex:
    moments = grid.start_time if isinstance(grid, pd.PeriodIndex) else grid
    # The coarser units of pandas 2 reach dates that nanoseconds do not.
    return moments.astype("datetime64[ns]", copy=False)


def _out_of_bounds(
    starts: Sequence[Any], lengths: Sequence[int], offset: BaseOffset, names: Sequence
) -> DataError:
    """Return the error that names the first series with steps beyond pandas' dates."""
    given = "the series"
    for start, length, name in zip(starts, lengths, names, strict=True):
        try:
            _moments(_grid(start, int(length), offset))
        except OUT_OF_BOUNDS:
            given = f"series {quote(str(name))}: {length} steps from {start} on"
            break
    return DataError(f"{given} go {beyond_date_bounds()}")
