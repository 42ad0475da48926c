"""The guard skips non-finite steps, or rolls back outer loops with unchecked steps."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from helpers.engine import Assembled, assemble
from helpers.odd_networks import Linear
from helpers.series import wave_windows

from pts_scott.engine.compiled import CompiledEngine
from pts_scott.engine.eager import EagerEngine
from pts_scott.engine.guard import CHECKED_LOOPS, GuardedEngine

NOWHERE, SOMEWHERE, EVERYWHERE = math.inf, 2.0, -math.inf


class NonFinite(Linear):
    """Non-finite on windows whose last value is above a limit."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("limit", torch.tensor(NOWHERE, dtype=torch.float64))


class NonFiniteGradient(NonFinite):
    """A finite loss with a non-finite gradient: that of a root at zero."""

    def loss(self, past_target, future_target):
        bad = past_target[:, -1] > self.limit
        zero = (0.0 * self.weight).sum()
        root = torch.where(bad, zero, 1.0).sqrt()
        return super().loss(past_target, future_target) + root


class NonFiniteLoss(NonFinite):
    def loss(self, past_target, future_target):
        bad = past_target[:, -1] > self.limit
        return torch.where(bad, torch.nan, super().loss(past_target, future_target))


def guarded_run(
    network: NonFinite, method: str, compiled: bool, optimizer: str = "adam"
) -> Assembled:
    """Assemble a run and make a first, finite outer loop."""
    run = assemble(network, wave_windows(), method, optimizer, compiled=compiled)
    assert isinstance(run.parts.wrapper, GuardedEngine)
    assert type(run.parts.engine) is (CompiledEngine if compiled else EagerEngine)
    network.limit.fill_(NOWHERE)
    report = run.outer_loop(3)
    assert not report.rolled_back
    assert not any(step.skipped for step in report.steps)
    return run


def state_of(run: Assembled) -> tuple[list[torch.Tensor], dict]:
    return run.parameters, copy.deepcopy(run.optimizer.state_dict()["state"])


def assert_unchanged(run: Assembled, before: tuple[list[torch.Tensor], dict]) -> None:
    torch.testing.assert_close(state_of(run), before, rtol=0, atol=0)


#: Engines whose steps are not all checked.
UNCHECKED = pytest.mark.parametrize(
    ("method", "compiled"), [("plain", False), ("plain", True), ("scott", True)]
)


@pytest.mark.parametrize("network", [NonFiniteLoss, NonFiniteGradient])
def test_checked_step_is_skipped_and_ends_its_outer_loop(network):
    """Eager SCott needs every norm, so that each step is checked before its update."""
    network = network()
    run = guarded_run(network, "scott", compiled=False)
    before = state_of(run)
    network.limit.fill_(EVERYWHERE)
    report = run.outer_loop(3)
    (step,) = report.steps
    assert step.skipped
    assert math.isnan(step.loss)
    assert not report.rolled_back
    assert_unchanged(run, before)
    network.limit.fill_(NOWHERE)
    assert len(run.outer_loop(3).steps) == 3
    assert not torch.equal(run.parameters[0], before[0][0])


@pytest.mark.usefixtures("traced")
@UNCHECKED
def test_unchecked_outer_loop_is_rolled_back(method, compiled):
    network = NonFiniteGradient()
    run = guarded_run(network, method, compiled)
    before = state_of(run)
    network.limit.fill_(EVERYWHERE)
    report = run.outer_loop(3)
    assert report.rolled_back
    assert any(map(math.isnan, report.losses))
    assert_unchanged(run, before)


@pytest.mark.usefixtures("traced")
@UNCHECKED
def test_outer_loops_after_a_rollback_are_checked_step_by_step(method, compiled):
    network = NonFiniteGradient()
    run = guarded_run(network, method, compiled)
    network.limit.fill_(EVERYWHERE)
    assert run.outer_loop(3).rolled_back
    assert run.parts.wrapper.state_dict() == {"checked_loops": CHECKED_LOOPS}
    before = state_of(run)
    report = run.outer_loop(3)
    assert not report.rolled_back
    assert all(step.skipped for step in report.steps)
    assert_unchanged(run, before)
    network.limit.fill_(NOWHERE)
    run.outer_loop(3)
    assert not torch.equal(run.parameters[0], before[0][0])
    assert run.parts.wrapper.state_dict() == {"checked_loops": CHECKED_LOOPS - 1}


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("compiled", [False, True])
def test_checked_outer_loop_loses_its_nonfinite_steps_only(compiled):
    network = NonFiniteGradient()
    run = guarded_run(network, "plain", compiled)
    run.parts.wrapper.load_state_dict({"checked_loops": 1})
    network.limit.fill_(SOMEWHERE)
    report = run.outer_loop(10)
    skipped = [step.skipped for step in report.steps]
    assert len(skipped) == 10
    assert 0 < sum(skipped) < 10
    assert not report.rolled_back
    assert all(bool(p.isfinite().all()) for p in run.parameters)
    (state,) = run.optimizer.state.values()
    assert float(state["step"]) == 3 + 10 - sum(skipped)
    # Another fault starts the count of checked loops again.
    assert run.parts.wrapper.state_dict() == {"checked_loops": CHECKED_LOOPS}


