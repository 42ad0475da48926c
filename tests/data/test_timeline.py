"""Timelines: moments and ordinals of series, for any frequency and start."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from helpers.calendar_steps import PLAIN, moments, next_business_day, plain_steps
from helpers.series import dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from pts_scott.data.offsets import ordinal_of, parse_offset
from pts_scott.data.timeline import Timeline
from pts_scott.errors import MixedFrequencyError


def rows(timeline: Timeline, series: int, length: int) -> pd.DatetimeIndex:
    begin = timeline.origins[series]
    return timeline.moments[begin : begin + length]


@pytest.mark.parametrize(
    "freq", ["h", "2h", "15min", "D", "B", "W-WED", "MS", "QS", "BMS"]
)
def test_timestamps_advance_by_their_offset(freq):
    offset = parse_offset(freq)
    start = pd.Timestamp("2020-02-03") if freq not in ("MS", "QS", "BMS") else None
    start = start or pd.date_range("2020-01-01", periods=1, freq=freq)[0]
    timeline = Timeline.build([start, start + 3 * offset], [20, 10], freq)
    for series, first in enumerate([start, start + 3 * offset]):
        expected = [first, *(first + k * offset for k in range(1, 10))]
        assert list(rows(timeline, series, 10)) == expected
    assert len(timeline.moments) == 20, "both series share one grid"


@pytest.mark.parametrize("freq", ["h", "2h", "15min", "D", "B", "W-WED", "M", "Q"])
def test_periods_advance_by_their_frequency(freq):
    start = pd.Period("2020-02-03", freq)
    timeline = Timeline.build([start + 4, start], [10, 20], freq)
    assert list(rows(timeline, 0, 10)) == [(start + 4 + k).start_time for k in range(10)]
    assert list(rows(timeline, 1, 20)) == [(start + k).start_time for k in range(20)]
    steps = [ordinal_of(start + k) for k in range(5)]
    assert np.diff(steps).tolist() == [1, 1, 1, 1]


@st.composite
def several_moments(draw) -> list[datetime]:
    """Some near the first one, on or between its steps, and some anywhere."""
    first = draw(moments())
    near = st.integers(0, 300).map(lambda hours: first + timedelta(hours=hours))
    return [first, *draw(st.lists(near | moments(), max_size=4))]


@given(st.sampled_from(sorted(PLAIN)), several_moments())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_steps_equal_those_of_plain_datetimes(freq, starts):
    if freq == "B":
        starts = [m if m.weekday() < 5 else next_business_day(m) for m in starts]
    lengths = [7 + 5 * number for number in range(len(starts))]
    expected = [plain_steps(freq, *each) for each in zip(starts, lengths)]
    periods = [pd.Period(moment, freq) for moment in starts]
    timelines = [Timeline.build(periods, lengths, freq)]
    if freq not in ("W-WED", "M", "Q"):  # Timestamps of these mark the end of a step
        begins = [pd.Timestamp(steps[0]) for steps in expected]
        timelines.append(Timeline.build(begins, lengths, freq))
    for timeline in timelines:
        for series, steps in enumerate(expected):
            assert list(rows(timeline, series, lengths[series])) == steps
            begin = timeline.origins[series]
            ordinals = timeline.require_ordinals()[begin : begin + lengths[series]]
            assert (np.diff(ordinals) == 1).all()


def test_business_days_skip_weekends():
    timeline = Timeline.build([pd.Timestamp("2024-01-04")], [4], "B")
    assert [m.day for m in timeline.moments] == [4, 5, 8, 9]


def test_starts_between_the_steps_of_others_get_a_separate_grid():
    starts = [pd.Timestamp("2020-01-01 00:00"), pd.Timestamp("2020-01-01 00:30")]
    timeline = Timeline.build(starts, [5, 5], "h")
    assert list(rows(timeline, 1, 2)) == [starts[1], starts[1] + pd.Timedelta("1h")]


@pytest.mark.parametrize("start", ["2020-01-01", "2020-01-31"])
@pytest.mark.parametrize("freq", ["2MS", "3W-TUE", "2QS", "MS"])
def test_start_between_offsets_advances_like_start_plus_offset(freq, start):
    first, offset = pd.Timestamp(start), parse_offset(freq)
    timeline = Timeline.build([first], [6], freq)
    assert list(timeline.moments) == [first, *(first + k * offset for k in range(1, 6))]


def test_long_gaps_between_series_are_not_stored():
    starts = [pd.Timestamp("2010-01-01"), pd.Timestamp("2020-01-01")]
    timeline = Timeline.build(starts, [50, 70], "s")
    assert len(timeline.moments) == 120
    assert rows(timeline, 1, 70)[0] == starts[1]


def test_series_without_steps_have_no_moments():
    assert len(Timeline.build([pd.Timestamp("2020-01-01")], [0], "D").moments) == 0


def test_mixed_frequencies_of_periods_are_rejected():
    starts = [pd.Period("2020-01-01", "D"), pd.Period("2020-01-01", "h")]
    with pytest.raises(MixedFrequencyError, match="'D'"):
        Timeline.build(starts, [5, 5], "D")


def starts_of(freq: str) -> list:
    """Return a start from the library's datasets: a Period, or a Timestamp with freq."""
    return [next(iter(dataset(np.zeros((1, 3)), freq)))["start"]]


def test_frequency_other_than_that_of_the_data_is_rejected():
    with pytest.raises(MixedFrequencyError, match="give the frequency of the data"):
        Timeline.build(starts_of("D"), [5], "h")


def test_mixed_frequencies_of_library_datasets_are_rejected():
    with pytest.raises(MixedFrequencyError, match="the series have frequencies"):
        Timeline.build(starts_of("D") + starts_of("h"), [5, 5], "h")
