"""Variances from a sample of gradients: unbiased, with honest standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pts_scott.diagnostics.allocation_variance import (
    StratumMoments,
    control_variate_variance,
    relative_variance,
    slot_probabilities,
    uniform_variance,
)
from pts_scott.diagnostics.noise_scale import NoiseScale

WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
MEANS = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]], dtype=torch.float64)
SPREAD = torch.tensor([1.0, 0.5, 4.0], dtype=torch.float64)  # per dimension
SHARES = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
ORDER = torch.tensor([2, 0, 1])


def draw(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw gradients of uniform windows, and their strata."""
    members = torch.multinomial(WEIGHTS, count, replacement=True, generator=generator)
    noise = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return MEANS[members] + SPREAD[members][:, None] * noise, members


def exact_relative(size: int) -> float:
    squares = MEANS.square().sum(dim=1) + 2 * SPREAD**2
    mean = WEIGHTS @ MEANS
    uniform = float(WEIGHTS @ squares - mean @ mean)
    ratio = WEIGHTS / SHARES
    hits = slot_probabilities(SHARES, ORDER, size) * ratio
    slots = (hits @ MEANS).square().sum(dim=1).mean()
    return float((WEIGHTS * ratio) @ squares - slots) / uniform


@pytest.mark.parametrize("size", [1, 4, 5, 40])
def test_estimates_are_unbiased_and_their_errors_honest(size):
    generator = torch.Generator().manual_seed(size)
    found = [
        relative_variance(*draw(400, generator), WEIGHTS, SHARES, ORDER, size)
        for _ in range(400)
    ]
    values = np.array([x.value for x in found])
    errors = np.array([x.standard_error for x in found])
    # The ratio of two estimates has a bias of second order, 1/400 here.
    assert values.mean() == pytest.approx(
        exact_relative(size), abs=4 * values.std() / 20 + 0.01
    )
    assert errors.mean() == pytest.approx(values.std(), rel=0.25)


def test_uniform_layout_is_uniform_sampling():
    sketches, _ = draw(200, torch.Generator().manual_seed(0))
    one = torch.ones(1, dtype=torch.float64)
    members = torch.zeros(200, dtype=torch.long)
    found = relative_variance(sketches, members, one, one, torch.arange(1), 8)
    assert found.value == pytest.approx(1.0)
    assert not found.is_gain


@pytest.mark.parametrize("size", [1, 3, 10])
def test_probabilities_of_an_nth_sum_to_one(size):
    hits = slot_probabilities(SHARES, ORDER, size)
    torch.testing.assert_close(hits.sum(dim=1), torch.ones(size, dtype=torch.float64))
    torch.testing.assert_close(hits.mean(dim=0), SHARES)
    assert float(hits[0, 2]) > 0, "the first stratum of the order begins"


def test_spread_is_that_of_the_strata():
    sketches, members = draw(200_000, torch.Generator().manual_seed(0))
    moments = StratumMoments.of(sketches, members, 3)
    # Samples much larger than the number of strata: σ_i alone.
    expected = math.sqrt(2) * SPREAD
    torch.testing.assert_close(moments.spread(10**6), expected, rtol=0.02, atol=0)
    # One window: the root mean square, as in importance sampling.
    expected = (MEANS.square().sum(dim=1) + 2 * SPREAD**2).sqrt()
    torch.testing.assert_close(moments.spread(1), expected, rtol=0.02, atol=0)


def test_spread_of_a_stratum_without_windows_is_the_pooled_one():
    sketches, members = draw(1000, torch.Generator().manual_seed(0))
    moments = StratumMoments.of(sketches, members, 4)  # the fourth has none
    spread = moments.spread(1)
    pooled = float(sketches.square().sum(dim=1).mean().sqrt())
    assert float(spread[3]) == pytest.approx(pooled)
    assert bool(spread.isfinite().all())


def test_few_windows_are_shrunk_towards_the_pooled_spread():
    rows = torch.tensor([[10.0], [-10.0], [1.0], [-1.0]] + [[1.0], [-1.0]] * 50)
    members = torch.tensor([0, 0] + [1] * 102)
    spread = StratumMoments.of(rows.double(), members, 2).spread(10**6)
    own = float(rows[:2].std())
    assert float(spread[1]) < float(spread[0]) < own


def test_order_puts_like_strata_beside_each_other():
    means = torch.tensor([0.0, 10.0, 1.0, 9.0, 2.0], dtype=torch.float64)
    moments = StratumMoments(
        counts=torch.ones(5), squares=means**2, means=means[:, None], noise=torch.zeros(5)
    )
    order = moments.order(torch.ones(5, dtype=torch.float64)).tolist()
    assert order in ([0, 2, 4, 3, 1], [1, 3, 4, 2, 0])


def test_noise_scale_is_variance_by_squared_mean():
    generator = torch.Generator().manual_seed(0)
    rows = 3.0 + 2.0 * torch.randn(100_000, 1, generator=generator, dtype=torch.float64)
    assert NoiseScale.of(rows).value == pytest.approx(4 / 9, rel=0.02)
    assert uniform_variance(rows) == pytest.approx(4.0, rel=0.02)


def test_noise_scale_of_a_mean_that_cannot_be_told_from_zero_is_infinite():
    rows = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    assert math.isinf(NoiseScale.of(rows).value)


@pytest.mark.parametrize("best", [0.05, 0.4, 1.0])
@pytest.mark.parametrize("change", [0.0, 1e-3, 0.3, 2.0])
def test_control_variate_is_best_at_its_formula_and_never_below_its_anchor(best, change):
    found = control_variate_variance(best, change)
    anchors = np.geomspace(1e-4, 1e6, 20_001)
    scanned = ((2 + anchors) * (best / anchors + change)).min()
    assert found == pytest.approx(scanned, rel=1e-3)
    assert found >= best * (1 - 1e-12)
