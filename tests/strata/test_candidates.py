"""Candidate policies: those that suit the series and their frequency."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pts_scott import Stratifier, WindowIndex
from pts_scott.strata.candidates import MAX_SERIES, candidate_policies


def index(freq: str, series: int = 3, length: int = 60) -> WindowIndex:
    entries = [
        {
            "item_id": str(k),
            "start": pd.Timestamp("2021-01-04"),
            "target": np.arange(length),
        }
        for k in range(series)
    ]
    return WindowIndex.from_dataset(entries, freq, 4, 2)


@pytest.mark.parametrize(
    ("freq", "expected"),
    [
        (
            "h",
            [
                "series()",
                "series() * calendar('weekend')",
                "calendar('hour')",
                "calendar('weekday', 'season')",
                "learned(32)",
            ],
        ),
        (
            "D",
            [
                "series()",
                "series() * calendar('weekend')",
                "calendar('season')",
                "learned(32)",
            ],
        ),
        ("B", ["series()", "calendar('season')", "learned(32)"]),
        ("MS", ["series()", "calendar('month')", "learned(32)"]),
    ],
)
def test_candidates_suit_the_frequency(freq, expected):
    windows = index(freq, length=300)
    policies = candidate_policies(windows, None)
    assert list(policies) == expected
    for policy in policies.values():
        if not policy.needs_gradients:
            assert len(policy.stratify(windows)) > 1


def test_one_series_is_no_stratum():
    assert "series()" not in candidate_policies(index("h", series=1), None)


def test_many_series_are_left_out():
    many = index("h", series=MAX_SERIES + 1, length=8)
    assert not any("series" in name for name in candidate_policies(many, None))


def test_users_policy_comes_first():
    given = Stratifier.periodic(4)
    assert next(iter(candidate_policies(index("h"), given))) == "periodic(4)"
