"""Which runs are compiled."""

from __future__ import annotations

import pytest
import torch
from helpers.runs import fit_tiny_network, flat_parameters
from helpers.series import wave_windows
from helpers.training import quiet_trainer
from torch import nn

from pts_scott.training.compile_policy import NO_COMPILER, wants_compilation

HAS_COMPILER = "pts_scott.training.compile_policy.has_compiler"


@pytest.mark.parametrize(
    ("arguments", "network", "expected"),
    [
        ({"epochs": 10, "num_batches_per_epoch": 1000}, nn.Linear(6, 2), True),
        ({"epochs": 10, "num_batches_per_epoch": 999}, nn.Linear(6, 2), False),
        ({"epochs": None, "time_budget": 60.0}, nn.Linear(6, 2), True),
        ({"epochs": None, "time_budget": 59.0}, nn.Linear(6, 2), False),
        ({"epochs": None, "gradient_budget": 640_000}, nn.Linear(6, 2), True),
        ({"epochs": None, "gradient_budget": 639_999}, nn.Linear(6, 2), False),
        # Of as many parameters, only those of a convolution count for each step.
        ({"num_batches_per_epoch": 10_000}, nn.LSTM(256, 256), True),
        ({"num_batches_per_epoch": 10_000}, nn.Linear(725, 725), True),
        ({"num_batches_per_epoch": 10_000}, nn.Conv1d(512, 512, 2), False),
        ({"num_batches_per_epoch": 10_000}, nn.Linear(2000, 2000), False),
        ({"num_batches_per_epoch": 9_999, "compile": True}, nn.Linear(6, 2), True),
        ({"num_batches_per_epoch": 10_000, "compile": False}, nn.Linear(6, 2), False),
    ],
)
def test_auto_compiles_small_networks_in_long_runs(
    arguments, network, expected, monkeypatch
):
    monkeypatch.setattr(HAS_COMPILER, lambda: True)
    trainer = quiet_trainer(**{"compile": "auto", **arguments})
    numbers, budget = trainer.hyperparameters, trainer.budget
    found = wants_compilation(trainer.compile, network, wave_windows(), numbers, budget)
    assert found is expected


def test_without_a_compiler_training_warns_and_stays_eager(monkeypatch):
    monkeypatch.setattr(HAS_COMPILER, lambda: False)
    trainer = quiet_trainer(compile=True)
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
        fit_tiny_network(trainer)
    assert not trainer.compiled
    assert trainer.compile_fallback == NO_COMPILER


@pytest.mark.slow
def test_compiled_run_equals_an_eager_run():
    eager = fit_tiny_network(quiet_trainer(compile=False))
    trainer = quiet_trainer(compile=True)
    compiled = fit_tiny_network(trainer)
    assert trainer.compile_seconds > 0
    assert trainer.history["gradients"].iloc[-1] > 0
    # In double precision only the order of summation differs.
    torch.testing.assert_close(
        flat_parameters(compiled), flat_parameters(eager), rtol=1e-8, atol=1e-10
    )
