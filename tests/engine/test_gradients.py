"""Gradients: unbiased, of the right variance, and equal by autograd and torch.func."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.odd_networks import TRAINABLE
from helpers.series import wave_windows
from helpers.training import TinyNetwork, quiet_trainer, tiny_network
from torch import nn

from pts_scott import Stratifier, WindowIndex
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.losses import Losses
from pts_scott.engine.model_checks import check_model
from pts_scott.engine.tensors import squared_norm
from pts_scott.engine.training_effects import training_effects
from pts_scott.models.networks import VARNetwork


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def gradient_table(gradients: Gradients, windows: WindowIndex) -> torch.Tensor:
    """Return the gradient of every window, one row per window."""
    rows = []
    for number in range(len(windows)):
        batch = windows.gather(torch.tensor([number]))
        rows.append(flat(gradients.uniform(batch).direction))
    return torch.stack(rows)


@pytest.mark.parametrize("b", [1, 3])
def test_anchor_is_unbiased_and_has_the_variance_of_the_lemma(windows, b):
    strata = (Stratifier.periodic(3) * Stratifier.series()).stratify(windows)
    gradients = Gradients(Losses(tiny_network()))
    table = gradient_table(gradients, windows)
    weights = (strata.weights / b).repeat_interleave(b)

    # The anchor is the weighted sum of the rows that it draws,
    generator = torch.Generator().manual_seed(5)
    drawn = strata.draw(b, generator)
    anchor = gradients.weighted(windows.gather(drawn), weights).direction
    torch.testing.assert_close(
        flat(anchor), weights @ table[drawn], rtol=1e-10, atol=1e-12
    )

    # so its distribution can be sampled from the rows.
    repeats = 20_000
    draws = torch.stack([strata.draw(b, generator) for _ in range(repeats)])
    anchors = torch.einsum("j,rjd->rd", weights, table[draws])

    members = [
        table[strata.order[end - size : end]]
        for size, end in zip(strata.sizes.tolist(), strata.sizes.cumsum(0).tolist())
    ]
    within = torch.stack([part.var(dim=0, unbiased=False).sum() for part in members])
    expected = float((strata.weights**2 * within).sum()) / b

    spread = anchors.var(dim=0, unbiased=True)
    error = (anchors.mean(dim=0) - table.mean(dim=0)).abs()
    # Five standard errors of the mean, coordinate by coordinate.
    assert (error <= 5 * (spread / repeats).sqrt() + 1e-12).all()
    # The standard error of the variance is about 1 % from 20,000 anchors.
    assert float(spread.sum()) == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("delta", [2.0, 10.0])
def test_ar1_example_of_the_paper_has_noise_under_uniform_draws_only(delta):
    target = np.tile([-1.0, -delta, 1.0, delta], 25)
    entry = {"item_id": "a", "start": pd.Timestamp("2020-01-01"), "target": target}
    windows = WindowIndex.from_dataset([entry], "D", 1, 1, dtype=torch.float64)
    network = VARNetwork(context_length=1, prediction_length=1, scaling=False).double()
    with torch.no_grad():
        network.linear.weight.zero_()
        network.linear.bias.zero_()
    gradients = Gradients(Losses(network))
    generator = torch.Generator().manual_seed(0)

    def slope(draw, weights):
        batch = windows.gather(draw)
        return float(gradients.weighted(batch, weights).direction[0])

    halves = torch.full((2,), 0.5, dtype=torch.float64)
    uniform = [slope(windows.draw(2, generator), halves) for _ in range(400)]
    strata = Stratifier.periodic(2).stratify(windows)
    stratified = [slope(strata.draw(1, generator), strata.weights) for _ in range(50)]

    # ∇f is ±2δ in the two halves, so a pair has variance 4δ²/2; the standard error
    # of a variance from 400 pairs is 7 %.
    assert np.var(uniform) == pytest.approx(2 * delta**2, rel=0.3)
    full = float(gradient_table(gradients, windows)[:, 0].mean())
    np.testing.assert_allclose(stratified, full, atol=1e-9)


def test_control_variate_replaces_the_snapshot_gradient_by_the_anchor(windows):
    gradients = Gradients(Losses(tiny_network()))
    batch = windows.gather(torch.arange(5))
    snapshot = tuple(p.detach() + 0.1 for p in gradients.parameters)
    anchor = tuple(torch.randn_like(p) for p in snapshot)
    coefficient = torch.tensor(0.7, dtype=torch.float64)
    v = gradients.control_variate(batch, snapshot, anchor, coefficient).direction

    now = gradients.uniform(batch).direction
    moved = tiny_network()
    with torch.no_grad():
        for p, s in zip(moved.parameters(), snapshot):
            p.copy_(s)
    then = Gradients(Losses(moved)).uniform(batch).direction
    for x, g, h, a in zip(v, now, then, anchor):
        torch.testing.assert_close(x, g - 0.7 * (h - a), rtol=1e-12, atol=1e-14)


class DropoutNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 2))

    def loss(self, past_target, future_target):
        return (self.layers(past_target) - future_target).square().mean(dim=1)


def test_both_passes_of_a_step_use_the_same_dropout_mask():
    windows = wave_windows(torch.float32)
    losses = Losses(DropoutNetwork())
    gradients = Gradients(losses, stochastic=frozenset({"torch"}))
    batch = windows.gather(torch.arange(8))
    snapshot = tuple(p.detach().clone() for p in gradients.parameters)
    zeros = tuple(torch.zeros_like(p) for p in snapshot)
    one = torch.tensor(1.0)

    # At the snapshot the two gradients are the same, if the masks are.
    first = gradients.control_variate(batch, snapshot, zeros, one)
    second = gradients.control_variate(batch, snapshot, zeros, one)
    assert float(squared_norm(first.direction)) == 0.0
    assert first.loss != second.loss, "the next step has another mask"

    other = Gradients(losses).control_variate(batch, snapshot, zeros, one)
    assert float(squared_norm(other.direction)) > 0


def test_gradient_that_autograd_returns_twice_is_changed_once():
    class TwoBiases(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.zeros(2, dtype=torch.float64))
            self.b = nn.Parameter(torch.zeros(2, dtype=torch.float64))
            self.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def loss(self, past_target, future_target):
            return (self.a + self.b - future_target).square().mean(dim=1)

    windows = wave_windows()
    gradients = Gradients(Losses(TwoBiases()))
    batch = windows.gather(torch.arange(4))
    anchor = tuple(torch.ones_like(p) for p in gradients.parameters)
    snapshot = tuple(p.detach().clone() for p in gradients.parameters)
    v = gradients.control_variate(batch, snapshot, anchor, torch.tensor(1.0).double())
    for direction in v.direction:
        torch.testing.assert_close(direction, torch.ones_like(direction))


@pytest.mark.slow
def test_compiled_gradients_equal_eager_ones():
    windows = wave_windows(torch.float32)
    network = tiny_network(torch.float32)
    eager = Gradients(Losses(network))
    compiled = Gradients(Losses(network), compiled=True)
    batch = windows.gather(torch.arange(8))
    snapshot = tuple(p.detach() + 0.1 for p in eager.parameters)
    anchor = tuple(torch.randn_like(p) for p in snapshot)
    weights = torch.rand(8)
    half = torch.tensor(0.5)
    for x, y in (
        (eager.weighted(batch, weights), compiled.weighted(batch, weights)),
        (
            eager.control_variate(batch, snapshot, anchor, half),
            compiled.control_variate(batch, snapshot, anchor, half),
        ),
    ):
        torch.testing.assert_close(x.direction, y.direction, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(x.loss, y.loss, rtol=1e-5, atol=1e-6)


class UnusedParameter(TinyNetwork):
    """Has a parameter that its loss does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))


