"""Labels of leaves: intervals of features as a person would say them."""

from __future__ import annotations

import numpy as np
import pytest

from pts_scott.strata.leaf_labels import leaf_labels


def labels_of(name: str, threshold: float, **listed: tuple) -> list[str]:
    """Return the labels of the two leaves of a tree with one split."""
    nodes = np.array([[0, threshold, 1, 2], [-1, 0, -1, -1], [-1, 0, -1, -1]])
    found = leaf_labels(nodes, [name], listed)
    return [found[1], found[2]]


@pytest.mark.parametrize(
    ("name", "threshold", "expected"),
    [
        ("weekday", 4.5, ["Mon to Fri", "weekend"]),
        ("weekday", 0.5, ["Mon", "Tue to Sun"]),
        ("hour", 11.5, ["hour 0 to 11", "hour from 12"]),
        ("month", 5.5, ["month 1 to 6", "month from 7"]),
        ("day", 0.5, ["day 1", "day from 2"]),
        ("zeros", 0.25, ["share of zeros at most 0.25", "share of zeros above 0.25"]),
        (
            "last value",
            1.3,
            [
                "last value at most +1.3 spreads from level",
                "last value above +1.3 spreads from level",
            ],
        ),
        ("level", np.log1p(20.0), ["level at most 20", "level above 20"]),
        ("spread", 0.5, ["spread at most 0.5", "spread above 0.5"]),
    ],
)
def test_one_split(name, threshold, expected):
    assert labels_of(name, threshold) == expected


def test_series_are_listed():
    values = (*"abcde", "e"), np.array([0.1, 0.9, 0.2, 0.3, 0.35, 0.35])
    few, many = "series b", "4 series such as a, c, d"
    assert labels_of("series", 0.5, series=values) == [many, few]


def test_conditions_on_one_feature_are_merged():
    nodes = np.array(
        [
            [0, 10.5, 1, 2],
            [-1, 0, -1, -1],
            [0, 15.5, 3, 4],
            [-1, 0, -1, -1],
            [-1, 0, -1, -1],
        ]
    )
    assert leaf_labels(nodes, ["hour"])[3] == "hour 11 to 15"


def test_tree_without_a_split_has_one_leaf():
    assert leaf_labels(np.array([[-1, 0, -1, -1]]), ["hour"]) == {0: "all windows"}
