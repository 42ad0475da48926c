"""Networks with state, sparse gradients, tied, frozen, unused or mixed parameters."""

from __future__ import annotations

from contextlib import nullcontext

import lightning.pytorch as pl
import pytest
import torch
from helpers.series import wave_windows
from helpers.training import QUIET, quiet_trainer, tiny_network
from torch import nn

from pts_scott.engine.gradients import Gradients
from pts_scott.engine.losses import Losses, evaluate
from pts_scott.engine.model_checks import check_model
from pts_scott.engine.tensors import squared_norm
from pts_scott.engine.training_effects import training_effects
from pts_scott.errors import ScottWarning
from pts_scott.training.run_assembly import RunAssembly


class Embedded(nn.Module):
    """A table of vectors, looked up by the sign of the last value."""

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


class Running(nn.Module):
    """A level that is learned from what passes by, as running statistics are."""

    in_place = True

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2, dtype=torch.float64)
        self.register_buffer("level", torch.zeros((), dtype=torch.float64))

    def loss(self, past_target, future_target):
        forecast = self.linear(past_target) * (1 + self.level)
        if self.training and self.in_place:
            self.level.lerp_(past_target.mean().detach(), 0.1)
        elif self.training:
            self.level = 0.9 * self.level + 0.1 * past_target.mean().detach()
        return (forecast - future_target).square().mean(dim=1)


class Replacing(Running):
    """The same, with a new tensor in each pass."""

    in_place = False


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 6, bias=False, dtype=torch.float64)
        self.two = nn.Linear(6, 6, bias=False, dtype=torch.float64)
        self.two.weight = self.one.weight

    def loss(self, past_target, future_target):
        forecast = self.two(torch.tanh(self.one(past_target)))[:, :2]
        return (forecast - future_target).square().mean(dim=1)


class Twice(nn.Module):
    """One parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.full((6, 6), 0.1, dtype=torch.float64))
        self.b = self.a

    def loss(self, past_target, future_target):
        forecast = (torch.tanh(past_target @ self.a) @ self.b)[:, :2]
        return (forecast - future_target).square().mean(dim=1)


class Shared(nn.Module):
    """One layer under two names, as TimeGrad's diffusion holds its network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6, bias=False, dtype=torch.float64)
        self.again = nn.ModuleDict({"layer": self.layer})

    def loss(self, past_target, future_target):
        forecast = self.again["layer"](torch.tanh(self.layer(past_target)))[:, :2]
        return (forecast - future_target).square().mean(dim=1)


class Mixed(nn.Module):
    """A layer in double precision between layers in single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.fine = nn.Linear(4, 4, dtype=torch.float64)
        self.last = nn.Linear(4, 2)

    def loss(self, past_target, future_target):
        middle = self.fine(self.first(past_target).double())
        return (self.last(middle.float()) - future_target).square().mean(dim=1)


class Divides(nn.Module):
    """Writes into its batch, as some libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2, dtype=torch.float64)

    def loss(self, past_target, future_target):
        past_target /= 1 + past_target.abs().mean(dim=1, keepdim=True)
        return (self.linear(past_target) - future_target).square().mean(dim=1)


def pair(gradients: Gradients, batch, at=None):
    snapshot = at or tuple(p.detach().clone() for p in gradients.parameters)
    zeros = tuple(torch.zeros_like(p) for p in gradients.parameters)
    return gradients.control_variate(batch, snapshot, zeros, 1.0).direction


def moved(gradients: Gradients):
    return tuple(p.detach() + 0.1 for p in gradients.parameters)


def trained(network: nn.Module, dtype=torch.float64, **kwargs) -> nn.Module:
    windows = wave_windows(dtype)
    settings = {"learning_rate": 0.02, "batch_size": 4, **kwargs}
    quiet_trainer(**settings).fit(network, windows)
    return network


def test_sparse_gradients_are_those_of_a_dense_table(windows):
    batch = windows.gather(torch.arange(20))
    dense, sparse = (Gradients(Losses(Embedded(sparse))) for sparse in (False, True))
    for one, other in (
        (dense.uniform(batch).direction, sparse.uniform(batch).direction),
        (pair(dense, batch, moved(dense)), pair(sparse, batch, moved(sparse))),
    ):
        for x, y in zip(one, other):
            assert y.layout == torch.strided
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_a_sparse_table_is_trained_like_a_dense_one(optimizer):
    dense, sparse = (trained(Embedded(s), optimizer=optimizer) for s in (False, True))
    for x, y in zip(dense.parameters(), sparse.parameters()):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [Running, Replacing])