def test_zero_gradient_of_an_unused_parameter_keeps_no_graph():
    """In torch 2.6 such zeros require a gradient, and a graph grows with every step."""
    gradients = Gradients(Losses(UnusedParameter().double()))
    batch = wave_windows().gather(torch.arange(8))
    for direction in gradients.uniform(batch).direction:
        assert not direction.requires_grad
    assert float(gradients.uniform(batch).direction[0].abs().sum()) == 0.0


@pytest.mark.parametrize("network", TRAINABLE)
def test_first_direction_equals_the_anchor(network):
    windows, losses = wave_windows(), Losses(network().train())
    check_model(losses, windows)
    effects = training_effects(losses, windows)
    gradients = Gradients(losses, stochastic=effects.random, stateful=effects.buffers)
    anchor = tuple(torch.randn_like(p) for p in gradients.parameters)
    snapshot = tuple(p.detach().clone() for p in gradients.parameters)
    batch = windows.gather(torch.arange(9), losses.fields)
    v = gradients.control_variate(batch, snapshot, anchor, 1.0).direction
    for x, y in zip(v, anchor, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


class Embedded(nn.Module):
    """A table of vectors, looked up by the size of the last value."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(2, 2, sparse=sparse, dtype=torch.float64)
        self.linear = nn.Linear(6, 2, dtype=torch.float64)
        with torch.no_grad():
            self.table.weight.copy_(torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
            self.linear.weight.fill_(0.05)
            self.linear.bias.zero_()

    def loss(self, past_target, future_target):
        place = (past_target[:, -1] > 1).long()
        forecast = self.linear(past_target) + self.table(place)
        return (forecast - future_target).square().mean(dim=1)


def directions(gradients: Gradients, batch):
    """Return a uniform gradient, and v at another snapshot with an anchor of zero."""
    snapshot = tuple(p.detach() + 0.1 for p in gradients.parameters)
    zeros = tuple(torch.zeros_like(p) for p in snapshot)
    v = gradients.control_variate(batch, snapshot, zeros, 1.0).direction
    return gradients.uniform(batch).direction, v


def test_sparse_gradients_equal_those_of_a_dense_table(windows):
    batch = windows.gather(torch.arange(20))
    dense, sparse = (Gradients(Losses(Embedded(sparse))) for sparse in (False, True))
    for one, other in zip(directions(dense, batch), directions(sparse, batch)):
        for x, y in zip(one, other):
            assert y.layout == torch.strided
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_sparse_table_is_trained_like_a_dense_one(optimizer):
    dense, sparse = Embedded(sparse=False), Embedded(sparse=True)
    for network in (dense, sparse):
        trainer = quiet_trainer(learning_rate=0.02, batch_size=4, optimizer=optimizer)
        trainer.fit(network, wave_windows())
    for x, y in zip(dense.parameters(), sparse.parameters()):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)
