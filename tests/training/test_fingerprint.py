"""Fingerprints: a run does not resume from the checkpoint of another run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.runs import DropoutNetwork, run
from helpers.series import wave_entries
from helpers.training import quiet_trainer, tiny_network
from torch import nn

from pts_scott import Stratifier, WindowIndex
from pts_scott.errors import CheckpointMismatchError
from pts_scott.training.fingerprint import describe_optimizer

SETTINGS = {
    "learning_rate": 0.01,
    "batch_size": 4,
    "anchor_batch_size": 2,
    "inner_steps": 7,
    "num_batches_per_epoch": 18,
    "stratifier": Stratifier.series(),
}


def exponential(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def rmsprop(parameters):
    return torch.optim.RMSprop(parameters, lr=1e-3)


def grouped(parameters):
    return torch.optim.RMSprop([{"params": [p]} for p in parameters], lr=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 5}, "batch_size, is 4 there and 5 here"),
        ({"seed": 7}, "settings, seed, is 1 there and 7 here"),
        ({"scheduler": exponential}, "scheduler, is None there and exponential here"),
        ({"optimizer": torch.optim.RMSprop}, "optimizer, is sgd there and RMSprop"),
        ({"stratifier": Stratifier.periodic(3)}, "data, strata"),
        ({"network": DropoutNetwork()}, "model, network"),
    ],
)
def test_checkpoint_of_other_settings_is_refused(settings, message, tmp_path):
    run(tmp_path, 20, seed=1)
    with pytest.raises(CheckpointMismatchError, match=message):
        run(tmp_path, **{"seed": 1, **settings})


def test_optimizers_made_by_functions_are_distinguished(tmp_path):
    run(tmp_path, 20, optimizer=rmsprop)
    run(tmp_path, 30, optimizer=rmsprop)
    with pytest.raises(CheckpointMismatchError, match="settings, optimizer"):
        run(tmp_path, optimizer=grouped)


def test_kernels_of_an_optimizer_are_no_part_of_a_run():
    """Another device may have other ones, and the run can be resumed there."""
    found = {
        describe_optimizer(torch.optim.Adagrad(tiny_network().parameters(), fused=fused))
        for fused in (True, None)
    }
    assert len(found) == 1


def test_layers_without_parameters_are_distinguished(tmp_path):
    def network(layer: nn.Module) -> nn.Module:
        network = tiny_network()
        network.layer = layer
        return network

    run(tmp_path, 20, network=network(nn.ReLU()))
    with pytest.raises(CheckpointMismatchError, match="module network.layer, is ReLU"):
        run(tmp_path, network=network(nn.Tanh()))


def make_windows(entries: list[dict[str, Any]]) -> WindowIndex:
    return WindowIndex.from_dataset(entries, "h", 6, 2, dtype=torch.float64)


def changed_entries(name: str, change: Any) -> list[dict[str, Any]]:
    return [{**entry, name: change(entry[name])} for entry in wave_entries()]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (wave_entries(seed=5), "data, values"),
        (changed_entries("start", lambda _: "1999-03-01"), "data, dates"),
        (changed_entries("item_id", lambda name: f"{name} too"), "data, names"),
        (wave_entries()[:2], "data, "),
        (changed_entries("target", lambda target: np.asarray(target)[3:]), "data, "),
    ],
)
@pytest.mark.parametrize("part", ["training", "validation"])
def test_checkpoint_of_other_data_is_refused(entries, message, part, tmp_path):
    def fit(training: Any, validation: Any, epochs: int) -> None:
        trainer = quiet_trainer(
            checkpoint=tmp_path, resume=True, epochs=epochs, seed=1, **SETTINGS
        )
        trainer.fit(
            tiny_network(), make_windows(training), make_windows(validation).last()
        )

    own = wave_entries()
    fit(own, own, 1)
    fit(own, own, 2)
    message = message if part == "training" else "validation data"
    with pytest.raises(CheckpointMismatchError, match=message):
        fit(*((entries, own) if part == "training" else (own, entries)), 3)
