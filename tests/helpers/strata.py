"""What tests of policies share."""

from __future__ import annotations

from pts_scott.strata.calendar import CALENDAR_PARTS

# Calendar parts that distinguish the steps of each frequency.
PARTS_OF = {
    "15min": tuple(CALENDAR_PARTS),
    "h": tuple(CALENDAR_PARTS),
    "3h": tuple(CALENDAR_PARTS),
    "D": ("weekday", "weekend", "day", "week", "month", "quarter", "season", "year"),
    "B": ("weekday", "day", "week", "month", "quarter", "season", "year"),
    "W-WED": ("day", "week", "month", "quarter", "season", "year"),
    "M": ("month", "quarter", "season", "year"),
    "Q": ("quarter", "season", "year"),
}
