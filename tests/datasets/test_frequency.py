"""Frequencies: inferred from timestamps, and checked against them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.loaded_series import assert_targets, hourly_frame

from pts_scott.data.offsets import parse_offset
from pts_scott.datasets.tables import series_from_frame
from pts_scott.errors import FileLayoutError, FrequencyError


@pytest.mark.parametrize("freq", ["h", "15min", "D", "B", "W-WED", "MS", "M", "QS", "2h"])
def test_frequency_is_inferred(freq):
    offset = parse_offset(freq)
    times = pd.date_range("2020-01-01", periods=30, freq=offset)
    read = series_from_frame(pd.DataFrame({"date": times, "a": np.arange(30.0)}))
    assert len(read.targets[0]) == 30
    steps = pd.date_range(times[0], periods=30, freq=parse_offset(read.freq))
    assert list(steps) == list(times)


@pytest.mark.parametrize("freq", ["h", "B", "MS", "M"])
def test_frequency_is_inferred_across_gaps(freq):
    times = pd.date_range("2020-01-01", periods=30, freq=parse_offset(freq))
    frame = pd.DataFrame({"date": times, "a": np.arange(30.0)})
    read = series_from_frame(frame.drop([5, 17]))
    assert parse_offset(read.freq) == parse_offset(freq)
    expected = np.arange(30.0)
    expected[[5, 17]] = np.nan
    assert_targets(read, [expected])


@pytest.mark.parametrize(
    ("freq", "moves"),
    [("M", "MS"), ("Q", "QS"), ("Y", "YS"), ("W-SUN", "W-MON")],
)
def test_periods_dated_by_their_first_day_are_spaced_by_first_days(freq, moves):
    start = {"W-SUN": "2024-01-01"}.get(freq, "2020-01-01")
    read = series_from_frame(pd.DataFrame({"a": np.arange(5.0)}), start, freq)
    expected = pd.date_range(start, periods=5, freq=parse_offset(moves))
    steps = pd.date_range(start, periods=5, freq=parse_offset(read.freq))
    assert list(steps) == list(expected)


def test_timestamp_between_two_steps_is_named():
    frame = hourly_frame(5)
    frame.loc[3, "timestamp"] += pd.Timedelta("10min")
    with pytest.raises(FileLayoutError, match="row 3 .* 03:10:00, .* freq='h' after"):
        series_from_frame(frame, freq="h")
    with pytest.raises(FileLayoutError, match="row 1 .* freq='D'"):
        series_from_frame(hourly_frame(5), freq="D")
    with pytest.raises(FileLayoutError, match="row 1 .* freq='MS'"):
        series_from_frame(hourly_frame(5), freq="MS")


def test_far_too_fine_frequency_is_rejected_before_allocating_memory():
    with pytest.raises(FrequencyError, match="turns the 5 rows .* into 14,400,001 steps"):
        series_from_frame(
            hourly_frame(5), freq="ms" if parse_offset("ms").nanos == 10**6 else "L"
        )
