"""Methods that build on the previous step: it must have been applied to be remembered."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.engine import Assembled, assemble
from helpers.faults import FaultyNetwork, nonfinite_wave_windows
from helpers.reference import STRATIFIER, reference_path, train
from helpers.runs import assert_identical, run
from helpers.series import wave_windows
from helpers.training import tiny_network

from pts_scott.method.memory import Memory
from pts_scott.method.methods import METHODS
from pts_scott.method.protocol import Sample, Step

REMEMBERING = [name for name, kind in METHODS.items() if kind.needs_direction]
GOOD = [[1, 2, 3, 4], [20, 21, 22, 23], [50, 60, 70, 80]]


def step(loss: float = 1.0, squared_norm: float = 1.0, cancelled: bool = False) -> Step:
    numbers = torch.tensor(loss), torch.tensor(squared_norm)
    return Step(torch.zeros(1, dtype=torch.long), *numbers, cancelled=cancelled)


def ones(value: float) -> tuple[torch.Tensor, ...]:
    return (torch.full((2,), value), torch.full((3,), value))


# -- the memory itself ----------------------------------------------------------------


def test_memory_is_a_copy_of_what_was_proposed():
    memory, values = Memory(), ones(1.0)
    memory.propose(values)
    assert memory.values == (), "the step has not been applied yet"
    memory.settle(step())
    values[0].zero_()
    torch.testing.assert_close(memory.values, (ones(1.0),))


@pytest.mark.parametrize("devices", [("cpu",), ()], ids=["waiting", "not waiting"])
@pytest.mark.parametrize(
    "fault",
    [{"loss": math.nan}, {"squared_norm": math.inf}, {"cancelled": True}],
    ids=lambda fault: next(iter(fault)),
)
def test_step_that_was_not_applied_leaves_no_trace(fault, devices, monkeypatch):
    monkeypatch.setattr("pts_scott.method.memory.IMMEDIATE", devices)
    memory = Memory()
    for value, made in ((1.0, step()), (math.nan, step(**fault))):
        memory.propose(ones(value))
        memory.settle(made)
    torch.testing.assert_close(memory.values, (ones(1.0),))
    memory.settle(step())
    torch.testing.assert_close(memory.values, (ones(1.0),))
    memory.propose(ones(2.0))
    memory.settle(step())
    torch.testing.assert_close(memory.values, (ones(2.0),))


def test_first_step_that_fails_leaves_nothing():
    memory = Memory()
    memory.propose(ones(math.nan))
    memory.settle(step(loss=math.nan))
    assert memory.values == ()


def test_first_step_that_fails_leaves_finite_values_on_accelerators(monkeypatch):
    monkeypatch.setattr("pts_scott.method.memory.IMMEDIATE", ())
    memory = Memory()
    memory.propose(ones(math.nan), ones(3.0))
    memory.settle(step(loss=math.nan))
    torch.testing.assert_close(memory.values, (ones(0.0), ones(3.0)))


def test_memory_continues_from_its_state():
    memory, again = Memory(), Memory()
    memory.propose(ones(1.0), ones(2.0))
    memory.settle(step())
    again.load_state_dict(memory.state_dict(), torch.device("cpu"))
    torch.testing.assert_close(again.values, memory.values, rtol=0, atol=0)


# -- the methods ----------------------------------------------------------------------


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("method", REMEMBERING)
def test_compiled_steps_equal_the_reference(method, optimizer):
    windows = wave_windows()
    strata = STRATIFIER.stratify(windows)
    trainer = train(method, optimizer, windows=windows, compile=True)
    assert trainer.compiled
    expected = reference_path(method, optimizer, None, windows, strata)
    # In double precision only the order of sums differs.
    torch.testing.assert_close(trainer.path, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", REMEMBERING)
def test_coefficient_zero_equals_plain(method):
    plain, without = train("plain"), train(method, coefficient=0.0)
    torch.testing.assert_close(without.path, plain.path, rtol=0, atol=0)


@pytest.mark.parametrize("method", REMEMBERING)
def test_clipping_shortens_updates_and_not_what_is_remembered(method):
    found = []
    for clip in (None, 1e-9):
        steps = run_with(method, tiny_network(), GOOD[:1], clip_gradient=clip)
        found.append(steps.method.state_dict()["memory"]["values"])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def run_with(method: str, network, batches: list[list[int]], **options) -> Assembled:
    """Make a step with each of some mini-batches, in one outer loop."""
    made = assemble(network, wave_windows(), method, "adam", **options)
    samples = iter([Sample(torch.tensor(numbers)) for numbers in batches])
    made.method.minibatch = lambda: next(samples)
    made.outer_loop(len(batches))
    return made


@pytest.mark.parametrize(
    ("kind", "compiled", "clip_gradient"),
    [
        ("loss", False, None),
        ("infinite", False, 1.0),
        ("gradient", False, None),
        ("gradient", False, 1.0),
        ("gradient", True, None),
    ],
)
@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("method", REMEMBERING)
@pytest.mark.usefixtures("traced")
def test_skipped_step_changes_no_later_one(method, kind, place, compiled, clip_gradient):
    bad = [*sorted(nonfinite_wave_windows())[:1], 2, 3, 4]
    options = {"compiled": compiled, "clip_gradient": clip_gradient}
    faulty = [*GOOD[:place], bad, *GOOD[place:]]
    found = run_with(method, FaultyNetwork(kind), faulty, **options)
    expected = run_with(method, FaultyNetwork(kind), GOOD, **options)
    torch.testing.assert_close(found.parameters, expected.parameters, rtol=0, atol=0)


@pytest.mark.parametrize("method", REMEMBERING)
def test_faulty_step_is_not_remembered_by_an_engine_that_looks_ahead(method, monkeypatch):
    monkeypatch.setattr("pts_scott.engine.build.should_look_ahead", lambda *_: True)
    monkeypatch.setattr("pts_scott.method.memory.IMMEDIATE", ())
    bad = [*sorted(nonfinite_wave_windows())[:1], 2, 3, 4]
    found, expected = (
        run_with(method, FaultyNetwork(), batches).method.state_dict()["memory"]
        for batches in ([GOOD[0], bad], [GOOD[0]])
    )
    torch.testing.assert_close(found["values"], expected["values"], rtol=0, atol=0)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("method", REMEMBERING)
def test_compiled_run_is_resumed_exactly(method, tmp_path):
    settings = {"method": method, "optimizer": "adam", "compile": True}
    whole = run(**settings)
    assert whole[1].compiled
    run(tmp_path, 30, **settings)
    assert_identical(run(tmp_path, **settings), whole)


@pytest.mark.filterwarnings("ignore::pts_scott.errors.FaultWarning")
@pytest.mark.parametrize("method", REMEMBERING)
def test_run_with_faults_is_resumed_exactly(method, tmp_path):
    settings = {"method": method, "optimizer": "adam", "skip_limit": 50}
    whole = run(network=FaultyNetwork(), **settings)
    assert whole[1].history["skipped"].iloc[-1] > 0
    for crash in (8, 30):
        folder = tmp_path / str(crash)
        run(folder, crash, network=FaultyNetwork(), **settings)
        assert_identical(run(folder, network=FaultyNetwork(), **settings), whole)


def test_storm_needs_two_gradients_per_window_after_the_first_step():
    made = run_with("storm", tiny_network(), GOOD)
    assert made.counters.gradients == 4 + 2 * 8
    assert made.method.step_cost == made.method.first_step_cost == 8
    assert run_with("mars", tiny_network(), GOOD).counters.gradients == 3 * 4
