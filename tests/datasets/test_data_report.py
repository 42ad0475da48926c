"""Reports of missing values and zeros."""

from __future__ import annotations

import numpy as np
import pandas as pd
from helpers.loaded_series import load_real, load_targets, ramp

from pts_scott import datasets


def test_report_counts_missing_values_and_zeros():
    first, second = ramp(12), ramp(12)
    first[[2, 3, 4, 8]] = np.nan
    second[[0, 1, 7]] = 0
    first[7] = 0
    report = load_targets(first, second).report()
    rows = report.table.set_index("item_id")
    assert tuple(rows.loc["s0"])[1:] == (12, 4, 3, 1, 1)
    assert tuple(rows.loc["s1"])[1:] == (12, 0, 0, 3, 2)
    assert list(report.all_zero) == [pd.Timestamp("2020-01-01 07:00")]
    stretch = report.longest_missing
    assert (stretch.item_id, stretch.steps, stretch.begin.hour, stretch.end.hour) == (
        "s0",
        3,
        2,
        4,
    )
    text = str(report)
    assert "2 series of 12 steps of freq='h', 2020-01-01 to 2020-01-01 11:00" in text
    assert "4 values (16.67%) are missing, in 1 series" in text
    assert "Zero more than 20% of the time: 1 series, 's1'" in text
    assert "All series are zero at 1 step: '2020-01-01 07:00'" in text


def test_report_of_clean_series_is_short():
    text = str(load_targets(ramp(9)).report())
    assert "No value is missing." in text
    assert "No value is zero." in text
    assert len(text.splitlines()) == 3


def test_gaps_in_time_are_reported():
    times = pd.date_range("2020-01-01", periods=9).delete([1, 2])
    data = datasets.load(pd.DataFrame({"date": times, "a": ramp(7)}))
    assert "2 steps of series 'a', 2020-01-02 to 2020-01-03" in str(data.report())


def test_hours_without_any_traffic_are_reported():
    report = load_real("traffic-21x17544").report()
    assert len(report.all_zero) == 15
    assert "All series are zero at 15 steps" in str(report)


def test_clients_that_are_often_zero_are_named():
    text = str(load_real("electricity-321x840", constant="keep").report())
    assert "Zero more than 20% of the time: 7 series" in text
