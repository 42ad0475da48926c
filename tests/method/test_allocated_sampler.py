"""Allocated samples: unbiased, with the variance of their formula, for any M and B."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pts_scott import Stratifier
from pts_scott._utils.rng import Generators
from pts_scott.diagnostics.allocation_variance import slot_probabilities
from pts_scott.method.allocation import shares_of, spread_shares
from pts_scott.method.hyperparameters import Hyperparameters
from pts_scott.method.methods import METHODS
from pts_scott.method.places import ReshuffledPlaces
from pts_scott.method.samplers import (
    SAMPLES_TOGETHER,
    AllocatedSampler,
    StratifiedSampler,
)
from pts_scott.strata.policies import Single

DRAWS = 4000
POLICIES = {
    "series": Stratifier.series(),  # 3 strata
    "hour": Stratifier.calendar("hour"),  # 24 strata, more than most samples have windows
    "one": Single(),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gradients_of(strata) -> torch.Tensor:
    """Return two-dimensional gradients whose mean and spread differ between strata."""
    count = int(strata.sizes.sum())
    members = strata.members(np.arange(count))
    scale = 0.2 + 3 * torch.rand(len(strata), generator=generator(1)).double()
    noise = torch.randn(count, 2, generator=generator(2), dtype=torch.float64)
    return scale[members][:, None] * (noise + 0.5)


def exact_moments(strata, gradients):
    """Return the mean, and the mean square, of the gradients in each stratum."""
    count = len(gradients)
    members = torch.from_numpy(strata.members(np.arange(count)))
    means = torch.stack([gradients[members == i].mean(dim=0) for i in range(len(strata))])
    squares = torch.stack(
        [gradients[members == i].square().sum(dim=1).mean() for i in range(len(strata))]
    )
    return means, squares


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("size", [1, 3, 8, 50])
@pytest.mark.parametrize("allocation", ["proportional", "equal", "spread"])
@pytest.mark.parametrize("replacement", [True, False])
def test_samples_are_unbiased_and_have_the_variance_of_the_formula(
    policy, size, allocation, replacement, windows
):
    strata = POLICIES[policy].stratify(windows)
    gradients = gradients_of(strata)
    means, squares = exact_moments(strata, gradients)
    spread = (squares - means.square().sum(dim=1)).clamp(min=0).sqrt()
    shares = shares_of(allocation, strata, spread)
    order = torch.randperm(len(strata), generator=generator(3))
    places = None if replacement else ReshuffledPlaces(strata, generator(4))
    sampler = AllocatedSampler(strata, shares, size, generator(5), places, order)
    found = torch.stack(
        [
            (sample.weights.double()[:, None] * gradients[sample.windows]).sum(dim=0)
            for sample in (sampler.draw() for _ in range(DRAWS))
        ]
    )
    error = found.mean(dim=0) - gradients.mean(dim=0)
    # Four standard errors of independent samples, in 144 comparisons; samples that are
    # stratified together, or drawn without replacement, have less.
    assert bool((error.abs() <= 4 * found.std(dim=0) / DRAWS**0.5 + 1e-12).all())
    ratio = strata.weights / shares
    hits = slot_probabilities(shares, order, size) * ratio
    expected = (strata.weights * ratio * squares).sum()
    expected = float(expected - (hits @ means).square().sum(dim=1).mean()) / size
    if replacement:
        # A variance from 4,000 draws has a relative error of 3 to 5 %.
        assert float(found.var(dim=0).sum()) == pytest.approx(expected, rel=0.15)
    else:
        assert float(found.var(dim=0).sum()) <= 1.15 * expected


@pytest.mark.parametrize("size", [1, 7, 24, 100])
def test_strata_get_their_shares_up_to_rounding(size, windows):
    strata = Stratifier.calendar("hour").stratify(windows)
    shares = torch.rand(len(strata), generator=generator(), dtype=torch.float64) + 0.01
    shares /= shares.sum()
    sampler = AllocatedSampler(strata, shares, size, generator())
    for _ in range(50):
        members = strata.members(sampler.draw().windows.numpy())
        counts = np.bincount(members, minlength=len(strata))
        # A stratum covers at most two n-ths in part, besides those it fills.
        assert np.all(np.abs(counts - size * shares.numpy()) < 2)


@pytest.mark.parametrize("size", [1, 3, 32])
def test_consecutive_samples_are_stratified_together(size, windows):
    strata = Stratifier.calendar("hour").stratify(windows)
    shares = strata.weights
    sampler = AllocatedSampler(strata, shares, size, generator())
    for _ in range(20):
        drawn = [sampler.draw().windows for _ in range(SAMPLES_TOGETHER)]
        members = strata.members(torch.cat(drawn).numpy())
        counts = np.bincount(members, minlength=len(strata))
        expected = SAMPLES_TOGETHER * size * shares.numpy()
        assert np.all(np.abs(counts - expected) < 2)


def test_samples_of_a_block_come_in_random_order(windows):
    strata = Stratifier.series().stratify(windows)
    sampler = AllocatedSampler(strata, strata.weights, 1, generator())
    orders = {
        tuple(
            int(strata.members(sampler.draw().windows.numpy())[0])
            for _ in range(SAMPLES_TOGETHER)
        )
        for _ in range(10)
    }
    assert len(orders) == 10


def test_equal_shares_of_b_windows_per_stratum_are_the_papers_draws(windows):
    strata = Stratifier.calendar("hour").stratify(windows)
    size = 2 * len(strata)
    numbers = Hyperparameters("stratified", batch_size=size, allocation="equal")
    method = METHODS["stratified"](numbers, windows, strata, Generators.from_seed(0))
    anchor = Generators.from_seed(0).anchor
    paper = StratifiedSampler(windows, strata, 2, anchor)
    for _ in range(3):
        found, expected = method.minibatch(), paper.draw()
        assert torch.equal(found.windows, expected.windows)
        assert torch.equal(found.weights, expected.weights)


def test_other_equal_samples_have_b_windows_per_stratum_where_they_fit(windows):
    strata = Stratifier.calendar("hour").stratify(windows)
    shares = shares_of("equal", strata)
    sampler = AllocatedSampler(strata, shares, 3 * len(strata), generator())
    counts = np.bincount(strata.members(sampler.draw().windows.numpy()))
    assert counts.tolist() == [3] * len(strata)


def test_weights_are_those_of_the_strata(windows):
    strata = Stratifier.series().stratify(windows)
    shares = spread_shares(strata.weights, torch.tensor([1.0, 4.0, 2.0]))
    sample = AllocatedSampler(strata, shares, 10, generator()).draw()
    members = strata.members(sample.windows.numpy())
    expected = (strata.weights / (10 * shares))[members]
    torch.testing.assert_close(sample.weights.double(), expected, rtol=1e-6, atol=0)


def test_each_window_of_a_stratum_comes_once_before_any_comes_again(windows):
    strata = Stratifier.series().stratify(windows)
    places = ReshuffledPlaces(strata, generator())
    shares = strata.weights
    sampler = AllocatedSampler(strata, shares, 5, generator(1), places)
    seen: dict[int, list[int]] = {i: [] for i in range(len(strata))}
    for _ in range(100):
        drawn = sampler.draw().windows.numpy()
        for window, stratum in zip(drawn, strata.members(drawn), strict=True):
            seen[int(stratum)].append(int(window))
    for stratum, visited in seen.items():
        size = int(strata.sizes[stratum])
        first, second = visited[:size], visited[size : 2 * size]
        assert sorted(first) == sorted(second)
        assert len(set(first)) == size
        assert first != second, "each pass has its own order"


def test_plain_steps_without_replacement_visit_every_window_once(windows):
    numbers = Hyperparameters("plain", batch_size=1, replacement=False)
    method = METHODS["plain"](numbers, windows, None, Generators.from_seed(0))
    drawn = [int(method.minibatch().windows) for _ in range(len(windows))]
    assert sorted(drawn) == list(range(len(windows)))


@pytest.mark.parametrize("drawn", [0, 3, 256, 816])  # of 816 in a block, 256 at a time
@pytest.mark.parametrize("replacement", [True, False])
def test_samplers_continue_from_a_saved_state(replacement, windows, drawn):
    strata = Stratifier.series().stratify(windows)
    numbers = Hyperparameters(
        "stratified", batch_size=5, allocation="equal", replacement=replacement
    )

    def method(seed):
        return METHODS["stratified"](numbers, windows, strata, Generators.from_seed(seed))

    first, second = method(0), method(1)
    for _ in range(drawn):
        first.minibatch()
    second._generators.load_state_dict(first._generators.state_dict())
    second.load_state_dict(first.state_dict())
    for _ in range(2000):  # beyond those drawn in advance
        found, expected = second.minibatch(), first.minibatch()
        assert torch.equal(found.windows, expected.windows)
        assert torch.equal(found.weights, expected.weights)


def test_samples_do_not_depend_on_how_many_are_split_at_a_time(windows, monkeypatch):
    strata = Stratifier.series().stratify(windows)

    def draws():
        sampler = AllocatedSampler(strata, strata.weights, 4, generator())
        return torch.stack([sampler.draw().windows for _ in range(2000)])

    expected = draws()
    monkeypatch.setattr("pts_scott.method.samplers.SAMPLES_AHEAD", 7)
    assert torch.equal(draws(), expected)


def test_a_sample_that_was_put_back_comes_next(windows):
    strata = Stratifier.series().stratify(windows)
    sampler = AllocatedSampler(strata, strata.weights, 4, generator())
    sample = sampler.draw()
    sampler.put_back(sample)
    assert sampler.draw() is sample
