"""Group variances: equal to those of whole groups, however the rows arrive."""

from __future__ import annotations

import math

import pytest
import torch

from pts_scott.diagnostics.group_variance import (
    GroupSquares,
    split_sample,
    sum_of_group_means,
)


@pytest.mark.parametrize("part", [1, 3, 5, 20])
def test_squares_do_not_depend_on_how_rows_arrive(part):
    generator = torch.Generator().manual_seed(0)
    rows = 1e3 + torch.randn(20, 4, 2, generator=generator, dtype=torch.float64)
    sizes = [7, 1, 12]
    squares = GroupSquares(sizes)
    for begin in range(0, len(rows), part):
        squares.add((rows[begin : begin + part, :3], rows[begin : begin + part, 3:]))
    expected = [(group - group.mean(dim=0)).square().sum() for group in rows.split(sizes)]
    torch.testing.assert_close(torch.stack(squares.squares), torch.stack(expected))


@pytest.mark.parametrize(
    ("count", "expected"), [(2, (1, 2)), (4, (2, 2)), (7, (2, 3)), (200, (3, 66))]
)
def test_sample_is_split_into_groups_of_about_64(count, expected):
    assert split_sample(count) == expected


def test_estimate_has_the_error_of_its_groups():
    values = torch.tensor([[1.0, 3.0], [5.0, 5.0]])
    estimate = sum_of_group_means(values, exact=False)
    assert (estimate.value, estimate.squared_error) == (7.0, 1.0)
    assert sum_of_group_means(values, exact=True).standard_error == 0.0
    assert math.isnan(sum_of_group_means(values[:, :1], exact=False).standard_error)
    both = estimate + estimate
    assert (both.value, both.standard_error) == (14.0, math.sqrt(2.0))
