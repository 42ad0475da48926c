"""Time: from start and frequency of each series to the moments of its steps.

GluonTS hands out ``pandas.Period`` starts (0.10 and later) or ``Timestamp``
starts (0.9). Both become a *moment*, the naive datetime at which a step begins,
and an *ordinal*, the number of steps since 1970, where the frequency has one.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.tseries.frequencies import to_offset
from pandas.tseries.offsets import BaseOffset, Tick

from pts_scott.errors import (
    DataError,
    FrequencyError,
    MixedFrequencyError,
    one_line,
    quote,
)

MAX_GAP = 1024  # steps without any series that a grid may hold

OUT_OF_BOUNDS = (
    OverflowError,
    pd.errors.OutOfBoundsDatetime,
    pd.errors.OutOfBoundsTimedelta,
)

Start = Any  # a pandas Period or Timestamp, or what pandas reads as one


def parse_offset(freq: Any) -> BaseOffset:
    """The pandas offset that ``freq`` names.

    Raises
    ------
    FrequencyError
        If pandas does not know it, or it does not go forward in time.
    """
    with _quiet():
        try:
            offset = to_offset(freq)
        except (ValueError, TypeError) as error:
            raise FrequencyError(
                f"freq={freq!r} is not a frequency that pandas knows; "
                "write e.g. freq='h', '15min', 'D', 'B', 'W-SUN' or 'M'."
            ) from error
    if offset is None:
        raise FrequencyError("freq is missing; give that of the series, e.g. freq='h'.")
    if offset.n < 1:
        raise FrequencyError(
            f"freq={freq!r} does not go forward in time; write e.g. freq='h' or '2D'."
        )
    return offset


def without_anchor(freq: Any, own: Any) -> bool:
    """Whether ``freq`` is that of some data but for a day or month that it leaves open.

    Parameters
    ----------
    freq
        As a model was told it: "W" says nothing about the day on which weeks end.
    own
        The frequency that the data carry, e.g. that of "W-MON".
    """
    if not isinstance(freq, str) or "-" in freq:
        return False
    given, found = (parse_offset(f).freqstr.split("-")[0] for f in (freq, own))
    return given == found


def parse_start(start: Start, item_id: str | None = None) -> pd.Period | pd.Timestamp:
    """A Period as it is; anything else as a Timestamp.

    Parameters
    ----------
    start
        What an entry has.
    item_id
        Its series, to name it in a message.

    Raises
    ------
    DataError
        If it is not a date, or has a time zone: steps of wall time and of elapsed time
        drift apart there, and GluonTS knows no time zones either.
    """
    if isinstance(start, pd.Period):
        return start
    given = f"start={quote(start)}"
    given = given if item_id is None else f"series {quote(item_id)}: {given}"
    try:
        # Of a number, pandas would make nanoseconds since 1970.
        moment = pd.NaT if isinstance(start, numbers.Number) else pd.Timestamp(start)
    except pd.errors.OutOfBoundsDatetime as error:
        raise DataError(f"{given} goes beyond {_bounds()}") from error
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{given} is not a date: {one_line(error)}. Write e.g. start='2024-01-31'."
        ) from error
    if moment is pd.NaT:
        raise DataError(f"{given} is not a date. Write e.g. start='2024-01-31'.")
    if moment.tz is not None:
        raise DataError(
            f"{given} has a time zone; drop it with start.tz_localize(None), or "
            "go to UTC first with start.tz_convert('UTC')."
        )
    return moment


def moment_of(start: Start) -> pd.Timestamp:
    """The naive datetime at which the step ``start`` begins."""
    parsed = parse_start(start)
    if isinstance(parsed, pd.Period):
        with _quiet():
            return parsed.start_time
    return parsed


def frequency_of(start: Start) -> Any | None:
    """The frequency that a start carries, if any: Periods do, and old Timestamps."""
    with _quiet():
        return getattr(start, "freq", None)


def ordinal_of(start: Start, freq: Any = None) -> int:
    """Steps since 1970 of ``start``; a Timestamp needs its frequency.

    Raises
    ------
    FrequencyError
        If the frequency is missing or does not count its steps.
    """
    parsed = parse_start(start)
    if isinstance(parsed, pd.Period):
        return int(parsed.ordinal) // int(parsed.freq.n)
    freq = frequency_of(start) if freq is None else freq
    if freq is None:
        raise FrequencyError(
            "a Timestamp does not say its frequency: fit the stratifier first, or "
            "give freq, e.g. Stratifier.periodic(8, freq='h')."
        )
    ordinals = _ordinals(pd.DatetimeIndex([parsed]), parse_offset(freq))
    if ordinals is None:
        raise _no_ordinals(freq)
    return int(ordinals[0])


@dataclass(frozen=True)
class Timeline:
    """The moments of all series of a dataset, each stored once.

    Series that overlap on a grid of steps share its moments, so memory grows with the
    span of time and not with the number of series.

    Parameters
    ----------
    offset
        The frequency of every series.
    moments
        Begin of each step, one grid after the other.
    ordinals
        Steps since 1970 of each moment; None where the frequency has none.
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
        """Lay the series out on as few grids of steps as their starts allow.

        Parameters
        ----------
        starts, lengths
            Of each series.
        freq
            Of all of them, as pandas spells it.
        item_ids
            The names of the series, for messages; None for their places.

        Raises
        ------
        DataError, FrequencyError, MixedFrequencyError
        """
        offset = parse_offset(freq)
        starts = list(starts)  # which keeps them alive, so that each id is its own
        names = range(len(starts)) if item_ids is None else item_ids
        known: dict[int, pd.Period | pd.Timestamp] = {}  # many series share one
        for start, name in zip(starts, names, strict=True):
            if id(start) not in known:
                known[id(start)] = parse_start(start, str(name))
        parsed = [known[id(start)] for start in starts]
        check_one_frequency(starts, offset)
        with _quiet():
            try:
                return cls._lay_out(parsed, np.asarray(lengths, dtype=np.int64), offset)
            except OUT_OF_BOUNDS as error:
                raise _out_of_bounds(parsed, lengths, offset, names) from error

    @classmethod
    def _lay_out(
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
            positions, inside = _positions([starts[i] for i in left], first, offset)
            members, positions = left[inside], positions[inside]
            for group in _overlapping(positions, lengths[members]):
                begin = int(positions[group].min())
                size = int((positions[group] + lengths[members[group]]).max()) - begin
                earliest = members[group[positions[group].argmin()]]
                grid = _steps(starts[earliest], size, offset)
                origins[members[group]] = rows + positions[group] - begin
                rows += size
                moments.append(_moments(grid))
                ordinals.append(_ordinals(grid, offset))
        countable = all(part is not None for part in ordinals)
        return cls(
            offset,
            moments[0].append(moments[1:]) if len(moments) > 1 else moments[0],
            np.concatenate(ordinals) if countable else None,  # type: ignore[arg-type]
            origins,
        )

    def require_ordinals(self) -> np.ndarray:
        """The ordinals, or a FrequencyError where the frequency has none."""
        if self.ordinals is None:
            raise _no_ordinals(self.offset.freqstr)
        return self.ordinals


def _no_ordinals(freq: Any) -> FrequencyError:
    return FrequencyError(
        f"steps of freq={freq!r} cannot be counted from a fixed date, as "
        "Stratifier.periodic needs; use Stratifier.calendar instead."
    )


def _out_of_bounds(
    starts: Sequence[Any], lengths: Sequence[int], offset: BaseOffset, names: Sequence
) -> DataError:
    """What to say of the first series whose steps go where dates end."""
    given = "the series"
    for start, length, name in zip(starts, lengths, names, strict=True):
        try:
            _moments(_steps(start, int(length), offset))
        except OUT_OF_BOUNDS:
            given = f"series {quote(str(name))}: {length} steps from {start} on"
            break
    return DataError(f"{given} go beyond {_bounds()}")


def _bounds() -> str:
    first, last = pd.Timestamp.min, pd.Timestamp.max
    return (
        "the dates that pandas counts in nanoseconds, "
        f"{first:%Y-%m-%d} to {last:%Y-%m-%d}; move the starts, or see that freq is "
        "that of the data."
    )


def check_one_frequency(starts: Sequence[Start], offset: BaseOffset) -> None:
    """Refuse starts of several kinds or frequencies, or of another than ``offset``.

    Raises
    ------
    MixedFrequencyError
    """
    with _quiet():
        _check_one_frequency(starts, offset)


def _check_one_frequency(starts: Sequence[Start], offset: BaseOffset) -> None:
    kinds = {pd.Period if isinstance(s, pd.Period) else pd.Timestamp for s in starts}
    if len(kinds) > 1:
        raise MixedFrequencyError(
            "some series start at a pandas Period and some at a Timestamp; use one kind."
        )
    distinct = {id(start): start for start in starts}.values()
    carried: set[Any] = {getattr(start, "freq", None) for start in distinct} - {None}
    if len(carried) > 1:
        names = ", ".join(sorted(repr(freq.freqstr) for freq in carried))
        raise MixedFrequencyError(
            f"the series have frequencies {names}; train one model for each frequency, "
            "or resample the series to one."
        )
    for freq in carried:
        if freq != (_period_offset(offset) if pd.Period in kinds else offset):
            raise MixedFrequencyError(
                f"the series have frequency {freq.freqstr!r}, but "
                f"freq={offset.freqstr!r} was given; give the frequency of the data."
            )


def _period_offset(offset: BaseOffset) -> BaseOffset | None:
    """The offset of the periods that pandas makes of this frequency ('MS': 'M')."""
    try:
        periods = pd.date_range("1970-01-01", periods=1, freq=offset).to_period()
        return periods.freq
    except (ValueError, AttributeError):  # AttributeError: pandas 1.5
        return None


def _positions(
    starts: Sequence[Any], first: Any, offset: BaseOffset
) -> tuple[np.ndarray, np.ndarray]:
    """Steps from ``first`` to each start, and which starts lie on its grid."""
    if isinstance(first, pd.Period):
        ordinals = (start.ordinal for start in starts)
        distance = np.fromiter(ordinals, dtype=np.int64, count=len(starts))
        distance -= first.ordinal
        return distance // first.freq.n, distance % first.freq.n == 0
    if isinstance(offset, Tick):
        # In Python's integers: a Timedelta ends at 292 years.
        distances = [divmod(start.value - first.value, offset.nanos) for start in starts]
        steps, rest = np.array(distances, dtype=np.int64).T
        return steps, rest == 0
    grid = pd.DatetimeIndex([first]).union(
        pd.date_range(first, max(max(starts), first + offset), freq=offset)
    )
    positions = grid.get_indexer(pd.DatetimeIndex(starts))
    return positions, positions >= 0


def _overlapping(positions: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Groups of series whose steps overlap, or nearly; a long gap begins a new one."""
    order = np.argsort(positions, kind="stable")
    reach = np.maximum.accumulate((positions + lengths)[order])
    gaps = positions[order][1:] > reach[:-1] + MAX_GAP
    return np.split(order, np.flatnonzero(gaps) + 1)


def _steps(
    first: Any, size: int, offset: BaseOffset
) -> pd.PeriodIndex | pd.DatetimeIndex:
    if isinstance(first, pd.Period):
        return pd.period_range(first, periods=size, freq=first.freq)
    # A start that is not on the offset is followed by start + offset, which is how
    # GluonTS 0.9 moves through time.
    later = pd.date_range(first + offset, periods=max(size - 1, 0), freq=offset)
    return pd.DatetimeIndex([first][:size]).append(later)


def _moments(grid: pd.PeriodIndex | pd.DatetimeIndex) -> pd.DatetimeIndex:
    moments = grid.start_time if isinstance(grid, pd.PeriodIndex) else grid
    # Coarser units, which pandas 2 has, reach dates that nanoseconds do not.
    return moments.astype("datetime64[ns]", copy=False)


def _ordinals(
    grid: pd.PeriodIndex | pd.DatetimeIndex, offset: BaseOffset
) -> np.ndarray | None:
    with _quiet():
        if isinstance(grid, pd.PeriodIndex):
            return np.asarray(grid.asi8) // grid.freq.n
        if isinstance(offset, Tick):
            return nanoseconds(grid) // offset.nanos
        period = _period_offset(offset)
        if period is None:
            return None
        return np.asarray(grid.to_period(period).asi8) // offset.n


def nanoseconds(moments: pd.DatetimeIndex) -> np.ndarray:
    """Nanoseconds since 1970, whatever resolution the index has."""
    return moments.to_numpy().astype("datetime64[ns]").astype(np.int64)


def step_days(offset: BaseOffset) -> float:
    """Roughly how many days a step has: enough to tell an hour, a day and a month."""
    if isinstance(offset, Tick):
        return offset.nanos / 86400e9
    begin = offset.rollforward(pd.Timestamp("1970-01-01"))
    try:
        return (begin + 20 * offset - begin) / pd.Timedelta(20, "D")
    except (OverflowError, pd.errors.OutOfBoundsDatetime):
        return math.inf


class _quiet(warnings.catch_warnings):
    """Silence pandas' notices about frequencies that are still in everyday use.

    Business-day periods and the old aliases ('H', 'M') are deprecated in some
    pandas releases and the only spelling in others; both stacks must read them.
    """

    def __enter__(self) -> None:  # type: ignore[override]
        super().__enter__()
        warnings.simplefilter("ignore", FutureWarning)
