"""Steps of time series in plain Python datetimes, without pandas."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from hypothesis import strategies as st


def first_of(moment: datetime, months: int) -> datetime:
    """Midnight of the first day of a block of months."""
    return datetime(moment.year, (moment.month - 1) // months * months + 1, 1)


def months_later(moment: datetime, months: int) -> datetime:
    year, month = divmod(moment.year * 12 + moment.month - 1 + months, 12)
    return datetime(year, month + 1, 1)


def next_business_day(moment: datetime) -> datetime:
    return moment + timedelta(days=(1, 1, 1, 1, 3, 2, 1)[moment.weekday()])


def midnight(moment: datetime) -> datetime:
    return datetime(moment.year, moment.month, moment.day)


# For each frequency: the beginning of the step that contains a moment, and the beginning
# of the next step.
PLAIN: dict[
    str, tuple[Callable[[datetime], datetime], Callable[[datetime], datetime]]
] = {
    "15min": (lambda m: m, lambda m: m + timedelta(minutes=15)),
    "h": (lambda m: m.replace(minute=0), lambda m: m + timedelta(hours=1)),
    "3h": (lambda m: m.replace(minute=0), lambda m: m + timedelta(hours=3)),
    "D": (midnight, lambda m: m + timedelta(days=1)),
    "2D": (midnight, lambda m: m + timedelta(days=2)),
    "B": (midnight, next_business_day),
    "W-WED": (
        lambda m: midnight(m) - timedelta(days=(m.weekday() - 3) % 7),
        lambda m: m + timedelta(days=7),
    ),
    "M": (lambda m: first_of(m, 1), lambda m: months_later(m, 1)),
    "Q": (lambda m: first_of(m, 3), lambda m: months_later(m, 3)),
}


def plain_steps(freq: str, moment: datetime, length: int) -> list[datetime]:
    """Return the beginnings of consecutive steps."""
    begin, after = PLAIN[freq]
    steps = [begin(moment)]
    while len(steps) < length:
        steps.append(after(steps[-1]))
    return steps


@st.composite
def moments(draw) -> datetime:
    """Any minute of four centuries, often one near a leap day or a new year."""
    day = draw(
        st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1))
        | st.builds(
            lambda year, days: datetime(year, 2, 28) + timedelta(days=days),
            st.sampled_from([1896, 1900, 2000, 2023, 2024, 2100]),
            st.integers(-60, 3),
        )
    )
    return day.replace(second=0, microsecond=0)
