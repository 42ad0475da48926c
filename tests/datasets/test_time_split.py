"""Splits by time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.loaded_series import load_real, load_targets, moments, ramp

from pts_scott import Stratifier, WindowIndex
from pts_scott.data.offsets import parse_offset
from pts_scott.errors import ArgumentError, ScottWarning, SplitError


def split(data, context=6, prediction=2, **shares):
    return data.split(context, prediction, **shares)


def test_split_cuts_all_series_at_the_same_moments():
    data = load_targets(ramp(100), ramp(60), starts=["2020-01-01", "2020-01-02 16:00"])
    parts = split(data)
    first = pd.Timestamp("2020-01-01")
    assert parts.train_end == first + pd.Timedelta(80, "h")
    assert parts.tune_begin == first + pd.Timedelta(72, "h")
    for row in range(2):
        times = moments(data, row)
        for part, begin, end in (
            (parts.train, times[0], parts.train_end),
            (parts.fit, times[0], parts.tune_begin),
            (parts.tuning, parts.tune_begin - pd.Timedelta(6, "h"), parts.train_end),
            (parts.test, parts.train_end, times[-1] + pd.Timedelta(1, "h")),
        ):
            inside = [begin <= time < end for time in times]
            np.testing.assert_array_equal(part.targets[row], data.targets[row][inside])
            assert part.starts[row] == max(begin, times[0])
    np.testing.assert_array_equal(parts.backtest.targets[1], data.targets[1])


@pytest.mark.parametrize("freq", ["h", "B", "MS", "W-WED", "15min"])
def test_training_sees_no_step_of_a_test_window(freq):
    starts = list(pd.date_range("2020-01-01", periods=3, freq=parse_offset(freq)))
    data = load_targets(ramp(150), ramp(140) + 5, ramp(147), freq=freq, starts=starts)
    parts = split(data)
    for row in range(3):
        seen = set(moments(parts.train, row))
        assert not seen & set(moments(parts.test, row))
        assert max(moments(parts.fit, row)) < parts.tune_begin <= max(seen)
        whole = moments(parts.train, row) + moments(parts.test, row)
        assert whole == moments(data, row), "no step lies between the two"


@pytest.mark.parametrize("freq", ["h", "B", "MS"])
def test_tuning_predicts_only_the_last_tenth_of_the_training_range(freq):
    data = load_targets(ramp(150), ramp(150) * 2, freq=freq)
    parts = split(data)
    windows = WindowIndex.from_dataset(parts.tuning.entries(), data.freq, 6, 2)
    rows, steps = windows.locate(torch.arange(len(windows)))
    times = np.array([moments(parts.tuning, row) for row in range(2)])
    first = times[rows.numpy(), steps.numpy()]
    last = times[rows.numpy(), steps.numpy() + 1]
    assert first.min() == parts.tune_begin
    assert last.max() < parts.train_end
    assert len(set(moments(parts.train)) - set(moments(parts.fit))) == 12  # of 120
    assert len(windows) == parts.windows(parts.tuning)


def test_backtest_forecasts_lie_in_the_test_range():
    data = load_targets(ramp(100), ramp(95), ramp(84))
    with pytest.warns(ScottWarning, match=r"left out of it \(test: 's2'\)"):
        parts = split(data)
    assert parts.backtest.item_ids == parts.test.item_ids == ("s0", "s1")
    for row in range(2):
        assert moments(parts.backtest, row)[-2] >= parts.train_end


def test_series_without_a_window_in_a_part_are_left_out_of_it():
    late = pd.Timestamp("2020-01-01") + pd.Timedelta(85, "h")
    data = load_targets(
        ramp(100), ramp(15), ramp(30), starts=["2020-01-01", late, "2020-01-01"]
    )
    words = r"train: 's1'; test: 's2'; fit: 's1'; tuning: 's1', 's2'\)"
    with pytest.warns(ScottWarning, match=words):
        parts = split(data)
    assert parts.left_out["tuning"] == ("s1", "s2")
    assert "tuning: 's1', 's2'" in str(parts)
    assert parts.train.item_ids == ("s0", "s2")
    assert parts.test.item_ids == ("s0", "s1")
    assert parts.tuning.item_ids == ("s0",)


@pytest.mark.parametrize(
    ("length", "shares", "words"),
    [
        (6, {}, "train part has 4 of the 6 steps .* needs 8 .*context_length=6"),
        (30, {}, "test part has 6 of the 30 steps"),
        (40, {"tune": 0.9}, "fit part has 4 of the 40 steps"),
        (50, {"tune": 0.04}, "tuning part has 7 of the 50 steps, including 6 of context"),
    ],
)
def test_too_short_series_error_says_what_a_window_needs(length, shares, words):
    with pytest.raises(SplitError, match=words):
        split(load_targets(ramp(length)), **shares)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"context_length": 0, "prediction_length": 2}, "context_length=0"),
        ({"context_length": 2, "prediction_length": 1.5}, "prediction_length=1.5"),
        ({"context_length": 2, "prediction_length": 2, "train": 1.5}, "train=1.5"),
        ({"context_length": 2, "prediction_length": 2, "tune": 0}, "tune=0"),
    ],
)
def test_arguments_of_a_split_are_checked(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        load_targets(ramp(100)).split(**arguments)


def test_printed_split_lists_its_parts():
    text = str(split(load_targets(ramp(100), ramp(100) * 2)))
    assert "training ends before 2020-01-04 08:00" in text
    assert "test    2020-01-04 08:00 to 2020-01-05 03:00  2 series  26 windows" in text


def test_five_weeks_of_electricity_can_be_split():
    parts = load_real("electricity-321x840", constant="drop").split(72, 24)
    assert [len(part.targets[0]) for part in (parts.train, parts.fit, parts.test)] == [
        672,
        605,
        168,
    ]
    assert len(parts.tuning.targets[0]) == 72 + 67


@pytest.mark.parametrize(
    ("name", "strata"), [("traffic-21x17544", 49), ("electricity-2x26304", 70)]
)
def test_training_range_has_the_papers_strata(name, strata):
    data = load_real(name)
    train = data.split(72, 24).train
    windows = WindowIndex.from_dataset(train.entries(), data.freq, 72, 24)
    found = Stratifier.calendar("weekday", "season").stratify(windows)
    assert len(found.weights) == strata
