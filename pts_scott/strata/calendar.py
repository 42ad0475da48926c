"""Calendar policy: strata by calendar parts of the forecast start, and the default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.tseries.offsets import BaseOffset

from pts_scott._utils.arguments import nearest
from pts_scott.data.offsets import moment_of, parse_offset, step_days
from pts_scott.data.window_index import WindowIndex
from pts_scott.errors import ArgumentError, FrequencyError
from pts_scott.strata.codes import Codes
from pts_scott.strata.policy import Policy


class CalendarPart(NamedTuple):
    """How to compute a calendar part.

    Parameters
    ----------
    read
        Returns the part of each moment, as a non-negative integer.
    radix
        Upper limit (exclusive) of its values.
    max_days
        Length of a step, in days, from which on the part no longer distinguishes
        windows.
    """

    read: Callable[[pd.DatetimeIndex], Any]
    radix: int
    max_days: float


CALENDAR_PARTS: dict[str, CalendarPart] = {
    "hour": CalendarPart(lambda m: m.hour, 24, 1),
    "weekday": CalendarPart(lambda m: m.weekday, 7, 7),
    "weekend": CalendarPart(lambda m: m.weekday >= 5, 2, 7),
    "day": CalendarPart(lambda m: m.day - 1, 31, 28),
    "week": CalendarPart(lambda m: m.isocalendar().week - 1, 53, 28),
    "month": CalendarPart(lambda m: m.month - 1, 12, 32),
    "quarter": CalendarPart(lambda m: m.quarter - 1, 4, 93),
    "season": CalendarPart(lambda m: (m.year * 12 + m.month - 1) // 3, 40_000, 93),
    "year": CalendarPart(lambda m: m.year, 10_000, float("inf")),
}


class Calendar(Policy):
    """Strata by a tuple of calendar parts of the forecast start."""

    def __init__(self, parts: Sequence[str]) -> None:
        parts = tuple(parts)
        if not parts:
            raise ArgumentError(
                "Stratifier.calendar() needs at least one part, e.g. "
                "Stratifier.calendar('weekday', 'season')."
            )
        for part in parts:
            if part not in CALENDAR_PARTS:
                hint = nearest(str(part), CALENDAR_PARTS)
                raise ArgumentError(f"{part!r} is not a calendar part. {hint}")
        if len(set(parts)) < len(parts):
            raise ArgumentError(
                f"Stratifier.calendar{parts}: each part may be given only once."
            )
        self.parts = parts
        self._code_cache: dict[pd.Timestamp, int] = {}

    def codes(self, windows: WindowIndex) -> Codes:
        timeline = windows.series.timeline
        self._check_frequency(timeline.offset)
        return Codes(moments=self._encode(timeline.moments))

    def code(self, instance: Mapping[str, Any]) -> int:
        moment = moment_of(instance["forecast_start"])
        if moment not in self._code_cache:
            self._code_cache[moment] = int(self._encode(pd.DatetimeIndex([moment]))[0])
        return self._code_cache[moment]

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        return ", ".join(_part_label(part, moment) for part in self.parts)

    def _encode(self, moments: pd.DatetimeIndex) -> np.ndarray:
        """Return the tuple of parts as one number in mixed radix, without collisions."""
        code = np.zeros(len(moments), dtype=np.int64)
        for part in self.parts:
            read, radix, _ = CALENDAR_PARTS[part]
            code = code * radix + np.asarray(read(moments), dtype=np.int64)
        return code

    def _check_frequency(self, offset: BaseOffset) -> None:
        days = step_days(offset)
        usable = [name for name, part in CALENDAR_PARTS.items() if days < part.max_days]
        for part in self.parts:
            if part not in usable:
                raise FrequencyError(
                    f"{self}: {part!r} does not distinguish steps of "
                    f"freq={offset.freqstr!r}; usable here: {', '.join(usable)}."
                )

    def _arguments(self) -> dict[str, Any]:
        return {"parts": list(self.parts)}

    def __repr__(self) -> str:
        return f"Stratifier.calendar({', '.join(map(repr, self.parts))})"


def _part_label(part: str, moment: pd.Timestamp) -> str:
    if part == "weekday":
        return moment.strftime("%a")
    if part == "season":
        return f"{moment.year}Q{moment.quarter}"
    read = CALENDAR_PARTS[part].read
    value = int(np.asarray(read(pd.DatetimeIndex([moment])))[0])
    return f"{part} {value + (part in ('day', 'week', 'month', 'quarter'))}"


def default_stratifier(freq: object) -> Policy:
    """Return a calendar policy that suits a frequency.

    Weekday and season for steps shorter than a day, as the paper does for hourly
    data; season for days and weeks, month for months, quarter for quarters, and
    year for longer steps.
    """
    days = step_days(parse_offset(freq))
    for limit, parts in (
        (1.0, ("weekday", "season")),
        (28.0, ("season",)),
        (32.0, ("month",)),
        (93.0, ("quarter",)),
    ):
        if days < limit:
            return Calendar(parts)
    return Calendar(("year",))
