"""Checkpoints: written on one device and resumed on another, or on the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.accelerator import (
    CPU,
    assert_same_parameters,
    fit_on,
    gpu_tests,
    parameters_of,
)
from helpers.runs import CrashAt, CrashError
from helpers.training import QUIET

from pts_scott import Checkpoints
from pts_scott.method.methods import METHODS

pytestmark = gpu_tests

STEPS = {"epochs": 3, "num_batches_per_epoch": 20}


def resumed(folder: Path, first: torch.device, second: torch.device, **settings):
    """Train on one device, crash at step 30, and resume on another."""
    settings = {**STEPS, "checkpoint": Checkpoints(folder, steps=1), **settings}
    kwargs = {**QUIET, "callbacks": [CrashAt(30)]}
    with pytest.raises(CrashError):
        fit_on(first, trainer_kwargs=kwargs, **settings)
    network, trainer = fit_on(second, resume=True, **settings)
    assert trainer.history["step"].iloc[-1] >= 60
    return network


@pytest.mark.parametrize("direction", ["to the CPU", "from the CPU", "same"])
@pytest.mark.parametrize("method", METHODS)
def test_run_is_resumed_on_another_device(device, method, direction, tmp_path):
    places = {
        "to the CPU": (device, CPU),
        "from the CPU": (CPU, device),
        "same": (device, device),
    }
    settings = {"method": method, "optimizer": "adam"}
    found = resumed(tmp_path, *places[direction], **settings)
    assert_same_parameters(found, fit_on(CPU, **STEPS, **settings)[0])


@pytest.mark.parametrize("to_cpu", [True, False])
@pytest.mark.parametrize(
    "optimizer", ["sgd", "adamw", "adagrad", torch.optim.Adagrad], ids=str
)
def test_optimizers_use_the_kernels_of_the_new_device(
    device, optimizer, to_cpu, tmp_path
):
    places = (device, CPU) if to_cpu else (CPU, device)
    settings = {"method": "plain", "optimizer": optimizer}
    found = resumed(tmp_path, *places, **settings)
    assert_same_parameters(found, fit_on(CPU, **STEPS, **settings)[0])


def test_resumed_run_on_the_same_device_draws_the_dropout_of_an_uninterrupted_one(
    device, tmp_path
):
    from helpers.runs import DropoutNetwork

    if device.type == "mps":
        pytest.skip("the network is in double precision")
    settings = {"method": "scott", **STEPS}
    whole = fit_on(device, DropoutNetwork(), **settings)[0]
    kwargs = {**QUIET, "callbacks": [CrashAt(30)]}
    settings["checkpoint"] = Checkpoints(tmp_path, steps=1)
    with pytest.raises(CrashError):
        fit_on(device, DropoutNetwork(), trainer_kwargs=kwargs, **settings)
    again = fit_on(device, DropoutNetwork(), resume=True, **settings)[0]
    assert_same_parameters(again, whole)
    assert bool(parameters_of(again).isfinite().all())
