"""Buffers: both passes of a step see the same ones, and only the first changes them."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
import torch
from helpers.odd_networks import Linear
from helpers.series import wave_windows
from helpers.training import QUIET, fit_waves, quiet_trainer
from torch import nn

from pts_scott.engine.buffers import Buffers, set_buffers
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.losses import Losses, evaluate
from pts_scott.engine.tensors import squared_norm
from pts_scott.engine.training_effects import training_effects
from pts_scott.errors import ScottWarning


class WritesLevel(nn.Module):
    """Learns a level from its windows, as running statistics are learned, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2, dtype=torch.float64)
        self.register_buffer("level", torch.zeros((), dtype=torch.float64))

    def loss(self, past_target, future_target):
        forecast = self.linear(past_target) * (1 + self.level)
        if self.training:
            self.update_level(past_target.mean().detach())
        return (forecast - future_target).square().mean(dim=1)

    def update_level(self, mean):
        self.level.lerp_(mean, 0.1)


class ReplacesLevel(WritesLevel):
    """The same, with a new tensor in each pass."""

    def update_level(self, mean):
        self.level = 0.9 * self.level + 0.1 * mean


@pytest.mark.parametrize("network", [WritesLevel, ReplacesLevel])
def test_both_passes_see_the_same_buffers_and_the_first_changes_them(network, windows):
    network = network().train()
    batch = windows.gather(torch.arange(8))
    gradients = Gradients(Losses(network), stateful=True)
    assert training_effects(gradients.losses, windows) == (frozenset(), True)
    assert float(network.level) == 0.0, "the check leaves buffers as they were"
    # At the snapshot both gradients are the same, if the buffers are.
    snapshot = tuple(p.detach().clone() for p in gradients.parameters)
    zeros = tuple(torch.zeros_like(p) for p in snapshot)
    v = gradients.control_variate(batch, snapshot, zeros, 1.0).direction
    assert float(squared_norm(v)) == 0.0
    after_one_pass = 0.1 * batch["past_target"].mean()
    torch.testing.assert_close(network.level, after_one_pass)


class SpoilThirdEpoch(pl.Callback):
    """Makes parameters and buffers worse after the second epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        network = pl_module.losses.network
        if trainer.current_epoch == 2:
            network.level += 50.0
            network.linear.bias.data += 50.0


@pytest.mark.parametrize("network", [WritesLevel, ReplacesLevel])
def test_best_parameters_are_returned_with_their_buffers(network):
    windows, network = wave_windows(), network()
    trainer = quiet_trainer(
        output="best",
        epochs=3,
        learning_rate=1e-6,
        trainer_kwargs={**QUIET, "callbacks": [SpoilThirdEpoch()]},
    )
    with pytest.warns(ScottWarning, match="training diverges"):
        trainer.fit(network, windows, windows.last())
    losses = trainer.history["val_loss"].dropna()
    assert losses.iloc[-1] > 10 * losses.min()
    assert float(network.level) < 50
    found = float(evaluate(Losses(network), windows.last()))
    assert found == pytest.approx(losses.min())


def test_training_updates_running_statistics():
    network = WritesLevel()
    quiet_trainer(learning_rate=0.02, batch_size=4).fit(network, wave_windows())
    assert float(network.level) != 0.0


class OddBuffers(Linear):
    """One buffer in two modules, one that is expanded, one that is sparse."""

    def __init__(self) -> None:
        super().__init__()
        level = torch.zeros((), dtype=torch.float64)
        self.register_buffer("level", level)
        self.part = nn.Module()
        self.part.register_buffer("level", level)
        self.register_buffer("ones", torch.ones(1, dtype=torch.float64).expand(6))
        self.register_buffer("graph", torch.eye(6, dtype=torch.float64).to_sparse())

    def forecast(self, past):
        return super().forecast(past * self.ones + self.level)


@pytest.mark.parametrize("method", ["plain", "scott"])
def test_buffers_may_be_shared_expanded_and_sparse(method):
    found = fit_waves(OddBuffers(), method=method)
    expected = fit_waves(Linear(), method=method)
    torch.testing.assert_close(found.weight, expected.weight)


def test_changed_and_replaced_buffers_are_restored():
    network = OddBuffers()
    held = Buffers(network)
    level, graph = network.level, network.graph
    assert not held.changed()
    level.fill_(3.0)
    assert held.changed()
    network.graph = 2 * graph
    held.restore()
    assert not held.changed()
    assert network.level is level
    assert network.part.level is level
    assert network.graph is graph
    assert float(level) == 0.0


def test_buffers_of_another_shape_are_registered_anew():
    network = OddBuffers()
    level = network.level
    values = {"level": torch.tensor(2.0), "ones": torch.zeros(4), "part.new": level}
    set_buffers(network, values)
    assert network.level is level
    assert float(network.level) == 2.0
    assert network.ones.tolist() == [0.0] * 4
    assert "new" in dict(network.part.named_buffers())
