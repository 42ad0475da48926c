"""Allocations: shares, what they must satisfy, and the errors about those that don't."""

from __future__ import annotations

import pytest
import torch

from pts_scott import ScottTrainer, Stratifier
from pts_scott.errors import ArgumentError
from pts_scott.method.allocation import check_allocation, shares_of, spread_shares


@pytest.fixture
def strata(windows):
    return Stratifier.series().stratify(windows)


def test_proportional_shares_are_the_weights(strata):
    assert torch.equal(shares_of("proportional", strata), strata.weights)


def test_equal_shares_are_equal(strata):
    assert shares_of("equal", strata).tolist() == [1 / len(strata)] * len(strata)


def test_spread_is_proportional_until_it_is_measured(strata):
    assert torch.equal(shares_of("spread", strata), strata.weights)


def test_shares_by_label_follow_the_labels(strata):
    table = {"series s2": 0.5, "series s0": 0.2, "series s1": 0.3}
    shares = shares_of(table, strata)
    assert dict(zip(strata.labels(range(3)), shares.tolist(), strict=True)) == table


def test_spread_attains_neymans_bound_up_to_its_proportional_tenth():
    weights = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    spread = torch.tensor([1.0, 5.0, 20.0], dtype=torch.float64)

    def variance(shares):
        return float((weights**2 * spread**2 / shares).sum())

    bound = float((weights * spread).sum()) ** 2
    neyman = weights * spread / (weights * spread).sum()
    assert variance(neyman) == pytest.approx(bound, rel=1e-12)
    # 0.9 of each share is Neyman's, so no term grows by more than 1/0.9.
    assert bound <= variance(spread_shares(weights, spread)) <= bound / 0.9
    assert variance(weights) > 2 * bound


def test_no_weight_of_a_spread_allocation_exceeds_ten():
    weights = torch.tensor([0.9, 0.1], dtype=torch.float64)
    shares = spread_shares(weights, torch.tensor([0.0, 1.0]))
    assert float(shares.sum()) == pytest.approx(1.0)
    assert float((weights / shares).max()) == pytest.approx(10.0)


def test_without_any_spread_shares_are_proportional():
    weights = torch.tensor([0.9, 0.1], dtype=torch.float64)
    assert torch.equal(spread_shares(weights, torch.zeros(2)), weights)


@pytest.mark.parametrize(
    ("allocation", "message"),
    [
        ("spred", "Did you mean 'spread'"),
        (3, "expected one of"),
        ({}, "expected one of"),
        ({"a": 0.5, "b": 0.4}, "sum to 0.9"),
        ({"a": 1.0, "b": 0.0}, "share of 'b' is 0.0"),
        ({"a": 1.5, "b": -0.5}, "share of 'b' is -0.5"),
        ({"a": True}, "share of 'a' is True"),
        ({"a": float("nan")}, "share of 'a' is nan"),
    ],
)
def test_bad_allocations_are_refused(allocation, message):
    with pytest.raises(ArgumentError, match=message):
        check_allocation(allocation)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"series s0": 0.5, "series s9": 0.5}, "no stratum 'series s9'"),
        ({"series s0": 0.5, "series s1": 0.5}, "no share for 'series s2'"),
    ],
)
def test_tables_that_do_not_fit_the_strata_are_refused(strata, table, message):
    with pytest.raises(ArgumentError, match=message):
        shares_of(table, strata)


def test_shared_labels_are_ambiguous(windows):
    class Nameless(Stratifier.series().__class__):
        def label(self, item_id, moment, code):
            return "a series"

    with pytest.raises(ArgumentError, match="same label"):
        shares_of({"a series": 1.0}, Nameless().stratify(windows))


@pytest.mark.parametrize("method", ["plain", "auto"])
def test_methods_without_given_strata_take_no_allocation(method):
    with pytest.raises(ArgumentError, match="method='stratified'"):
        ScottTrainer(method=method, allocation="spread")
