"""RunState: everything that a checkpoint holds of a run besides Lightning's part."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.runs import DropoutNetwork
from helpers.series import wave_windows
from helpers.training import tiny_network

from pts_scott import Stratifier
from pts_scott._utils.rng import Generators
from pts_scott.engine.losses import Losses
from pts_scott.engine.processes import Processes
from pts_scott.errors import ArgumentError, DamagedCheckpointError
from pts_scott.method.hyperparameters import Hyperparameters
from pts_scott.method.methods import METHODS
from pts_scott.method.output import OutputSelector
from pts_scott.training.budget import Budget
from pts_scott.training.fault_log import FaultLog
from pts_scott.training.history import History
from pts_scott.training.run_state import (
    FORMAT,
    STATE,
    RunState,
    check_shapes,
    intact_checkpoint,
)

CPU = torch.device("cpu")
STREAMS = ("anchor", "inner", "length", "output", "probe")


class DrawingProbes:
    """Probes that draw random numbers while they are restored."""

    def __init__(self, generators: Generators) -> None:
        self._generators = generators

    def state_dict(self) -> dict[str, Any]:
        return {"due": 100}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {"due": 100}
        for stream in STREAMS:
            torch.rand(3, generator=getattr(self._generators, stream))


def make_state(
    seed: int = 0, budget: Budget | None = None, *, probes: bool = False
) -> RunState:
    """Make the state of a SCott run of a network with a running buffer."""
    windows, losses = wave_windows(), Losses(DropoutNetwork())
    generators = Generators.from_seed(seed)
    numbers = Hyperparameters(method="scott", batch_size=4, anchor_batch_size=2)
    strata = Stratifier.series().stratify(windows)
    return RunState(
        losses,
        True,
        METHODS["scott"](numbers, windows, strata, generators),
        generators,
        OutputSelector("best", losses, generators.output),
        FaultLog(losses, windows, 10, lambda: False),
        History(),
        budget or Budget(54, None, None),
        DrawingProbes(generators) if probes else None,
    )


def saved(state: RunState) -> dict[str, Any]:
    return state.state_dict(Processes(), {"engine": 1}, CPU)


def use(state: RunState) -> None:
    """Change every part of a state."""
    counters = state.counters
    counters.steps, counters.outer, counters.anchors, counters.gradients = 7, 1, 2, 68
    counters.probe_gradients = 5
    state.clock = type(state.clock)(1.5)
    state.finished = True
    state.scheduler_loss, state.train_loss = 0.25, 0.5
    state.faults.skipped = 3
    state._losses.network.level.fill_(4.0)
    for stream in STREAMS:
        torch.rand(5, generator=getattr(state._generators, stream))
    state._output.offer_validated(0.125)
    state.history.add(step=7, outer=1, gradients=68, train_loss=0.5)


def assert_equal(left: Any, right: Any) -> None:
    """Compare nested dicts and lists of tensors and plain values, NaN equal to NaN."""
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for name in left:
            assert_equal(left[name], right[name])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for x, y in zip(left, right, strict=True):
            assert_equal(x, y)
    else:
        assert left == right or (math.isnan(left) and math.isnan(right))


def test_state_dict_has_the_documented_entries():
    content = saved(make_state())
    own = {"fingerprint", "between"}  # added by the Lightning module
    assert content.keys() | own == STATE.keys() | {"format", "version"}
    assert content["format"] == FORMAT
    for name in STATE.keys() - own:
        assert isinstance(content[name], STATE[name]), name


@pytest.mark.parametrize("probes", [False, True])
def test_state_dict_round_trip_restores_every_part(probes):
    original, restored = (make_state(seed=s, probes=probes) for s in (0, 1))
    use(original)
    content = saved(original)
    restored.load_state_dict(content, rank=0)
    again = saved(restored)
    assert_equal(again, content)
    assert restored.engine == {"engine": 1}
    assert restored.random is content["random"][0]
    streams = [state._generators.inner for state in (original, restored)]
    assert torch.equal(*(torch.rand(3, generator=g) for g in streams))


def test_saved_state_does_not_follow_the_run():
    state = make_state()
    before = saved(state)
    use(state)
    assert before["buffers"]["network.level"] == 0.0
    assert before["counters"]["steps"] == 0


@pytest.mark.parametrize(("rank", "expected"), [(0, "first"), (1, "last"), (5, "last")])
def test_each_process_gets_its_own_random_state(rank, expected):
    content = {**saved(make_state()), "random": [{"torch": "first"}, {"torch": "last"}]}
    state = make_state()
    state.load_state_dict(content, rank)
    assert state.random == {"torch": expected}


@pytest.mark.parametrize(
    ("budget", "used_up"),
    [
        (Budget(7, None, None), True),
        (Budget(8, None, None), False),
        (Budget(None, 1.5, None), True),
        (Budget(None, 1.6, None), False),
        (Budget(None, None, 68 + 6 + 8 - 1), True),
        (Budget(None, None, 68 + 6 + 8), False),  # an anchor and one step
    ],
)
def test_budget_is_used_up_if_no_outer_loop_is_left(budget, used_up):
    state = make_state()
    use(state)
    assert make_state(budget=budget).has_used_up(saved(state)) is used_up


def test_run_has_the_same_end_if_it_is_finished_with_the_same_budget():
    state = make_state()
    assert not state.is_same_end(saved(state)), "it is not finished"
    use(state)
    assert state.is_same_end(saved(state))
    assert not make_state(budget=Budget(90, None, None)).is_same_end(saved(state))


def test_damaged_entries_raise_one_error():
    state = make_state()
    with pytest.raises(
        DamagedCheckpointError, match="contents of the checkpoint are invalid"
    ):
        state.has_used_up({"counters": {}, "seconds": 0.0})
    with pytest.raises(DamagedCheckpointError, match="KeyError"), intact_checkpoint():
        raise KeyError("steps")
    with pytest.raises(ArgumentError), intact_checkpoint():
        raise ArgumentError("errors of this package are raised unchanged")


def test_parameters_of_another_shape_are_refused():
    network = tiny_network()
    state = dict(network.state_dict())
    check_shapes(network, state)
    state["layers.2.bias"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"layers.2.bias has shape \(3,\)"):
        check_shapes(network, state)
