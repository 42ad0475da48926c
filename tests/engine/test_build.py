"""The engine of a run is chosen by processes, compilation and optimizer."""

from __future__ import annotations

import pytest
import torch
from helpers.engine import Assembled, assemble
from helpers.series import wave_windows
from helpers.training import tiny_network

from pts_scott.engine.build import EngineOptions, build_engine
from pts_scott.engine.compiled import CompiledEngine
from pts_scott.engine.distributed import DistributedEngine
from pts_scott.engine.eager import EagerEngine
from pts_scott.engine.processes import Processes
from pts_scott.method.early_stop import EarlyStop, NeverStop
from pts_scott.method.methods import METHODS

pytestmark = pytest.mark.usefixtures("traced")


class TwoProcesses(Processes):
    size = 2


def rebuilt(run: Assembled, processes: Processes | None = None, **options):
    """Build another engine for the parts of a run."""
    engine = run.parts.engine
    options = {"optimizer": run.optimizer, "step": run.optimizer.step, **options}
    made = EngineOptions(**options)
    common = (engine.gradients, engine.gather, run.counters, made)
    return build_engine(run.method, *common, processes).engine


@pytest.mark.parametrize("method", METHODS)
def test_only_methods_with_an_anchor_stop_early_and_only_some_have_a_snapshot(method):
    run = assemble(tiny_network(), wave_windows(), method)
    has_anchor, has_snapshot = METHODS[method].uses_anchor, METHODS[method].uses_snapshot
    assert run.parts.engine.uses_snapshot is has_snapshot
    assert bool(run.parts.engine.snapshot) is has_snapshot
    assert type(run.parts.early_stop) is (EarlyStop if has_anchor else NeverStop)


def test_steps_are_compiled_where_gradients_are():
    eager = assemble(tiny_network(), wave_windows())
    assert type(eager.parts.engine) is EagerEngine
    compiled = assemble(tiny_network(), wave_windows(), compiled=True)
    assert type(compiled.parts.engine) is CompiledEngine


@pytest.mark.parametrize("method", METHODS)
def test_methods_that_need_the_direction_have_no_fused_steps(method):
    run = assemble(tiny_network(), wave_windows(), method, compiled=True)
    kind = EagerEngine if METHODS[method].needs_direction else CompiledEngine
    assert type(run.parts.engine) is kind
    assert run.parts.engine.gradients.compiled


def test_unknown_update_rules_and_watched_updates_are_not_compiled():
    run = assemble(tiny_network(), wave_windows(), compiled=True)
    parameters = run.parts.engine.gradients.parameters
    momentum = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    assert type(rebuilt(run)) is CompiledEngine
    assert type(rebuilt(run, optimizer=momentum)) is EagerEngine
    assert type(rebuilt(run, is_watched=True)) is EagerEngine


def test_step_of_several_passes_is_not_compiled(monkeypatch):
    run = assemble(tiny_network(), wave_windows(), compiled=True, batch_size=4)
    monkeypatch.setattr("pts_scott.engine.eager.MAX_PASS", 3)
    assert type(rebuilt(run)) is EagerEngine


def test_several_processes_have_a_distributed_engine():
    run = assemble(tiny_network(), wave_windows())
    assert type(rebuilt(run, Processes())) is EagerEngine
    assert type(rebuilt(run, TwoProcesses())) is DistributedEngine
