"""Samplers: unbiased weights, b windows per stratum, and streams that can be resumed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pts_scott import Stratifier, WindowIndex
from pts_scott.method.samplers import (
    DRAWN_AHEAD,
    FullSampler,
    Sampler,
    StratifiedSampler,
    UniformSampler,
    WeightedUniformSampler,
)
from pts_scott.strata.partition import Strata

B = 2  # windows per stratum
SIZE = 5  # windows in a uniform sample


def strata_of(windows: WindowIndex) -> Strata:
    strata = Stratifier.calendar("hour").stratify(windows)
    assert len(set(strata.sizes.tolist())) > 1, "the weights differ"
    return strata


def make_sampler(
    name: str, windows: WindowIndex, generator: torch.Generator | None = None
) -> Sampler:
    generator = generator or torch.Generator().manual_seed(0)
    if name == "stratified":
        return StratifiedSampler(windows, strata_of(windows), B, generator)
    if name == "full":
        return FullSampler(windows)
    kinds = {"uniform": UniformSampler, "weighted": WeightedUniformSampler}
    return kinds[name](windows, SIZE, generator)


ALL = ["uniform", "weighted", "stratified", "full"]


@pytest.mark.parametrize("name", ALL)
def test_sample_has_the_size_of_its_sampler(name, windows):
    sampler = make_sampler(name, windows)
    for _ in range(3):
        sample = sampler.draw()
        assert sample.windows.shape == (sampler.size,)
        assert sample.windows.min() >= 0
        assert sample.windows.max() < len(windows)
        assert (sample.weights is not None) is sampler.is_weighted


@pytest.mark.parametrize("name", ["weighted", "stratified", "full"])
def test_weights_sum_to_one(name, windows):
    weights = make_sampler(name, windows).draw().weights
    assert weights.dtype == windows.series.dtype
    assert bool((weights > 0).all())
    assert float(weights.sum()) == pytest.approx(1.0, rel=1e-12)


def test_stratified_sample_has_b_windows_per_stratum(windows):
    sampler, strata = make_sampler("stratified", windows), strata_of(windows)
    members = strata.order.split(strata.sizes.tolist())
    for _ in range(5):
        sample = sampler.draw()
        parts = sample.windows.reshape(len(strata), B)
        weights = sample.weights.reshape(len(strata), B)
        for stratum, part, share in zip(members, parts, weights, strict=True):
            assert bool(torch.isin(part, stratum).all())
            expected = len(stratum) / len(windows) / B
            assert share.tolist() == pytest.approx([expected] * B)


def test_stratified_draws_are_uniform_within_a_stratum(windows):
    sampler, strata = make_sampler("stratified", windows), strata_of(windows)
    repeats = 4000
    samples = torch.stack([sampler.draw().windows for _ in range(repeats)])
    counts = np.bincount(samples.flatten().numpy(), minlength=len(windows))
    for stratum in strata.order.split(strata.sizes.tolist()):
        p, draws = 1 / len(stratum), repeats * B
        error = np.sqrt(draws * p * (1 - p))
        # Five standard errors: one of 114 windows fails in about 15,000 runs.
        assert np.abs(counts[stratum.numpy()] - draws * p).max() <= 5 * error


def test_samples_differ_from_each_other(windows):
    for name in ("uniform", "weighted", "stratified"):
        sampler = make_sampler(name, windows)
        assert not torch.equal(sampler.draw().windows, sampler.draw().windows)


def test_full_sample_has_every_window_once(windows):
    sample = make_sampler("full", windows).draw()
    assert sample.windows.tolist() == list(range(len(windows)))


@pytest.mark.parametrize("name", ALL)
def test_state_dict_resumes_the_stream(name, windows):
    generator = torch.Generator().manual_seed(7)
    sampler = make_sampler(name, windows, generator)
    for _ in range(3):
        sampler.draw()
    state, position = sampler.state_dict(), generator.get_state()
    # More than the stratified sampler draws ahead.
    expected = [sampler.draw().windows for _ in range(200)]

    other = torch.Generator()
    resumed = make_sampler(name, windows, other)
    other.set_state(position)
    resumed.load_state_dict(state)
    found = [resumed.draw().windows for _ in range(200)]
    assert all(map(torch.equal, found, expected))


def test_windows_that_were_put_back_come_first_and_survive_a_checkpoint(windows):
    sampler = make_sampler("uniform", windows)
    sample = sampler.draw()
    first = sample.windows
    sampler.put_back(sample)
    state = sampler.state_dict()
    assert sampler.draw().windows is first
    assert not torch.equal(sampler.draw().windows, first), "they come once"
    other = torch.Generator().manual_seed(1)  # which would draw others
    resumed = make_sampler("uniform", windows, other)
    resumed.load_state_dict(state)
    assert torch.equal(resumed.draw().windows, first)


def test_samples_drawn_ahead_come_in_the_order_of_their_draws(windows):
    sampler, strata = make_sampler("stratified", windows), strata_of(windows)
    times = DRAWN_AHEAD // sampler.size
    assert times > 4
    drawn = strata.draw(B, torch.Generator().manual_seed(0), times).reshape(times, -1)
    for expected in drawn[:4]:
        assert torch.equal(sampler.draw().windows, expected)


@pytest.mark.parametrize("name", ["uniform", "weighted"])
def test_samples_drawn_ahead_are_those_of_single_draws(name, windows):
    sampler = make_sampler(name, windows, torch.Generator().manual_seed(4))
    generator = torch.Generator().manual_seed(4)
    for _ in range(DRAWN_AHEAD // SIZE + 3):  # beyond the samples of one draw
        assert torch.equal(sampler.draw().windows, windows.draw(SIZE, generator))


def test_many_windows_drawn_ahead_are_those_of_single_draws(windows, monkeypatch):
    """More than 2^16 windows are drawn with more random bits."""
    monkeypatch.setattr("pts_scott.data.window_index.UNBIASED_BELOW", 1)
    test_samples_drawn_ahead_are_those_of_single_draws("uniform", windows)
