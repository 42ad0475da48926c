"""Small training runs that crash and resume."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from helpers.series import wave_windows
from helpers.training import QUIET, quiet_trainer, tiny_network
from pts_scott import Checkpoints, ScottTrainer, Stratifier

CLOCK = ["seconds", "compile_seconds"]  # columns of the history that no two runs share


class CrashError(Exception):
    """The end of a process, for a test."""


class CrashAt(pl.Callback):
    """Ends training after a step, as a crash would."""

    def __init__(self, step: float) -> None:
        self.step = step

    def on_train_batch_end(self, trainer, pl_module, *_):
        if pl_module.steps >= self.step:
            raise CrashError


class Dropped(nn.Module):
    """A network with dropout and a running value, whose state is in global places."""

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


def run(
    folder: Path | None = None,
    crash: float = math.inf,
    network: nn.Module | None = None,
    callbacks: list[pl.Callback] | None = None,
    **settings: Any,
) -> tuple[nn.Module, ScottTrainer]:
    """Train, from the folder's checkpoint on if there is one."""
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


def assert_same(one: tuple[nn.Module, ScottTrainer], other: tuple[Any, Any]) -> None:
    """To the bit: parameters, buffers, and the history but for its clock."""
    for x, y in zip(one[0].parameters(), other[0].parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    for x, y in zip(one[0].buffers(), other[0].buffers(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    histories = [trainer.history.drop(columns=CLOCK) for _, trainer in (one, other)]
    assert histories[0].equals(histories[1])
