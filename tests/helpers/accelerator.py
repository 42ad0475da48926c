"""The accelerator that tests in ``tests/gpu`` compare with the CPU, and runs on both."""

from __future__ import annotations

import os
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from helpers.series import wave_windows
from helpers.training import quiet_trainer, tiny_network
from pts_scott import ScottTrainer, Stratifier, WindowIndex
from pts_scott.errors import ArgumentError
from pts_scott.training.trainer_checks import available_accelerators, resolve_device

#: Names another device in place of the accelerator: "cpu" checks the tests themselves.
VARIABLE = "PTS_SCOTT_GPU_DEVICE"
NO_ACCELERATOR = "torch and Lightning find no accelerator here; see docs/gpu.md"
CPU = torch.device("cpu")

#: Marks of all modules there. Hardware that we have not seen may make libraries warn.
gpu_tests = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default", "error::pts_scott.errors.ScottWarning"),
]

RUN: dict[str, Any] = {
    "optimizer": "adam",
    "learning_rate": 0.01,
    "weight_decay": 1e-3,
    "batch_size": 4,
    "anchor_batch_size": 4,
    "inner_steps": 7,
    "num_batches_per_epoch": 40,
    "gamma": 0.4,
    "stratifier": Stratifier.series(),
}


def find_device() -> torch.device | None:
    """Return the accelerator, or the device that the environment names; None for none."""
    if os.environ.get(VARIABLE):
        return torch.device(os.environ[VARIABLE])
    for kind in available_accelerators():
        try:
            return resolve_device(kind)
        except ArgumentError:  # torch knows it, but Lightning does not
            return None
    return None


def precision_of(device: torch.device) -> torch.dtype:
    """Return the type in which devices are compared: double, if the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def tolerance_of(dtype: torch.dtype) -> float:
    """Return by how much two devices may differ after some dozens of steps.

    Each adds numbers in its own order. Wrong windows, weights, or a step along an old
    direction differ by a percent or more.
    """
    return 1e-8 if dtype == torch.float64 else 2e-3


def fit_on(
    device: torch.device,
    network: nn.Module | None = None,
    windows: WindowIndex | None = None,
    **settings: Any,
) -> tuple[nn.Module, ScottTrainer]:
    """Train a network (a tiny one) on a device, from the same weights and one seed."""
    dtype = precision_of(find_device() or CPU)
    network = tiny_network(dtype) if network is None else network
    windows = wave_windows(dtype) if windows is None else windows
    trainer = quiet_trainer(device=str(device), **{**RUN, **settings})
    trainer.fit(network, windows, windows.last())
    return network, trainer


def parameters_of(network: nn.Module) -> torch.Tensor:
    """Return all parameters as one vector on the CPU."""
    return torch.cat([p.detach().cpu().reshape(-1) for p in network.parameters()])


def assert_same_parameters(
    found: nn.Module, expected: nn.Module, rtol: float | None = None
) -> None:
    """Compare the parameters of two networks, which may be on different devices."""
    left, right = parameters_of(found), parameters_of(expected)
    rtol = tolerance_of(left.dtype) if rtol is None else rtol
    atol = rtol * float(right.abs().max())
    torch.testing.assert_close(left, right, rtol=rtol, atol=atol)


def assert_same_run(
    found: tuple[nn.Module, ScottTrainer],
    expected: tuple[nn.Module, ScottTrainer],
    rtol: float | None = None,
) -> None:
    """Compare parameters, and the steps and losses of the histories."""
    assert_same_parameters(found[0], expected[0], rtol)
    one, other = found[1].history, expected[1].history
    assert one["step"].tolist() == other["step"].tolist()
    rtol = tolerance_of(parameters_of(found[0]).dtype) if rtol is None else rtol
    for column in ("train_loss", "val_loss", "update_norm"):
        pd.testing.assert_series_equal(one[column], other[column], rtol=10 * rtol)