@pytest.mark.usefixtures("traced")
@UNCHECKED
def test_steps_are_unchecked_again_after_enough_finite_loops(
    method, compiled, monkeypatch
):
    monkeypatch.setattr("pts_scott.engine.guard.CHECKED_LOOPS", 2)
    network = NonFiniteGradient()
    run = guarded_run(network, method, compiled)
    network.limit.fill_(EVERYWHERE)
    assert run.outer_loop(3).rolled_back
    network.limit.fill_(NOWHERE)
    for _ in range(2):
        run.outer_loop(3)
    assert run.parts.wrapper.state_dict() == {"checked_loops": 0}
    network.limit.fill_(EVERYWHERE)
    assert run.outer_loop(3).rolled_back


@pytest.mark.usefixtures("traced")
@UNCHECKED
def test_state_dict_resumes_checked_loops(method, compiled):
    network = NonFiniteGradient()
    run = guarded_run(network, method, compiled)
    network.limit.fill_(EVERYWHERE)
    assert run.outer_loop(3).rolled_back
    resumed = guarded_run(network, method, compiled)
    resumed.parts.wrapper.load_state_dict(run.parts.wrapper.state_dict())
    network.limit.fill_(EVERYWHERE)
    report = resumed.outer_loop(3)
    assert not report.rolled_back
    assert all(step.skipped for step in report.steps)
    resumed.parts.wrapper.load_state_dict({})  # of an engine without a guard
    assert resumed.outer_loop(3).rolled_back


@pytest.mark.usefixtures("traced")
def test_compiled_and_eager_runs_are_equal_after_a_rollback():
    found = []
    for compiled in (False, True):
        network = NonFiniteGradient()
        run = guarded_run(network, "plain", compiled)
        network.limit.fill_(EVERYWHERE)
        assert run.outer_loop(3).rolled_back
        network.limit.fill_(NOWHERE)
        run.outer_loop(3)  # with the bias correction of Adam's fourth step
        found.append(state_of(run))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("compiled", [False, True])
def test_skipped_step_keeps_the_steps_before_it(compiled, monkeypatch):
    network = NonFiniteGradient()
    run = guarded_run(network, "scott", compiled)
    run.parts.wrapper.load_state_dict({"checked_loops": 1})
    states = []
    direction = run.parts.wrapper.direction

    def record(*arguments):
        states.append(state_of(run))
        if len(states) == 3:
            network.limit.fill_(EVERYWHERE)
        return direction(*arguments)

    monkeypatch.setattr(run.parts.wrapper, "direction", record)
    report = run.outer_loop(5)
    assert [step.skipped for step in report.steps] == [False, False, True]
    assert_unchanged(run, states[2])
    assert not torch.equal(states[2][0][0], states[0][0][0])


def test_nonfinite_loss_skips_an_unchecked_eager_step():
    """A loss is one number, which is cheap to check; so no loop is rolled back."""
    network = NonFiniteLoss()
    run = guarded_run(network, "plain", compiled=False)
    before = state_of(run)
    network.limit.fill_(EVERYWHERE)
    report = run.outer_loop(3)
    assert [step.skipped for step in report.steps] == [True] * 3
    assert not report.rolled_back
    assert_unchanged(run, before)
    assert run.parts.wrapper.state_dict() == {"checked_loops": 0}


def test_optimizer_state_that_was_nonfinite_before_is_reset():
    run = guarded_run(NonFiniteGradient(), "plain", compiled=False)
    before = run.parameters
    for state in run.optimizer.state.values():
        state["exp_avg_sq"].fill_(torch.inf)  # no update would move a parameter again
    assert run.outer_loop(3).rolled_back
    assert not run.optimizer.state
    assert torch.equal(run.parameters[0], before[0])
    run.outer_loop(3)
    assert not torch.equal(run.parameters[0], before[0])