def test_both_passes_see_the_same_buffers_and_one_changes_them(kind, windows):
    network = kind().train()
    batch = windows.gather(torch.arange(8))
    gradients = Gradients(Losses(network), stateful=True)
    assert training_effects(gradients.losses, windows) == (frozenset(), True)
    assert float(network.level) == 0.0, "the check leaves buffers as they were"
    # At the snapshot both gradients are the same, if the buffers are.
    assert float(squared_norm(pair(gradients, batch))) == 0.0
    once = 0.1 * batch["past_target"].mean()
    torch.testing.assert_close(network.level, once)  # of the first pass alone


class Noisy(Running):
    """Dropout: masks that both passes must share."""

    def loss(self, past_target, future_target):
        past_target = nn.functional.dropout(past_target, 0.5, self.training)
        return (self.linear(past_target) - future_target).square().mean(dim=1)


@pytest.mark.parametrize(
    ("network", "compiled"), [(Running, False), (Noisy, False), (Tied, True)]
)
def test_networks_with_state_or_random_numbers_are_not_compiled(
    network, compiled, windows
):
    trainer = quiet_trainer(compile=True)
    told = nullcontext() if compiled else pytest.warns(ScottWarning, match="not compiled")
    with told:
        losses = Losses(network().train())
        assembly = RunAssembly(trainer, losses, windows)
        decision, effects = assembly.decide_compilation(), assembly.effects
    assert decision.compiled is compiled
    assert effects.buffers is (network is Running)
    assert bool(effects.random) is (network is Noisy)


class Spoil(pl.Callback):
    """Makes parameters and buffers worse after the second epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        network = pl_module.losses.network
        if trainer.current_epoch == 2:
            network.level += 50.0
            network.linear.bias.data += 50.0


@pytest.mark.parametrize("kind", [Running, Replacing])
def test_the_best_parameters_come_back_with_their_buffers(kind):
    windows, network = wave_windows(), kind()
    kwargs = {**QUIET, "callbacks": [Spoil()]}
    trainer = quiet_trainer(
        output="best", epochs=3, learning_rate=1e-6, trainer_kwargs=kwargs
    )
    with pytest.warns(ScottWarning, match="training diverges"):
        trainer.fit(network, windows, windows.last())
    losses = trainer.history["val_loss"].dropna()
    assert losses.iloc[-1] > 10 * losses.min()
    assert float(network.level) < 50
    found = float(evaluate(Losses(network), windows.last()))
    assert found == pytest.approx(losses.min())


def test_running_values_follow_training():
    assert float(trained(Running()).level) != 0.0


def test_tied_weights_count_once_and_stay_tied():
    network = Tied()
    before = network.one.weight.detach().clone()
    trained(network)
    assert network.one.weight is network.two.weight
    assert not torch.equal(network.one.weight, before)
    assert len(Gradients(Losses(network)).parameters) == 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("network", [Tied, Shared, Twice])
def test_weights_held_twice_are_seen_at_the_snapshot_and_put_back(
    network, compiled, windows
):
    gradients = Gradients(Losses(network()), compiled=compiled)
    batch = windows.gather(torch.arange(8))
    here, there = moved(gradients), gradients.parameters
    at_snapshot = gradients.uniform(batch).direction
    with torch.no_grad():
        snapshot = tuple(p.clone() for p in there)
        torch._foreach_copy_(list(there), list(here))
    expected = gradients.uniform(batch).direction
    for _ in range(2):  # a pass must leave the network's own parameters behind
        found = pair(gradients, batch, snapshot)
        for v, now, then in zip(found, expected, at_snapshot):
            torch.testing.assert_close(v, now - then, rtol=1e-10, atol=1e-12)
    assert next(iter(gradients.losses.trainable().values())) is there[0]


def test_frozen_parameters_stay_as_they_are():
    network = tiny_network()
    network.layers[0].requires_grad_(False)
    before = [p.detach().clone() for p in network.parameters()]
    trained(network)
    same = [torch.equal(p, b) for p, b in zip(network.parameters(), before)]
    assert same == [True, True, False, False]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_parameters_of_several_types_are_trained(optimizer):
    network = Mixed()
    types = [p.dtype for p in network.parameters()]
    before = [p.detach().clone() for p in network.parameters()]
    trained(network, torch.float32, optimizer=optimizer, clip_gradient=1.0)
    assert [p.dtype for p in network.parameters()] == types
    assert not any(torch.equal(p, b) for p, b in zip(network.parameters(), before))


def test_a_batch_that_the_network_writes_into_is_copied(windows):
    losses = Losses(Divides())
    check_model(losses, windows)
    assert losses.copies
    batch = windows.gather(torch.arange(8))
    whole = {name: values.clone() for name, values in batch.items()}
    assert float(squared_norm(pair(Gradients(losses), batch))) == 0.0
    for name, values in whole.items():
        torch.testing.assert_close(batch[name], values, rtol=0, atol=0)
