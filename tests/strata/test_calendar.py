"""Calendar policy: parts of the date, strata of the paper, and the default."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.calendar_steps import moments, next_business_day, plain_steps
from helpers.series import dataset
from helpers.strata import PARTS_OF
from hypothesis import given, settings
from hypothesis import strategies as st

from pts_scott import Stratifier, WindowIndex
from pts_scott.errors import ArgumentError, FrequencyError
from pts_scott.strata.calendar import CALENDAR_PARTS, default_stratifier

# Each calendar part in plain Python.
PLAIN_PARTS = {
    "hour": lambda m: m.hour,
    "weekday": lambda m: m.weekday(),
    "weekend": lambda m: m.weekday() >= 5,
    "day": lambda m: m.day - 1,
    "week": lambda m: m.isocalendar()[1] - 1,
    "month": lambda m: m.month - 1,
    "quarter": lambda m: (m.month - 1) // 3,
    "season": lambda m: m.year * 4 + (m.month - 1) // 3,
    "year": lambda m: m.year,
}


@given(st.sampled_from(sorted(PARTS_OF)), moments())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_calendar_parts_match_plain_datetimes(freq, first):
    if freq == "B" and first.weekday() >= 5:
        first = next_business_day(first)
    assert set(PLAIN_PARTS) == set(CALENDAR_PARTS)
    entry = {"start": pd.Period(first, freq), "target": np.zeros(30)}
    windows = WindowIndex.from_dataset([entry], freq, 2, 1)
    starts = plain_steps(freq, first, 30)[2:]
    for part in PARTS_OF[freq]:
        expected = [int(PLAIN_PARTS[part](moment)) for moment in starts]
        codes = Stratifier.calendar(part).codes(windows).expand(windows)
        assert codes.tolist() == expected, part


def hourly(hours: int, start: str) -> WindowIndex:
    """Return the paper's windows of the first 80 % of an hourly benchmark: 72 + 24."""
    rows = np.ones((2, int(hours * 0.8)))
    return WindowIndex.from_dataset(dataset(rows, "h", start), "h", 72, 24)


def test_traffic_has_the_papers_49_strata():
    policy = Stratifier.calendar("weekday", "season")
    assert len(policy.stratify(hourly(17544, "2015-01-01"))) == 49


def test_electricity_has_the_papers_70_strata():
    policy = Stratifier.calendar("weekday", "season")
    assert len(policy.stratify(hourly(26304, "2012-01-01"))) == 70


def test_season_counts_through_time():
    rows = np.ones((1, 2 * 366 * 24))
    windows = WindowIndex.from_dataset(dataset(rows, "h", "2020-01-01"), "h", 1, 1)
    season = Stratifier.calendar("season").stratify(windows)
    quarter = Stratifier.calendar("quarter").stratify(windows)
    assert (len(season), len(quarter)) == (9, 4)  # 732 days extend into a ninth season


def test_business_day_series_have_five_weekdays():
    rows = np.ones((1, 300))
    entry = {"start": pd.Timestamp("2024-01-01"), "target": rows[0]}
    windows = WindowIndex.from_dataset([entry], "B", 3, 1)
    assert len(Stratifier.calendar("weekday").stratify(windows)) == 5


@pytest.mark.parametrize(
    ("freq", "expected"),
    [
        ("15min", "Stratifier.calendar('weekday', 'season')"),
        ("h", "Stratifier.calendar('weekday', 'season')"),
        ("D", "Stratifier.calendar('season')"),
        ("B", "Stratifier.calendar('season')"),
        ("W", "Stratifier.calendar('season')"),
        ("MS", "Stratifier.calendar('month')"),
        ("QS", "Stratifier.calendar('quarter')"),
    ],
)
def test_default_policy_suits_the_frequency(freq, expected):
    assert repr(default_stratifier(freq)) == expected


def test_calendar_accepts_a_list_of_parts():
    assert (
        repr(Stratifier.calendar(["hour", "day"])) == "Stratifier.calendar('hour', 'day')"
    )


def test_unknown_calendar_part_raises_with_the_nearest_name():
    with pytest.raises(ArgumentError, match="'weekday'"):
        Stratifier.calendar("weekdy")


@pytest.mark.parametrize("parts", [(), ("hour", "hour")])
def test_missing_or_repeated_calendar_part_raises(parts):
    with pytest.raises(ArgumentError, match="part"):
        Stratifier.calendar(*parts)


@pytest.mark.parametrize(
    ("freq", "part"), [("D", "hour"), ("W", "weekday"), ("MS", "week"), ("YS", "month")]
)
def test_calendar_part_too_fine_for_the_frequency_raises(freq, part):
    entry = {"start": pd.Timestamp("2020-01-01"), "target": np.ones(40)}
    windows = WindowIndex.from_dataset([entry], freq.replace("YS", "AS"), 2, 1)
    with pytest.raises(FrequencyError, match="usable here"):
        Stratifier.calendar(part).stratify(windows)
