"""Assembly of the engine of a run, with its wrapper and its early stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pts_scott.engine.base import Gather
from pts_scott.engine.compilation import CompiledFunction
from pts_scott.engine.compiled import CompiledEngine
from pts_scott.engine.distributed import DistributedEngine
from pts_scott.engine.eager import EagerEngine, fits_one_pass
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.guard import GuardedEngine
from pts_scott.engine.lookahead import (
    DeferredEarlyStop,
    LookaheadEngine,
    should_look_ahead,
)
from pts_scott.engine.losses import Losses
from pts_scott.engine.processes import Processes
from pts_scott.engine.rollback import Rollback, affords_state
from pts_scott.engine.update_rules import can_fuse
from pts_scott.engine.wrapper import EngineWrapper
from pts_scott.method.early_stop import EarlyStop, NeverStop
from pts_scott.method.methods import Method
from pts_scott.method.protocol import Counters, Tensors


class EngineParts(NamedTuple):
    """An engine with its wrapper, and the early stop that belongs to it."""

    engine: EagerEngine
    wrapper: EngineWrapper
    early_stop: EarlyStop


class EngineOptions(NamedTuple):
    """How an engine updates the parameters.

    Parameters
    ----------
    optimizer
        torch's optimizer.
    step
        Its update as wrapped by Lightning, which notifies callbacks of every step.
    clip_gradient
        Maximum norm of an update; None for no clipping.
    keeps_state
        Whether the optimizer state cannot be reset, and is saved regardless of its size:
        Adagrad's constructor creates it, and a part of schedule-free optimizers' is
        among their options.
    is_watched
        Whether a callback has to be called at every update.
    checks_every_step
        Whether to check every step before its update, even where that costs time.
    looks_ahead
        Whether to make steps without waiting for their norms; None where it pays off.
    """

    optimizer: torch.optim.Optimizer
    step: Callable[[], object]
    clip_gradient: float | None = None
    keeps_state: bool = False
    is_watched: bool = False
    checks_every_step: bool = False
    looks_ahead: bool | None = None


def build_engine(
    method: Method,
    gradients: Gradients,
    gather: Gather,
    counters: Counters,
    options: EngineOptions,
    processes: Processes | None = None,
) -> EngineParts:
    """Build the engine of a run.

    Parameters
    ----------
    method
        The method whose steps are executed.
    gradients, gather, counters
        See `BaseEngine`.
    options
        How it updates the parameters.
    processes
        The processes that share the work; None for a single process.
    """
    device = gradients.parameters[0].device
    gamma = method.hyperparameters.gamma
    engine = _executing_engine(method, gradients, gather, counters, options, processes)
    looks_ahead = options.looks_ahead
    if looks_ahead is None:
        stochastic = bool(gradients.stochastic) and method.stops_early
        scaled = gradients.scaler is not None
        looks_ahead = should_look_ahead(device, stochastic, scaled)
    if looks_ahead:
        deferred = DeferredEarlyStop(gamma, device) if method.uses_anchor else None
        wrapper = LookaheadEngine(engine, deferred)
        return EngineParts(engine, wrapper, deferred or NeverStop())
    early_stop = EarlyStop(gamma) if method.uses_anchor else NeverStop()
    guard = GuardedEngine(engine, _rollback(method, engine, options))
    return EngineParts(engine, guard, early_stop)


def _executing_engine(
    method: Method,
    gradients: Gradients,
    gather: Gather,
    counters: Counters,
    options: EngineOptions,
    processes: Processes | None,
) -> EagerEngine:
    shared: dict[str, Any] = {
        "uses_snapshot": method.uses_snapshot,
        "clip_gradient": options.clip_gradient,
    }
    is_shared = processes is not None and processes.size > 1
    if (
        gradients.compiled
        and not is_shared
        and gradients.parameters[0].device.type == "cpu"
        and fits_one_pass(method.step_windows)
        and can_fuse(options.optimizer, gradients.parameters)
        and not options.is_watched
        and not method.needs_direction
    ):
        return CompiledEngine(gradients, gather, counters, options.optimizer, **shared)
    if gradients.compiled:
        gather = compiled_gather(gather, gradients.losses)
    common = (gradients, gather, counters, options.step)
    if is_shared:
        assert processes is not None
        return DistributedEngine(*common, processes, **shared)
    return EagerEngine(*common, **shared)


def compiled_gather(gather: Gather, losses: Losses) -> Gather:
    """Return a compiled function from windows to a batch of the fields of a network."""

    def fields_of(windows: Tensor) -> Tensors:
        batch = gather(windows)
        return tuple(batch[name] for name in losses.fields)

    compiled = CompiledFunction(fields_of, losses)
    return lambda windows: dict(zip(losses.fields, compiled((), windows), strict=True))


def _rollback(
    method: Method, engine: EagerEngine, options: EngineOptions
) -> Rollback | None:
    """Return the rollback for unchecked outer loops; None to check every step.

    Every step is checked where its norm is needed anyway: by the early stop, by clipping,
    or by the scaler of mixed precision; and where the next step depends on its direction.
    """
    parameters = engine.gradients.parameters
    if isinstance(engine, CompiledEngine):
        return Rollback(options.optimizer, parameters)
    if (
        method.uses_anchor
        or method.needs_direction
        or options.checks_every_step
        or options.clip_gradient is not None
        or engine.gradients.scaler is not None
        or engine.gradients.compiled
    ):
        return None
    with_state = options.keeps_state or affords_state(parameters)
    return Rollback(options.optimizer, parameters, with_state=with_state)
