"""Sketches of gradients: norms and inner products of true per-window gradients."""

from __future__ import annotations

import pytest
import torch
from helpers.series import wave_windows
from helpers.training import tiny_network
from torch import nn
from torch.utils.checkpoint import checkpoint

from pts_scott.diagnostics.gradient_sketches import (
    KEPT,
    LINEAR_COST,
    SINGLE_COST,
    GradientSketches,
)
from pts_scott.diagnostics.linear_maps import (
    RecordLinear,
    squared_norms,
    window_factors,
)
from pts_scott.diagnostics.window_gradients import window_gradients
from pts_scott.engine.losses import Losses

MANY = 20_000  # dimensions: a relative error of √(8 / 20,000) = 2 % at most


class Base(nn.Module):
    def loss(self, past_target, future_target):
        return (self.predict(past_target) - future_target).square().mean(dim=1)


class OverTime(Base):
    """A linear map that is applied to every step, twice, and one without a bias."""

    def __init__(self):
        super().__init__()
        self.each = nn.Linear(1, 3, dtype=torch.float64)
        self.again = nn.Linear(3, 3, dtype=torch.float64)
        self.out = nn.Linear(18, 2, bias=False, dtype=torch.float64)

    def predict(self, past):
        steps = torch.tanh(self.each(past[..., None]))
        steps = torch.relu_(self.again(self.again(steps)))
        return self.out(steps.flatten(1))


class TimeFirst(Base):
    """A network whose linear map sees the steps first and the windows second."""

    def __init__(self):
        super().__init__()
        self.each = nn.Linear(1, 1, dtype=torch.float64)

    def predict(self, past):
        steps = self.each(past.T[..., None])[..., 0].T
        return steps[:, :2]


