"""Networks with non-finite losses or gradients, and runs that record their warnings."""

from __future__ import annotations

import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from helpers.series import wave_windows
from helpers.training import QUIET, quiet_trainer, tiny_network
from pts_scott import ScottTrainer, Stratifier
from pts_scott.errors import FaultWarning

SMALL_BATCHES: dict[str, Any] = {
    "batch_size": 4,
    "anchor_batch_size": 2,
    "stratifier": Stratifier.series(),
}
LIMIT = 2.9  # exceeded by one window in 40


class FaultyNetwork(nn.Module):
    """A network that is non-finite on windows whose last past value exceeds a limit.

    The model check before training evaluates only a few windows, all of them finite.

    Parameters
    ----------
    kind
        What is non-finite: "loss" (NaN), "infinite" (an infinite loss), or "gradient"
        (of a finite loss).
    limit
        The largest value of a window that is finite.
    """

    def __init__(self, kind: str = "loss", limit: float = LIMIT) -> None:
        super().__init__()
        self.network = tiny_network()
        self.kind, self.limit = kind, limit

    def loss(self, past_target, future_target):
        losses = self.network.loss(past_target, future_target)
        bad = past_target[:, -1] > self.limit
        if self.kind == "loss":
            return torch.where(bad, torch.nan, losses)
        if self.kind == "infinite":
            return torch.where(bad, torch.inf, losses)
        # The square root of zero is finite and has an infinite gradient.
        zero = 0.0 * sum(p.sum() for p in self.parameters())
        return losses + torch.where(bad, zero, 1.0).sqrt()


def nonfinite_wave_windows() -> set[int]:
    """Return the numbers of the wave windows on which FaultyNetwork is non-finite."""
    windows = wave_windows()
    past = windows.gather(torch.arange(len(windows)))["past_target"]
    return set((past[:, -1] > LIMIT).nonzero().flatten().tolist())


class LowerLimit(pl.Callback):
    """Lowers the limit of a FaultyNetwork once the checks before training have passed."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def on_train_start(self, trainer, pl_module):
        pl_module.losses.network.limit = self.limit


#: Every window is non-finite.
ALL_NONFINITE = {**QUIET, "callbacks": [LowerLimit(-9.0)]}
#: Many windows are non-finite, but none of those that were checked before training.
MANY_NONFINITE = {**QUIET, "callbacks": [LowerLimit(1.4)]}


def fit_with_warnings(
    network: nn.Module, **settings: Any
) -> tuple[ScottTrainer, list[str]]:
    """Train on the wave windows; return the trainer and its fault warnings."""
    defaults = {"learning_rate": 0.01, "epochs": 3, **SMALL_BATCHES}
    trainer = quiet_trainer(**{**defaults, **settings})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(network, wave_windows())
    return trainer, [str(w.message) for w in caught if w.category is FaultWarning]
