"""Evenly spaced numbers."""

from __future__ import annotations

import pytest
import torch

from pts_scott._utils.spacing import evenly_spaced, spaced_draws


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


@pytest.mark.parametrize(("count", "size"), [(10, 4), (1000, 7), (5, 5), (3, 12)])
def test_spaced_draws_are_uniform_and_ordered(count, size):
    generator = torch.Generator().manual_seed(0)
    drawn = [spaced_draws(count, size, generator) for _ in range(4000)]
    assert all(bool((x.diff() >= 0).all()) for x in drawn)
    counts = torch.bincount(torch.cat(drawn), minlength=count).double()
    expected = 4000 * size / count
    # A count is a sum of independent draws: its variance is at most its mean.
    assert float((counts - expected).abs().max()) <= 5 * expected**0.5
