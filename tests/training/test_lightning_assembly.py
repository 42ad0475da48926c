"""Lightning's trainer of a run, made of the user's trainer_kwargs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from helpers.runs import fit_tiny_network
from helpers.training import QUIET, quiet_trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.plugins import MixedPrecision
from lightning_utilities.core import rank_zero

from pts_scott.errors import ArgumentError
from pts_scott.training.lightning_assembly import LightningOptions, without_tips


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


def test_tips_of_lightning_are_left_out_and_other_lines_stay():
    logger, seen = rank_zero.log, []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())
    logger.addHandler(handler)
    try:
        with without_tips():
            logger.error("💡 Tip: For seamless cloud logging, try installing …")
            logger.error("a checkpoint was restored")
        logger.error("💡 Tip: of a trainer that is not ours")
    finally:
        logger.removeHandler(handler)
    assert seen == ["a checkpoint was restored", "💡 Tip: of a trainer that is not ours"]


@pytest.mark.slow
def test_training_in_a_script_prints_no_advertisement():
    script = """
        import lightning.pytorch as pl
        from helpers.runs import fit_tiny_network
        from pts_scott import ScottTrainer
        fit_tiny_network(ScottTrainer(num_batches_per_epoch=5, epochs=1))
        print("trained", flush=True)
        if {theirs}:
            pl.Trainer(logger=False, accelerator="cpu")
    """
    printed = {}
    for theirs in (False, True):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script.format(theirs=theirs))],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
        )
        printed[theirs] = done.stdout + done.stderr
        assert "trained" in printed[theirs]
    assert "Tip" not in printed[False]
    assert "Tip" in printed[True]  # of a trainer that is not ours
