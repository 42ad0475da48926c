"""Policies by period, range, series, hash, single window or function."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.series import dataset

from pts_scott import Stratifier, WindowIndex
from pts_scott.errors import ArgumentError, StratificationError


@pytest.mark.parametrize("kind", ["period", "timestamp"])
@pytest.mark.parametrize("freq", ["h", "D", "B"])
def test_periods_and_timestamps_get_the_same_code(kind, freq):
    moment = pd.Timestamp("2024-05-15")  # a Wednesday
    start = pd.Period(moment, freq) if kind == "period" else moment
    instance = {"item_id": "a", "forecast_start": start}
    assert Stratifier.calendar("weekday").code(instance) == 2
    expected = Stratifier.periodic(5).code({"forecast_start": pd.Period(moment, freq)})
    assert Stratifier.periodic(5, freq=freq).code(instance) == expected


def test_exchange_rate_has_the_papers_32_strata():
    rows = np.ones((8, int(7588 * 0.8)))
    windows = WindowIndex.from_dataset(dataset(rows, "B"), "B", 8, 1)
    assert len((Stratifier.ranges(4) * Stratifier.series()).stratify(windows)) == 32


def test_random_policy_may_leave_a_stratum_empty(windows):
    assert 20 < len(Stratifier.random(30).stratify(windows)) <= 30


@pytest.mark.parametrize(
    "make", [Stratifier.ranges, Stratifier.random, Stratifier.periodic]
)
@pytest.mark.parametrize("count", [0, 1, -3, 2.5, "4"])
def test_fewer_than_two_strata_raise(make, count):
    with pytest.raises(ArgumentError, match="at least 2"):
        make(count)


def test_finest_policy_raises_on_identical_windows():
    entries = [{"item_id": "a", "start": "2020-01-01", "target": np.ones(9)}] * 2
    windows = WindowIndex.from_dataset(entries, "D", 2, 1)
    with pytest.raises(StratificationError, match="its own item_id"):
        Stratifier.finest().stratify(windows)


def raises(item_id, forecast_start, instance):
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, "boom"),
        (lambda *_: [1], "unhashable"),
        (lambda *_: None, "returned None"),
        (lambda *_: float("nan"), "returned nan"),
    ],
)
def test_failing_function_is_reported_with_its_window(function, message, windows):
    with pytest.raises(StratificationError, match=rf"'s0' at 2021-03-01.*{message}"):
        Stratifier.custom(function).stratify(windows)


def is_holiday(item_id, forecast_start, window):
    return bool(window["future_feat_dynamic_real"][:, 0].any())


def test_holidays_can_be_strata():
    days, holidays = np.arange(40), np.isin(np.arange(40), [10, 25, 26])
    entries = [
        {
            "item_id": name,
            "start": "2020-01-01",
            "target": np.sin(days),
            "feat_dynamic_real": holidays[None].astype(float),
        }
        for name in ("a", "b")
    ]
    windows = WindowIndex.from_dataset(entries, "D", 5, 2)
    table = Stratifier.custom(is_holiday).stratify(windows).table()
    # The two days from 9, 10, 24, 25 and 26 on have a holiday, in both series.
    assert sorted(table["windows"]) == [10, 2 * 34 - 10]
    assert sorted(table["label"]) == ["False", "True"]  # as the function names them

    del entries[1]["feat_dynamic_real"]
    windows = WindowIndex.from_dataset(entries, "D", 5, 2)
    with pytest.raises(StratificationError, match="'b' .*future_feat_dynamic_real"):
        Stratifier.custom(is_holiday).stratify(windows)
