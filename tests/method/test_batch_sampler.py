"""Stratified mini-batches for any training loop."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pts_scott import StratifiedBatchSampler, Stratifier
from pts_scott.errors import ScottError

LABELS = np.array(["a"] * 60 + ["b"] * 30 + ["c"] * 10)
NOISE = torch.randn(100, generator=torch.Generator().manual_seed(0))
DEVIATIONS = torch.tensor([1.0, 1.0, 10.0]).repeat_interleave(torch.tensor([60, 30, 10]))
VALUES = torch.arange(3.0).repeat_interleave(torch.tensor([60, 30, 10])) * 5
VALUES += DEVIATIONS * NOISE
SPREAD = {"a": 1.0, "b": 1.0, "c": 10.0}
ALLOCATIONS = {
    "proportional": {},
    "equal": {"allocation": "equal"},
    "spread": {"allocation": "spread", "spread": SPREAD},
    "table": {"allocation": {"a": 0.2, "b": 0.2, "c": 0.6}},
}


def estimates(sampler: StratifiedBatchSampler) -> torch.Tensor:
    return torch.stack([(w * VALUES[i]).sum() for i, w in sampler.batches()])


@pytest.mark.parametrize("name", ALLOCATIONS)
@pytest.mark.parametrize("replacement", [True, False])
def test_weighted_means_are_unbiased_for_every_allocation(name, replacement):
    options = {"replacement": replacement, **ALLOCATIONS[name]}
    sampler = StratifiedBatchSampler(LABELS, 7, num_batches=20_000, seed=1, **options)
    found = estimates(sampler).double()
    # Batches of one pass depend on each other, so the error is that of blocks.
    blocks = found.reshape(200, -1).mean(dim=1)
    error = blocks.std() / len(blocks) ** 0.5
    assert abs(found.mean() - VALUES.double().mean()) < 4 * error + 1e-9


def test_variance_is_that_of_the_formula_and_least_by_spread():
    groups = [VALUES[label == LABELS].double() for label in "abc"]
    squares = torch.stack([group.var(correction=0) for group in groups])
    found, formula = {}, {}
    for name, options in ALLOCATIONS.items():
        sampler = StratifiedBatchSampler(LABELS, 50, num_batches=5000, seed=2, **options)
        found[name] = float(estimates(sampler).var())
        weights, shares = sampler.strata.weights, sampler.shares
        formula[name] = float((weights.square() * squares / (50 * shares)).sum())
    # Shares that are no whole numbers of items also vary by their rounding.
    assert found["proportional"] == pytest.approx(formula["proportional"], rel=0.05)
    assert all(0.95 < found[name] / formula[name] < 1.2 for name in found)
    assert found["spread"] < 0.75 * found["proportional"]


def test_batches_have_the_items_of_each_stratum_that_their_shares_ask_for():
    sampler = StratifiedBatchSampler(LABELS, 10, seed=0)
    for indices in sampler:
        assert sorted(LABELS[indices]) == ["a"] * 6 + ["b"] * 3 + ["c"]
    assert len(sampler) == len(list(sampler)) == 10


def test_data_loader_takes_it_and_items_find_their_weights():
    sampler = StratifiedBatchSampler(LABELS, 9, "equal", seed=3)
    data = TensorDataset(torch.arange(100), VALUES)
    total = torch.zeros(100)
    for indices, values in DataLoader(data, batch_sampler=sampler):
        assert torch.equal(values, VALUES[indices])
        total[indices] = sampler.weights[indices]
        assert sampler.weights[indices].sum() == pytest.approx(1.0)
    sizes = torch.tensor([60, 30, 10]).double()
    expected = (sizes / 100 / (9 / 3)).repeat_interleave(sizes.long())
    torch.testing.assert_close(sampler.weights.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "labels",
    [LABELS.tolist(), pd.Series(LABELS, index=range(5, 105)), pd.Categorical(LABELS)],
)
def test_labels_of_any_kind_make_the_same_batches(labels):
    expected = list(StratifiedBatchSampler(LABELS, 8, seed=4))
    assert list(StratifiedBatchSampler(labels, 8, seed=4)) == expected
    numbers = torch.from_numpy(pd.factorize(LABELS)[0])
    assert list(StratifiedBatchSampler(numbers, 8, seed=4)) == expected


def test_without_replacement_every_item_comes_once_in_a_pass():
    sampler = StratifiedBatchSampler(LABELS, 10, replacement=False, seed=5)
    seen = sorted(index for indices in sampler for index in indices)
    assert seen == list(range(100))


def test_iterations_differ_and_a_saved_state_continues():
    sampler = StratifiedBatchSampler(LABELS, 8, replacement=False, seed=6)
    first, state = list(sampler), sampler.state_dict()
    second = list(sampler)
    assert first != second
    other = StratifiedBatchSampler(LABELS, 8, replacement=False, seed=7)
    other.load_state_dict(state)
    assert list(other) == second


def test_strata_of_windows_are_taken_as_they_are(windows):
    strata = Stratifier.periodic(4).stratify(windows)
    sampler = StratifiedBatchSampler(strata, 8, seed=8)
    for indices, weights in sampler.batches():
        members = strata.members(indices.numpy())
        assert np.bincount(members, minlength=4).min() >= 1
        torch.testing.assert_close(sampler.weights[indices], weights)
    windows.gather(indices)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strata": []}, "found none"),
        ({"strata": ["a", None, "b"]}, "item 1 has no label"),
        ({"batch_size": 0}, "batch_size"),
        ({"allocation": "neyman"}, "allocation"),
        ({"allocation": {"a": 0.5, "b": 0.5}}, "no share for 'c'"),
        ({"allocation": {"a": 0.5, "b": 0.25, "d": 0.25}}, "no stratum 'd'"),
        ({"allocation": "spread"}, "belong together"),
        ({"spread": SPREAD}, "belong together"),
        ({"allocation": "spread", "spread": {"a": 1.0, "b": 1.0}}, "no deviation for"),
        ({"batchsize": 3}, "batch_size"),
        ({"seed": -1}, "seed"),
    ],
)
def test_mistakes_are_told(options, message):
    with pytest.raises(ScottError, match=message):
        StratifiedBatchSampler(**{"strata": LABELS, **options})
