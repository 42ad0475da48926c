"""Checks of ScottTrainer's arguments: wrong values are refused with their name."""

from __future__ import annotations

import pytest
import torch
from helpers.series import wave_windows
from helpers.training import QUIET, quiet_trainer, tiny_network
from lightning.pytorch.callbacks import BaseFinetuning

from pts_scott import ScottTrainer, WindowIndex
from pts_scott.engine.losses import Losses
from pts_scott.errors import ArgumentError, DataError, ScottError, UnknownArgumentError
from pts_scott.training.trainer_checks import (
    DECIDED_HERE,
    check_validation,
    resolve_device,
)


def test_unknown_argument_suggests_the_nearest_name():
    with pytest.raises(UnknownArgumentError, match="'lerning_rate'.*'learning_rate'"):
        ScottTrainer(lerning_rate=0.1)
    with pytest.raises(UnknownArgumentError, match="'lr'. Did you mean 'learning_rate'"):
        ScottTrainer(lr=0.1)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("method", "scot"),
        ("method", None),
        ("optimizer", "adamw2"),
        ("learning_rate", 0.0),
        ("learning_rate", -1.0),
        ("learning_rate", float("nan")),
        ("learning_rate", "fast"),
        ("weight_decay", -1e-5),
        ("stratifier", "weekday"),
        ("batch_size", 0),
        ("batch_size", 1.5),
        ("anchor_batch_size", 0),
        ("inner_steps", -1),
        ("inner_length", "random"),
        ("gamma", -0.1),
        ("gamma", 1.0),
        ("coefficient", 1.5),
        ("coefficient", "quadratic"),
        ("epochs", 0),
        ("epochs", None),
        ("num_batches_per_epoch", True),
        ("time_budget", 0),
        ("gradient_budget", 0),
        ("output", "first"),
        ("clip_gradient", 0.0),
        ("device", "gpux"),
        ("device", "meta"),
        pytest.param(
            "device",
            "cuda",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA"),
        ),
        ("compile", "maybe"),
        ("seed", -1),
        ("seed", 2**70),
    ],
)
def test_invalid_value_raises_with_the_name_of_its_argument(argument, value):
    with pytest.raises(ArgumentError, match=argument) as caught:
        ScottTrainer(**{argument: value})
    assert isinstance(caught.value, ScottError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resume": True}, "needs a folder"),
        ({"checkpoint": 3}, "expected a folder"),
        ({"resume": "yes", "checkpoint": "x"}, "True or False"),
        ({"skip_limit": 0}, "skip_limit=0"),
    ],
)
def test_invalid_checkpoint_arguments_are_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        ScottTrainer(**arguments)


def test_optimizer_instance_instead_of_a_factory_is_refused():
    made = torch.optim.SGD(tiny_network().parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match="a function that makes one"):
        ScottTrainer(optimizer=made)


@pytest.mark.parametrize("given", [3, lambda optimizer: optimizer])
def test_scheduler_must_be_a_factory_of_schedulers(given):
    with pytest.raises(ArgumentError, match="scheduler"):
        quiet_trainer(scheduler=given).fit(tiny_network(), wave_windows())


# -- trainer_kwargs -----------------------------------------------------------------


def test_unknown_trainer_kwargs_suggest_the_nearest_name():
    with pytest.raises(UnknownArgumentError, match="'callbacks'"):
        ScottTrainer(trainer_kwargs={"callback": []})


@pytest.mark.parametrize("given", [3, ["callbacks"]])
def test_trainer_kwargs_must_be_a_dict(given):
    with pytest.raises(ArgumentError, match="expected a dict"):
        ScottTrainer(trainer_kwargs=given)


@pytest.mark.parametrize("name", DECIDED_HERE)
def test_arguments_of_scott_trainer_are_refused_in_trainer_kwargs(name):
    with pytest.raises(ArgumentError, match=f"'{name}', which ScottTrainer decides"):
        ScottTrainer(trainer_kwargs={name: 3})


class FreezeFirstLayer(BaseFinetuning):
    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.losses.network.layers[0])

    def finetune_function(self, pl_module, epoch, optimizer):
        pass


def test_finetuning_callbacks_are_refused_with_the_reason():
    kwargs = {**QUIET, "callbacks": [FreezeFirstLayer()]}
    with pytest.raises(ArgumentError, match=r"FreezeFirstLayer freezes .* in two runs"):
        quiet_trainer(trainer_kwargs=kwargs)


def test_unsupported_precision_is_refused():
    with pytest.raises(ArgumentError, match="16-mixed, bf16-mixed"):
        quiet_trainer(trainer_kwargs={"precision": "64-true"})


# -- devices and validation data ----------------------------------------------------


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_accelerators_need_support_by_torch_and_lightning(monkeypatch, kind):
    device = torch.device(kind)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
    known = {"cpu", "cuda", "mps", "xpu"}
    monkeypatch.setattr(
        "pts_scott.training.trainer_checks.AcceleratorRegistry.available_accelerators",
        lambda: known,
    )
    assert ScottTrainer(device=kind).device == device
    known.remove(kind)
    with pytest.raises(ArgumentError, match="Lightning trains on"):
        ScottTrainer(device=kind)


def test_device_number_must_exist(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert ScottTrainer(device="cuda:1").device == torch.device("cuda:1")
    with pytest.raises(ArgumentError, match="torch finds 2 here, numbered from 0"):
        ScottTrainer(device="cuda:2")


@pytest.mark.parametrize(("has_cuda", "expected"), [(False, "cpu"), (True, "cuda")])
def test_auto_device_is_cuda_where_available(monkeypatch, has_cuda, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    assert resolve_device("auto") == torch.device(expected)


@pytest.mark.parametrize(
    ("context_length", "prediction_length", "name"),
    [(5, 2, "context_length 6"), (6, 3, "prediction_length 2")],
)
def test_validation_windows_must_have_the_lengths_of_training_windows(
    context_length, prediction_length, name
):
    training = wave_windows()
    validation = WindowIndex(training.series, context_length, prediction_length)
    with pytest.raises(DataError, match=f"training windows have {name}"):
        check_validation(Losses(tiny_network()), training, validation)
