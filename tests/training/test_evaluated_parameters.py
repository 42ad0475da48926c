"""Schedule-free optimizers are evaluated at other parameters than they train."""

from __future__ import annotations

from typing import Any

import pytest
import schedulefree
import torch
from helpers.faults import FaultyNetwork, fit_with_warnings
from helpers.processes import needs_fork, outcome, run_processes
from helpers.runs import assert_identical, fit_tiny_network, flat_parameters, run
from helpers.series import wave_windows
from helpers.training import (
    BATCH,
    DECAY,
    QUIET,
    RATE,
    STEPS,
    assert_same_parameters,
    fit_waves,
    quiet_trainer,
    tiny_network,
)

from pts_scott._utils.rng import Generators
from pts_scott.engine.losses import Losses, evaluate
from pts_scott.training.callbacks import Measurements
from pts_scott.training.evaluated_parameters import EvaluatedParameters

KINDS = [
    schedulefree.AdamWScheduleFree,
    schedulefree.SGDScheduleFree,
    schedulefree.RAdamScheduleFree,
]
ADAMW: dict[str, Any] = {
    "optimizer": schedulefree.AdamWScheduleFree,
    "learning_rate": 0.01,
}


def validation_loss(network: torch.nn.Module) -> float:
    windows = wave_windows().last()
    losses = Losses(network, windows.fields)
    return float(evaluate(losses, windows, torch.arange(len(windows))))


# -- the switch itself ----------------------------------------------------------------


def trained(steps: int = 3) -> tuple[EvaluatedParameters, Losses, Any]:
    """Return parameters after some steps of an optimizer that is in training mode."""
    network = tiny_network()
    losses = Losses(network, wave_windows().fields)
    optimizer = schedulefree.AdamWScheduleFree(network.parameters(), lr=0.1)
    evaluated = EvaluatedParameters(losses)
    evaluated.use(optimizer)
    evaluated.train()
    for _ in range(steps):
        for p in network.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    return evaluated, losses, optimizer


def test_evaluation_leaves_trained_parameters_bit_identical():
    evaluated, losses, optimizer = trained()
    before = flat_parameters(losses)
    with evaluated.evaluating():
        assert not optimizer.param_groups[0]["train_mode"]
        assert not torch.equal(flat_parameters(losses), before)
    assert optimizer.param_groups[0]["train_mode"]
    assert torch.equal(flat_parameters(losses), before)


def test_evaluations_may_be_nested():
    evaluated, losses, optimizer = trained()
    with evaluated.evaluating():
        inside = flat_parameters(losses)
        with evaluated.evaluating():
            assert torch.equal(flat_parameters(losses), inside)
        assert not optimizer.param_groups[0]["train_mode"]
        assert torch.equal(flat_parameters(losses), inside)


def test_parameters_are_switched_back_after_an_error():
    evaluated, losses, optimizer = trained()
    before = flat_parameters(losses)
    with pytest.raises(ValueError, match="in an evaluation"), evaluated.evaluating():
        raise ValueError("in an evaluation")
    assert optimizer.param_groups[0]["train_mode"]
    assert torch.equal(flat_parameters(losses), before)


def test_copies_are_of_the_parameters_to_evaluate():
    evaluated, losses, _ = trained()
    copy = evaluated.copy_state()
    evaluated.finish()
    for name, value in copy["parameters"].items():
        assert torch.equal(value, losses.trainable()[name])


class OneMode(torch.optim.SGD):
    """An optimizer whose ``train`` is a flag and not a method."""

    train = True

    def eval(self) -> None:
        raise AssertionError


def test_other_optimizers_are_never_switched():
    network = tiny_network()
    evaluated = EvaluatedParameters(Losses(network, wave_windows().fields))
    evaluated.use(OneMode(network.parameters(), lr=0.1))
    assert not evaluated.differ
    before = flat_parameters(network)
    evaluated.train()
    with evaluated.evaluating():
        pass
    evaluated.finish()
    assert torch.equal(flat_parameters(network), before)


