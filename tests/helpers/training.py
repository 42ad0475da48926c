"""A small, quiet, seeded trainer, a tiny network, and a training loop in plain torch."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from helpers.series import wave_windows
from pts_scott import ScottTrainer, Stratifier
from pts_scott._utils.rng import Generators

#: The paper's settings, which are not the defaults.
PAPER: dict[str, Any] = {
    "method": "scott",
    "optimizer": "sgd",
    "output": "last",
    "clip_gradient": None,
}
QUIET: dict[str, Any] = {"enable_progress_bar": False}

#: Optimizers by name, without fused kernels.
UNFUSED: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
}
RATE, DECAY, BATCH, STEPS = 0.02, 1e-3, 4, 25  # of `fit_waves` and `plain_loop`


def quiet_trainer(**kwargs: Any) -> ScottTrainer:
    """Make a quiet trainer of the paper's method with few steps, nothing compiled."""
    settings: dict[str, Any] = {
        **PAPER,
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
    """Make a `TinyNetwork` with the same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TinyNetwork().to(dtype)


def fit_waves(network: nn.Module, **settings: Any) -> nn.Module:
    """Train a network on the wave windows; the method is plain unless given."""
    defaults: dict[str, Any] = {
        "method": "plain",
        "learning_rate": RATE,
        "weight_decay": DECAY,
        "batch_size": BATCH,
        "stratifier": Stratifier.series(),
        "num_batches_per_epoch": STEPS,
    }
    quiet_trainer(**{**defaults, **settings}).fit(network, wave_windows())
    return network


def plain_loop(network: nn.Module, optimizer: str) -> nn.Module:
    """Train a network on the windows of `fit_waves` by a loop in plain torch."""
    windows, generators = wave_windows(), Generators.from_seed(1)
    made = UNFUSED[optimizer](
        network.parameters(),
        lr=RATE,
        weight_decay=DECAY,
        foreach=False,
    )
    for _ in range(STEPS):
        batch = windows.gather(windows.draw(BATCH, generators.inner))
        made.zero_grad()
        network.loss(batch["past_target"], batch["future_target"]).mean().backward()
        made.step()
    return network


def assert_same_parameters(
    left: nn.Module, right: nn.Module, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Compare the parameters of two networks, bit by bit without a tolerance."""
    for x, y in zip(left.parameters(), right.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=rtol, atol=atol)
