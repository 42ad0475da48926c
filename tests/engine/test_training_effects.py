"""Random draws, buffers and attributes that a training pass changes are noticed."""

from __future__ import annotations

from contextlib import nullcontext

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from helpers.odd_networks import (
    Dropout,
    Linear,
    NumpyNoise,
    PythonNoise,
    RunningLevel,
    TiedWeight,
)
from helpers.series import wave_windows
from helpers.training import QUIET, TinyNetwork, fit_waves, quiet_trainer
from torch import nn

from pts_scott.engine.losses import Losses
from pts_scott.engine.training_effects import is_stochastic, training_effects
from pts_scott.errors import ScottWarning
from pts_scott.training.run_assembly import RunAssembly


@pytest.mark.parametrize("network", [NumpyNoise, PythonNoise, Dropout])
def test_noise_from_each_global_generator_is_noticed(network):
    effects = training_effects(Losses(network()), wave_windows())
    names = {NumpyNoise: "numpy", PythonNoise: "python", Dropout: "torch"}
    assert effects.random == {names[network]}


def test_dropout_makes_a_network_stochastic():
    windows = wave_windows(torch.float32)
    network = TinyNetwork()
    assert not is_stochastic(Losses(network), windows)
    network.layers.append(nn.Dropout(0.5))
    assert is_stochastic(Losses(network), windows)


class ReplacedBuffer(Linear):
    """Assigns a new tensor to its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.zeros(()))

    def loss(self, past_target, future_target):
        self.level = 0.9 * self.level + 0.1 * past_target.mean().detach()
        return super().loss(past_target, future_target)


class KeptTensor(Linear):
    """Keeps a tensor of its last pass."""

    last = None

    def loss(self, past_target, future_target):
        self.last = past_target.detach()
        return super().loss(past_target, future_target)


class Recurrent(Linear):
    """Has a recurrent layer without a fused kernel for training on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(1, 3).double()

    def loss(self, past_target, future_target):
        hidden, _ = self.layer(past_target.mT[..., None])
        return super().loss(past_target, future_target) + hidden.square().mean((0, 2))


class SharedMemory(Linear):
    """Two parameters whose values are in the same place."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Parameter(self.weight.detach())

    def loss(self, past_target, future_target):
        return super().loss(past_target, future_target) + self.again.square().sum()


@pytest.mark.parametrize(
    ("network", "compiled"),
    [
        *((RunningLevel, True), (Dropout, True), (TiedWeight, True)),
        *((NumpyNoise, False), (PythonNoise, False), (ReplacedBuffer, False)),
        *((KeptTensor, False), (Recurrent, False), (SharedMemory, False)),
    ],
)
def test_networks_whose_python_matters_in_every_step_are_not_compiled(
    network, compiled, windows
):
    trainer = quiet_trainer(compile=True)
    warning = pytest.warns(ScottWarning, match="not compiled")
    with nullcontext() if compiled else warning:
        losses = Losses(network().train())
        assembly = RunAssembly(trainer, losses, windows)
        decision, effects = assembly.decide_compilation(), assembly.effects
    assert decision.compiled is compiled
    assert effects.buffers is (network in (RunningLevel, ReplacedBuffer))
    assert bool(effects.random) is (network in (Dropout, NumpyNoise, PythonNoise))


class Annealed(Linear):
    """A loss with a factor that a callback changes."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = 1.0

    def loss(self, past_target, future_target):
        return self.beta * super().loss(past_target, future_target)


class Anneal(pl.Callback):
    def on_train_epoch_start(self, trainer, module):
        module.losses.network.beta = 1.0 / (1 + trainer.current_epoch)


@pytest.mark.usefixtures("traced")
def test_attribute_changed_by_a_callback_ends_compiled_steps():
    settings = {"epochs": 3, "trainer_kwargs": {**QUIET, "callbacks": [Anneal()]}}
    with pytest.warns(ScottWarning, match="'beta' of the network was changed"):
        found = fit_waves(Annealed(), compile=True, **settings)
    expected = fit_waves(Annealed(), **settings)
    torch.testing.assert_close(found.weight, expected.weight, rtol=1e-10, atol=1e-12)


class CountsPasses(Linear):
    """Counts its passes in an attribute, and changes after many of them."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def loss(self, past_target, future_target):
        self.passes += self.training
        return super().loss(past_target, future_target) * (1 + (self.passes > 200))


def test_network_that_changes_its_attributes_is_not_compiled():
    with pytest.warns(ScottWarning, match="changes its own attributes"):
        fit_waves(CountsPasses(), compile=True)


class NoiseForSome(Linear):
    """Draws random numbers for windows above a limit."""

    limit = np.inf

    def loss(self, past_target, future_target):
        if self.training and bool((past_target[:, -1] > self.limit).any()):
            past_target = past_target + torch.randn_like(past_target)
        return super().loss(past_target, future_target)


class LowerLimit(pl.Callback):
    """Lowers the limit after the checks, so that none of them has met such a window."""

    def on_train_epoch_start(self, trainer, module):
        module.losses.network.limit = 1.0


def test_random_numbers_for_some_windows_only_are_noticed_during_training():
    kwargs = {**QUIET, "callbacks": [LowerLimit()]}
    with pytest.warns(ScottWarning, match="draws random numbers for some windows"):
        fit_waves(NoiseForSome(), method="scott", trainer_kwargs=kwargs)
