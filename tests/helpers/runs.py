"""Small training runs, some of which crash and resume."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from helpers.series import wave_windows
from helpers.training import QUIET, TinyNetwork, quiet_trainer, tiny_network
from pts_scott import Checkpoints, ScottTrainer, Stratifier

CLOCK_COLUMNS = [
    "seconds",
    "compile_seconds",
    "probe_seconds",
]  # of the history; they vary between runs


def fit_tiny_network(
    trainer: ScottTrainer, validate: bool = False, **kwargs: Any
) -> TinyNetwork:
    """Train a new tiny network on the wave windows and return it."""
    network, windows = tiny_network(), wave_windows()
    trainer.fit(network, windows, windows.last() if validate else None, **kwargs)
    return network


def flat_parameters(network: nn.Module) -> Tensor:
    """Return all parameters of a network as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()])


class CrashError(Exception):
    """Simulated crash of a process."""


class CrashAt(pl.Callback):
    """Raises CrashError once a number of steps is reached."""

    def __init__(self, step: float) -> None:
        self.step = step

    def on_train_batch_end(self, trainer, pl_module, *_):
        if pl_module.steps >= self.step:
            raise CrashError


class DropoutNetwork(nn.Module):
    """A network with dropout and a running mean that no state_dict contains."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2, dtype=torch.float64)
        nn.init.constant_(self.linear.weight, 0.1)
        nn.init.zeros_(self.linear.bias)
        level = torch.zeros((), dtype=torch.float64)
        self.register_buffer("level", level, persistent=False)

    def loss(self, past_target, future_target):
        hidden = nn.functional.dropout(past_target, 0.3, self.training)
        if self.training:
            self.level = 0.9 * self.level + 0.1 * past_target.mean().detach()
        forecast = self.linear(hidden) + 0.01 * self.level
        return (forecast - future_target).square().mean(dim=1)


class TickingTime:
    """A replacement of ``time`` that advances a millisecond with every reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.001
        return self.now


def run(
    folder: Path | None = None,
    crash: float = math.inf,
    network: nn.Module | None = None,
    callbacks: list[pl.Callback] | None = None,
    **settings: Any,
) -> tuple[nn.Module, ScottTrainer]:
    """Train, resuming from the folder's checkpoint if there is one.

    Parameters
    ----------
    folder
        Folder of the checkpoints; None for none.
    crash
        Step at which the run crashes.
    network
        The network to train; None for a new tiny network.
    callbacks
        Lightning callbacks.
    settings
        Arguments of ScottTrainer that replace the defaults below.
    """
    network = network or tiny_network()
    arguments = {
        "learning_rate": 0.01,
        "batch_size": 4,
        "anchor_batch_size": 2,
        "inner_steps": 7,
        "epochs": 3,
        "num_batches_per_epoch": 18,
        "stratifier": Stratifier.series(),
        "trainer_kwargs": {**QUIET, "callbacks": [*(callbacks or []), CrashAt(crash)]},
    }
    if folder is not None:
        arguments |= {"checkpoint": Checkpoints(folder, steps=1), "resume": True}
    trainer = quiet_trainer(**{**arguments, **settings})
    windows = wave_windows()
    try:
        trainer.fit(network, windows, windows.last())
    except CrashError:
        assert math.isfinite(crash)
    return network, trainer


def assert_identical(
    first: tuple[nn.Module, ScottTrainer], second: tuple[nn.Module, ScottTrainer]
) -> None:
    """Compare two runs bit for bit: parameters, buffers, and history except its clock."""
    for x, y in zip(first[0].parameters(), second[0].parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    for x, y in zip(first[0].buffers(), second[0].buffers(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    one, other = (run[1].history.drop(columns=CLOCK_COLUMNS) for run in (first, second))
    assert one.equals(other)
