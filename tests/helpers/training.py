"""A trainer and a network for tests: small, quiet and seeded."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from pts_scott import ScottTrainer

QUIET: dict[str, Any] = {"enable_progress_bar": False}


def quiet_trainer(**kwargs: Any) -> ScottTrainer:
    """Return a trainer for tests: few steps, a seed, no progress bar, no compilation."""
    settings: dict[str, Any] = {
        "epochs": 1,
        "num_batches_per_epoch": 20,
        "anchor_batch_size": 16,  # the few strata of small data, well above a mini-batch
        "compile": False,
        "seed": 1,
        "trainer_kwargs": QUIET,
    }
    settings = {**settings, **kwargs}
    if inspect.isfunction(settings.get("optimizer")):  # which sets its own numbers
        for name in ("learning_rate", "weight_decay"):
            settings.pop(name, None)
    return ScottTrainer(**settings)


class TinyNetwork(nn.Module):
    """A small nonlinear network with one loss per window."""

    def __init__(self, context_length: int = 6, prediction_length: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(context_length, 5), nn.Tanh(), nn.Linear(5, prediction_length)
        )

    def loss(self, past_target: Tensor, future_target: Tensor) -> Tensor:
        return (self.layers(past_target) - future_target).square().mean(dim=1)


def tiny_network(dtype: torch.dtype = torch.float64) -> TinyNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TinyNetwork().to(dtype)