# -- runs -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_training_equals_a_loop_in_plain_torch(kind):
    found = fit_waves(
        tiny_network(), optimizer=kind, learning_rate=RATE, weight_decay=DECAY
    )
    network, windows, generators = tiny_network(), wave_windows(), Generators.from_seed(1)
    optimizer = kind(network.parameters(), lr=RATE, weight_decay=DECAY)
    optimizer.train()
    for _ in range(STEPS):
        batch = windows.gather(windows.draw(BATCH, generators.inner))
        optimizer.zero_grad()
        network.loss(batch["past_target"], batch["future_target"]).mean().backward()
        optimizer.step()
    optimizer.eval()
    # In double precision only the order of sums differs.
    assert_same_parameters(found, network, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("method", ["plain", "scott", "mars", "storm"])
def test_last_validation_loss_is_that_of_the_parameters_returned(method):
    network, trainer = run(method=method, output="last", **ADAMW)
    last = trainer.history["val_loss"].dropna().iloc[-1]
    assert validation_loss(network) == pytest.approx(last, rel=1e-12)


def test_best_parameters_are_those_of_the_lowest_validation_loss():
    settings = {**ADAMW, "learning_rate": 0.3, "epochs": 8}
    network, trainer = run(method="plain", output="best", **settings)
    losses = trainer.history["val_loss"].dropna()
    assert losses.idxmin() != losses.index[-1], "the last ones were not the best"
    assert validation_loss(network) == pytest.approx(losses.min(), rel=1e-12)


def test_validation_does_not_change_the_run():
    found = [
        fit_tiny_network(
            quiet_trainer(method="plain", epochs=3, **ADAMW), validate=validate
        )
        for validate in (False, True)
    ]
    assert_same_parameters(*found)


class Measure(Measurements):
    """Records the validation loss, and whether the optimizer is in training mode."""

    def __init__(self) -> None:
        super().__init__(4)
        self.losses: list[float] = []
        self.modes: list[bool] = []

    def measure(self, trainer, module):
        self.losses.append(validation_loss(module.losses.network))
        self.modes.append(trainer.optimizers[0].param_groups[0]["train_mode"])
        module.losses.train()


def test_callbacks_measure_the_parameters_to_evaluate_and_change_nothing():
    measure = Measure()
    kwargs = {**QUIET, "callbacks": [measure]}
    settings = {"method": "plain", "inner_steps": 5, **ADAMW}
    network = fit_tiny_network(quiet_trainer(trainer_kwargs=kwargs, **settings))
    assert measure.modes == [False] * 5
    assert measure.losses[-1] == pytest.approx(validation_loss(network), rel=1e-12)
    assert_same_parameters(network, fit_tiny_network(quiet_trainer(**settings)))


@pytest.mark.parametrize("output", ["last", "best", "sampled"])
@pytest.mark.parametrize("kind", KINDS)
def test_killed_run_is_resumed_exactly(kind, output, tmp_path):
    settings = {**ADAMW, "optimizer": kind, "method": "plain", "output": output}
    whole = run(**settings)
    for crash in (3, 30):
        run(tmp_path / str(crash), crash, **settings)
        assert_identical(run(tmp_path / str(crash), **settings), whole)


@pytest.mark.parametrize("output", ["last", "best"])
def test_finished_run_is_loaded_and_continued(output, tmp_path):
    settings = {**ADAMW, "method": "plain", "output": output}
    whole = run(tmp_path, **settings)
    assert_identical(run(tmp_path, **settings), whole)
    longer = run(epochs=5, **settings)
    assert_identical(run(tmp_path, epochs=5, **settings), longer)


@pytest.mark.usefixtures("traced")
def test_compiled_gradients_equal_eager_ones():
    found = [run(method="scott", compile=c, **ADAMW) for c in (True, False)]
    assert found[0][1].compiled
    # In double precision only the order of sums differs.
    assert_same_parameters(found[0][0], found[1][0], rtol=1e-9, atol=1e-11)


@needs_fork
def test_several_processes_take_the_steps_of_one(tmp_path):
    settings = {**ADAMW, "method": "plain", "output": "last"}
    expected, history = outcome(**settings)()
    for parameters, own in run_processes(tmp_path, 2, outcome(processes=2, **settings)):
        for x, y in zip(parameters, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)
        assert (own["val_loss"] - history["val_loss"]).abs().max() < 1e-9


def test_optimizer_state_survives_a_fault_even_if_it_is_large(monkeypatch):
    """Its count of steps is an option, and would not fit a state that was reset."""
    settings = {"method": "plain", "inner_steps": 3, "skip_limit": 50, **ADAMW}
    found = []
    for is_small in (True, False):
        monkeypatch.setattr(
            "pts_scott.engine.build.affords_state", lambda _, small=is_small: small
        )
        network = FaultyNetwork("gradient")
        trainer, _ = fit_with_warnings(network, **settings)
        assert trainer.history["skipped"].iloc[-1] > 0
        found.append(flat_parameters(network))
    assert torch.equal(*found)
    assert bool(found[0].isfinite().all())
