"""Lightning's trainer of a run, made of the user's trainer_kwargs."""

from __future__ import annotations

import pytest
import torch
from helpers.runs import fit_tiny_network
from helpers.training import QUIET, quiet_trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.plugins import MixedPrecision

from pts_scott.errors import ArgumentError
from pts_scott.training.lightning_assembly import LightningOptions


def test_several_processes_without_ddp_are_refused():
    kwargs = {**QUIET, "strategy": "ddp_spawn", "devices": 2}
    with pytest.raises(ArgumentError, match="'strategy': 'ddp'"):
        fit_tiny_network(quiet_trainer(trainer_kwargs=kwargs))


def test_callbacks_and_plugins_may_be_single_objects_lists_or_missing():
    stop, plugin = EarlyStopping("val_loss"), MixedPrecision("bf16-mixed", "cpu")
    for callbacks, plugins in ((stop, plugin), ([stop], [plugin]), ((stop,), (plugin,))):
        options = LightningOptions({"callbacks": callbacks, "plugins": plugins})
        assert options.callbacks == [stop]
        assert options.plugins == [plugin]
    assert LightningOptions({}).callbacks == LightningOptions({}).plugins == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, False),
        ({"precision": "32-true"}, False),
        ({"precision": "bf16-mixed"}, True),
        ({"plugins": MixedPrecision("bf16-mixed", "cpu")}, True),
    ],
    ids=["default", "full", "argument", "plugin"],
)
def test_mixed_precision_is_recognised(given, expected):
    assert LightningOptions(given).is_mixed_precision is expected


@pytest.mark.parametrize(
    ("kwargs", "environment", "expected"),
    [
        ({}, {}, "cuda"),
        ({}, {"LOCAL_RANK": "1"}, "cuda"),
        ({"strategy": "ddp", "devices": 2}, {}, "cuda:0"),
        ({"strategy": "ddp", "devices": 2}, {"LOCAL_RANK": "1"}, "cuda:1"),
        ({"strategy": "ddp", "devices": 2}, {"SLURM_LOCALID": "1"}, "cuda:1"),
        ({"strategy": "ddp", "devices": [2, 5]}, {"LOCAL_RANK": "1"}, "cuda:5"),
        ({"strategy": "ddp", "devices": "2,5"}, {"LOCAL_RANK": "1"}, "cuda:5"),
    ],
)
def test_each_process_has_the_device_that_lightning_gives_it(
    kwargs, environment, expected, monkeypatch
):
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = LightningOptions(kwargs)
    assert options.process_device(torch.device("cuda")) == torch.device(expected)
    assert options.process_device(torch.device("cpu")) == torch.device("cpu")
