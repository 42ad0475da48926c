"""Frequencies and starts of series: parsing, checking and counting in pandas' terms.

GluonTS uses ``pandas.Period`` starts (0.10 and later) or ``Timestamp`` starts (0.9). Both
become a *moment*, the naive datetime at which a step begins, and an *ordinal*, the
number of steps since 1970, if the frequency has one.
"""

from __future__ import annotations

import contextlib
import math
import numbers
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.tseries.frequencies import to_offset
from pandas.tseries.offsets import BaseOffset, Tick

from pts_scott._utils.text import one_line, quote
from pts_scott.errors import DataError, FrequencyError, MixedFrequencyError

Start = Any  # a pandas Period or Timestamp, or anything that pandas reads as one


@contextlib.contextmanager
def quiet_pandas() -> Iterator[None]:
    """Silence pandas' warnings about frequencies that are still in everyday use.

    Business-day periods and the old aliases ('H', 'M') are deprecated in some pandas
    releases and the only spelling in others; both backends must read them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def parse_offset(freq: Any) -> BaseOffset:
    """Return the pandas offset that ``freq`` names.

    Raises
    ------
    FrequencyError
        If pandas does not know it, or it does not go forward in time.
    """
    with quiet_pandas():
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


def omits_suffix(freq: Any, data_freq: Any) -> bool:
    """Return whether ``freq`` is ``data_freq`` without its day or month.

    Parameters
    ----------
    freq
        Frequency given to a model: "W" does not say on which day weeks end.
    data_freq
        Frequency of the data, e.g. that of "W-MON".
    """
    if not isinstance(freq, str) or "-" in freq:
        return False
    given, found = (parse_offset(f).freqstr.split("-")[0] for f in (freq, data_freq))
    return given == found


def step_days(offset: BaseOffset) -> float:
    """Return roughly how many days a step has, to distinguish hours, days and months."""
    if isinstance(offset, Tick):
        return offset.nanos / 86400e9
    begin = offset.rollforward(pd.Timestamp("1970-01-01"))
    try:
        return (begin + 20 * offset - begin) / pd.Timedelta(20, "D")
    except (OverflowError, pd.errors.OutOfBoundsDatetime):
        return math.inf


def parse_start(start: Start, item_id: str | None = None) -> pd.Period | pd.Timestamp:
    """Return a Period unchanged, and anything else as a Timestamp.

    Parameters
    ----------
    start
        Start of a series.
    item_id
        Name of the series, for messages.

    Raises
    ------
    DataError
        If it is not a date, or has a time zone: steps of wall time and of elapsed time
        drift apart there, and GluonTS does not support time zones either.
    """
    if isinstance(start, pd.Period):
        return start
    given = f"start={quote(start)}"
    given = given if item_id is None else f"series {quote(item_id)}: {given}"
    try:
        # pandas would read a number as nanoseconds since 1970.
        moment = pd.NaT if isinstance(start, numbers.Number) else pd.Timestamp(start)
    except pd.errors.OutOfBoundsDatetime as error:
        raise DataError(f"{given} is {beyond_date_bounds()}") from error
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{given} is not a date: {one_line(error)}. Write e.g. start='2024-01-31'."
        ) from error
    if moment is pd.NaT:
        raise DataError(f"{given} is not a date. Write e.g. start='2024-01-31'.")
    if moment.tz is not None:
        raise DataError(
            f"{given} has a time zone; drop it with start.tz_localize(None), or "
            "convert it to UTC first with start.tz_convert('UTC')."
        )
    return moment


def beyond_date_bounds() -> str:
    """Return the end of a message about dates that pandas cannot represent."""
    first, last = pd.Timestamp.min, pd.Timestamp.max
    return (
        "beyond the dates that pandas counts in nanoseconds, "
        f"{first:%Y-%m-%d} to {last:%Y-%m-%d}; move the starts, or check that freq is "
        "that of the data."
    )


def moment_of(start: Start) -> pd.Timestamp:
    """Return the naive datetime at which the step ``start`` begins."""
    parsed = parse_start(start)
    if isinstance(parsed, pd.Period):
        with quiet_pandas():
            return parsed.start_time
    return parsed


def frequency_of(start: Start) -> Any | None:
    """Return the frequency that a start carries: Periods do, and old Timestamps."""
    with quiet_pandas():
        return getattr(start, "freq", None)


def ordinal_of(start: Start, freq: Any = None) -> int:
    """Return the number of steps from 1970 to ``start``; a Timestamp needs ``freq``.

    Raises
    ------
    FrequencyError
        If the frequency is missing or its steps cannot be counted.
    """
    parsed = parse_start(start)
    if isinstance(parsed, pd.Period):
        return int(parsed.ordinal) // int(parsed.freq.n)
    freq = frequency_of(start) if freq is None else freq
    if freq is None:
        raise FrequencyError(
            "a Timestamp does not carry its frequency: fit the stratifier first, or "
            "give freq, e.g. Stratifier.periodic(8, freq='h')."
        )
    ordinals = index_ordinals(pd.DatetimeIndex([parsed]), parse_offset(freq))
    if ordinals is None:
        raise uncountable_steps(freq)
    return int(ordinals[0])


def index_ordinals(
    index: pd.PeriodIndex | pd.DatetimeIndex, offset: BaseOffset
) -> np.ndarray | None:
    """Return the steps since 1970 of each entry; None if they cannot be counted."""
    with quiet_pandas():
        if isinstance(index, pd.PeriodIndex):
            return np.asarray(index.asi8) // index.freq.n
        if isinstance(offset, Tick):
            return nanoseconds(index) // offset.nanos
        period = _period_offset(offset)
        if period is None:
            return None
        return np.asarray(index.to_period(period).asi8) // offset.n


def uncountable_steps(freq: Any) -> FrequencyError:
    """Return the error for a frequency without ordinals."""
    return FrequencyError(
        f"steps of freq={freq!r} cannot be counted from a fixed date, as "
        "Stratifier.periodic needs; use Stratifier.calendar instead."
    )


def nanoseconds(moments: pd.DatetimeIndex) -> np.ndarray:
    """Return nanoseconds since 1970, for an index of any resolution."""
    return moments.to_numpy().astype("datetime64[ns]").astype(np.int64)


def check_one_frequency(starts: Sequence[Start], offset: BaseOffset) -> None:
    """Raise if starts differ in kind or frequency, or have another one than ``offset``.

    Raises
    ------
    MixedFrequencyError
    """
    with quiet_pandas():
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
            f"the series have frequencies {names}; train one model per frequency, "
            "or resample the series to one."
        )
    for freq in carried:
        if freq != (_period_offset(offset) if pd.Period in kinds else offset):
            raise MixedFrequencyError(
                f"the series have frequency {freq.freqstr!r}, but "
                f"freq={offset.freqstr!r} was given; give the frequency of the data."
            )


def _period_offset(offset: BaseOffset) -> BaseOffset | None:
    """Return the offset of the periods that pandas makes of a frequency ('MS': 'M')."""
    try:
        periods = pd.date_range("1970-01-01", periods=1, freq=offset).to_period()
        return periods.freq
    except (ValueError, AttributeError):  # AttributeError: pandas 1.5
        return None