class Recurrent(Base):
    """A recurrent network, most of whose gradient is not in linear maps."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 4, batch_first=True, dtype=torch.float64)

    def predict(self, past):
        return self.rnn(past[..., None])[0][:, -1, :2]


class SharedInput(Base):
    """A network with a linear map of something that all windows share."""

    def __init__(self):
        super().__init__()
        self.own = nn.Linear(6, 2, dtype=torch.float64)
        self.shared = nn.Linear(3, 2, dtype=torch.float64)
        self.register_buffer("basis", torch.ones(1, 3, dtype=torch.float64))

    def predict(self, past):
        return self.own(past) + self.shared(self.basis)


NETWORKS = [tiny_network, OverTime, TimeFirst, Recurrent, SharedInput]


def exact_gradients(losses, windows, numbers):
    parameters = tuple(losses.trainable().values())
    return window_gradients(losses, parameters, windows.gather(numbers, losses.fields))


@pytest.mark.parametrize("make", [tiny_network, OverTime])
def test_factors_give_exact_norms(make):
    torch.manual_seed(0)
    windows, losses = wave_windows(), Losses(make())
    numbers = torch.arange(0, len(windows), 3)
    with RecordLinear(tuple(losses.trainable().values())) as recorded:
        values = losses(windows.gather(numbers, losses.fields))
    factors = window_factors(values, recorded.calls)
    found = sum(squared_norms(map, own) for map, own in factors.items())
    expected = exact_gradients(losses, windows, numbers).square().sum(dim=1)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("make", NETWORKS)
def test_inner_products_of_sketches_are_those_of_gradients(make):
    torch.manual_seed(0)
    windows, losses = wave_windows(), Losses(make())
    numbers = torch.arange(0, len(windows), 9)
    sketches = GradientSketches(losses, seed=0, dimensions=MANY)
    rows = sketches(windows, numbers)
    exact = exact_gradients(losses, windows, numbers)
    norms = exact.norm(dim=1)
    error = (rows @ rows.T - exact @ exact.T) / (norms[:, None] * norms)
    if make is SharedInput:  # its shared part is left out
        assert sketches.is_linear(windows)
        return
    # Maps that carry less than a twentieth together are left out.
    assert float(error.abs().max()) < 5 * (8 / MANY) ** 0.5 + (1 - KEPT)


@pytest.mark.parametrize(
    ("make", "linear"),
    list(zip(NETWORKS, [True, True, False, False, True], strict=True)),
)
def test_one_pass_is_used_where_linear_maps_carry_enough(make, linear):
    torch.manual_seed(0)
    windows, sketches = wave_windows(), GradientSketches(Losses(make()), seed=0)
    assert sketches.is_linear(windows) is linear
    assert sketches.cost(windows) == (LINEAR_COST if linear else SINGLE_COST)


def test_sketches_at_other_parameters_are_those_of_a_network_with_them():
    windows, losses = wave_windows(), Losses(tiny_network())
    numbers = torch.arange(10)
    other = tuple(p.detach() + 0.1 for p in losses.trainable().values())
    sketches = GradientSketches(losses, seed=0)
    before = sketches(windows, numbers)
    found = sketches.at(other, windows, numbers)
    assert torch.equal(sketches(windows, numbers), before), "the network is unchanged"
    with torch.no_grad():
        for parameter, value in zip(losses.trainable().values(), other, strict=True):
            parameter.copy_(value)
    torch.testing.assert_close(sketches(windows, numbers), found)


def test_nothing_but_the_sketches_changes():
    windows, losses = wave_windows(), Losses(tiny_network())
    losses.train()
    before = torch.get_rng_state()
    GradientSketches(losses, seed=0)(windows, torch.arange(20))
    assert torch.equal(torch.get_rng_state(), before)
    assert losses.training
    assert all(p.grad is None and p.requires_grad for p in losses.parameters())


def test_maps_that_carry_next_to_nothing_are_left_out():
    class Small(OverTime):
        def predict(self, past):
            return super().predict(past) + 1e-3 * self.faint(past)

        def __init__(self):
            super().__init__()
            self.faint = nn.Linear(6, 2, dtype=torch.float64)

    torch.manual_seed(0)
    windows, losses = wave_windows(), Losses(Small())
    sketches = GradientSketches(losses, seed=0, dimensions=MANY)
    assert sketches.is_linear(windows)
    kept = {place for map in sketches.state_dict()["maps"] for place in map}
    names = list(losses.trainable())
    assert not any("faint" in names[place] for place in kept if place is not None)
    assert "network.out.weight" in {names[place] for place in kept if place is not None}


def test_seeds_give_different_projections():
    windows, losses = wave_windows(), Losses(tiny_network())
    rows = [GradientSketches(losses, seed=s)(windows, torch.arange(5)) for s in (0, 0, 1)]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def test_shared_rows_do_not_count_whatever_the_number_of_windows():
    class Positions(SharedInput):
        def __init__(self):
            super().__init__()
            self.basis = torch.ones(64, 3, dtype=torch.float64)

        def predict(self, past):
            return self.own(past) + self.shared(self.basis).mean(dim=0)

    torch.manual_seed(0)
    windows, sketches = wave_windows(), GradientSketches(Losses(Positions()), seed=0)
    # 64 shared rows would fit a pass of 64 or 32 windows, but not one of 50.
    rows = [sketches(windows, torch.arange(count))[:32] for count in (32, 50, 64)]
    torch.testing.assert_close(rows[0], rows[1])
    torch.testing.assert_close(rows[2], rows[1])


def test_what_was_measured_once_is_saved():
    windows, losses = wave_windows(), Losses(tiny_network())
    first, second = (GradientSketches(losses, seed=0) for _ in range(2))
    second.load_state_dict(first.state_dict())
    first.is_linear(windows)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict() != {"maps": None}


def test_checkpointed_parts_are_run_again_at_the_same_parameters():
    class Checkpointed(OverTime):
        def predict(self, past):
            return checkpoint(super().predict, past, use_reentrant=False)

    torch.manual_seed(0)
    windows, plain = wave_windows(), Losses(OverTime())
    torch.manual_seed(0)
    again = Losses(Checkpointed())
    other = tuple(p.detach() + 0.1 for p in plain.trainable().values())
    numbers = torch.arange(10)
    found, expected = (
        GradientSketches(losses, seed=0).at(other, windows, numbers)
        for losses in (again, plain)
    )
    torch.testing.assert_close(found, expected)
