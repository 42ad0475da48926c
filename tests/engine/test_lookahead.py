"""The lookahead engine asks the early stop one step late, and trains the same."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.engine import Assembled, assemble
from helpers.odd_networks import Linear
from helpers.series import wave_windows
from helpers.training import tiny_network

from pts_scott.engine.build import EngineOptions, build_engine
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.lookahead import (
    DeferredEarlyStop,
    LookaheadEngine,
    should_look_ahead,
)
from pts_scott.method.early_stop import NeverStop
from pts_scott.method.protocol import Step
from pts_scott.method.samplers import SAMPLES_AHEAD

CPU = torch.device("cpu")
M = 4  # windows in a mini-batch
STOP_AT_ONCE = 1.0  # γ: the first step of a loop meets ‖v(t,0)‖² ≤ γ‖v(t,0)‖²


@pytest.fixture
def lookahead(monkeypatch):
    """Look ahead on the CPU, too."""
    monkeypatch.setattr("pts_scott.engine.build.should_look_ahead", lambda *_: True)


def run_with(
    gamma: float | None, method: str = "scott", device: str = "cpu"
) -> Assembled:
    settings = {"batch_size": M, "gamma": gamma, "device": device}
    return assemble(tiny_network(), wave_windows(), method, **settings)


@pytest.mark.usefixtures("lookahead")
def test_early_stop_cancels_the_next_direction():
    run = run_with(STOP_AT_ONCE)
    assert isinstance(run.parts.wrapper, LookaheadEngine)
    report = run.outer_loop(5)
    assert len(report.steps) == 1
    assert not report.steps[0].cancelled
    # The gradients of the cancelled direction are counted, too.
    # v(t,0) itself is the anchor, and costs none.
    assert run.counters.gradients == run.method.anchor_windows + 2 * M


def test_windows_of_the_cancelled_direction_are_drawn_first(monkeypatch):
    waiting = run_with(STOP_AT_ONCE)
    expected = [waiting.outer_loop(5) for _ in range(3)]
    monkeypatch.setattr("pts_scott.engine.build.should_look_ahead", lambda *_: True)
    ahead = run_with(STOP_AT_ONCE)
    applied = []
    apply = ahead.parts.wrapper.apply

    def record(v, last):
        applied.append(v.windows)
        return apply(v, last)

    monkeypatch.setattr(ahead.parts.wrapper, "apply", record)
    for report in expected:
        found = ahead.outer_loop(5)
        assert len(found.steps) == len(report.steps) == 1
        assert torch.equal(found.steps[0].windows, report.steps[0].windows)
    # Of each loop: the step that was made, and the cancelled one that begins the next.
    assert len(applied) == 6
    assert torch.equal(applied[1], applied[2])
    assert torch.equal(applied[3], applied[4])
    for x, y in zip(ahead.parameters, waiting.parameters, strict=True):
        assert torch.equal(x, y)


@pytest.mark.usefixtures("lookahead")
@pytest.mark.parametrize("gamma", [None, 0.0])
def test_without_an_early_stop_nothing_is_cancelled(gamma):
    run = run_with(gamma)
    assert len(run.outer_loop(5).steps) == 5
    # None of the five samples was put back.
    assert len(run.method.state_dict()["step"]["ahead"]) == SAMPLES_AHEAD - 5
    assert run.counters.gradients == run.method.anchor_windows + 4 * 2 * M


@pytest.mark.usefixtures("lookahead")
def test_method_without_anchor_never_stops_early():
    run = run_with(STOP_AT_ONCE, "plain")
    assert isinstance(run.parts.early_stop, NeverStop)
    assert len(run.outer_loop(5).steps) == 5


class NonFiniteAlways(Linear):
    def loss(self, past_target, future_target):
        return super().loss(past_target, future_target) * torch.nan


@pytest.mark.usefixtures("lookahead")
def test_nonfinite_direction_becomes_an_update_of_zero():
    run = assemble(NonFiniteAlways(), wave_windows(), "scott")
    (before,) = run.parameters
    report = run.outer_loop(2)
    assert all(map(math.isnan, report.losses))
    assert not math.isfinite(report.squared_norm), "the history shows the fault"
    (after,) = run.parameters
    # SGD with a learning rate of 0.1 still applies its weight decay of 1e-3.
    torch.testing.assert_close(after, before * (1 - 1e-4) ** 2, rtol=1e-12, atol=0)


def test_only_accelerators_look_ahead_and_only_without_random_numbers():
    cuda = torch.device("cuda")
    assert not should_look_ahead(CPU, stochastic=False, scaled=False)
    assert should_look_ahead(cuda, stochastic=False, scaled=False)
    assert not should_look_ahead(cuda, stochastic=True, scaled=False)
    assert not should_look_ahead(cuda, stochastic=False, scaled=True)


@pytest.mark.parametrize(
    ("method", "gamma", "gradients", "ahead"),
    [
        ("scott", 0.1, {}, True),
        ("scott", 0.1, {"stochastic": frozenset({"device"})}, False),
        ("scott", None, {"stochastic": frozenset({"device"})}, True),
        ("plain", 0.1, {"stochastic": frozenset({"device"})}, True),
        ("plain", 0.1, {"scaler": torch.amp.GradScaler("cpu")}, False),
        ("scott", None, {"scaler": torch.amp.GradScaler("cpu")}, False),
    ],
    ids=[
        "default",
        "dropout",
        "no early stop",
        "no anchor",
        "plain, fp16",
        "scott, fp16",
    ],
)
def test_accelerator_is_waited_for_where_a_step_may_be_cancelled_or_overflow(
    method, gamma, gradients, ahead
):
    run = run_with(gamma, method, device="meta")
    losses, gather = run.parts.engine.gradients.losses, run.parts.engine.gather
    made = Gradients(losses, **gradients)
    options = EngineOptions(run.optimizer, run.optimizer.step)
    parts = build_engine(run.method, made, gather, run.counters, options)
    assert isinstance(parts.wrapper, LookaheadEngine) is ahead


def step(squared_norm: float, cancelled: bool = False) -> Step:
    windows = torch.zeros(1, dtype=torch.long)
    norm = torch.tensor(squared_norm)
    return Step(windows, torch.tensor(1.0), norm, cancelled=cancelled)


def test_deferred_early_stop_answers_one_step_late():
    early_stop = DeferredEarlyStop(0.5, CPU)
    early_stop.begin()
    assert not early_stop.fires(), "there was no step yet"
    assert not early_stop(step(8.0))
    assert not early_stop.fires()
    assert not early_stop(step(4.0)), "the last step is not known yet"
    assert early_stop.fires()
    assert early_stop(step(1.0, cancelled=True))
    early_stop.begin()
    assert not early_stop.fires(), "the norm belongs to the outer loop before"
    assert not early_stop(step(4.0))
    assert not early_stop.fires(), "4 is the first norm of this loop"
