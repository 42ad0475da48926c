"""Evenly spaced numbers."""

from __future__ import annotations

import pytest

from pts_scott._utils.spacing import evenly_spaced


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (9, 3, [0, 4, 8]),
        (10, 4, [0, 3, 6, 9]),
        (4, 3, [0, 1, 3]),
        (5, 7, [0, 1, 2, 3, 4]),
        (1, 3, [0]),
        (7, 1, [0]),
    ],
)
def test_evenly_spaced_numbers_include_both_ends(count, size, expected):
    assert evenly_spaced(count, size).tolist() == expected


def test_as_many_numbers_as_asked_for_where_there_are_more():
    chosen = evenly_spaced(10**9, 1024)
    assert len(chosen) == 1024
    assert chosen[0] == 0
    assert chosen[-1] == 10**9 - 1
