"""Setup of the engine of a run: built, compiled if requested, and checked."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from pts_scott._utils.text import one_line
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.base import Gather
from pts_scott.engine.build import EngineOptions, EngineParts, build_engine
from pts_scott.engine.eager import MAX_PASS
from pts_scott.engine.engine_check import EngineCheck
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.lookahead import should_look_ahead
from pts_scott.engine.losses import Losses
from pts_scott.engine.network_check import NetworkFacts, check_functional, check_network
from pts_scott.engine.plain_passes import PlainPasses
from pts_scott.engine.processes import Processes
from pts_scott.engine.training_effects import TrainingEffects, compiled_attributes
from pts_scott.errors import ScottWarning, SelfCheckError
from pts_scott.method.methods import Method
from pts_scott.method.protocol import Counters


@dataclass(frozen=True)
class EngineInputs:
    """Inputs from which the engine of a run is built.

    Parameters
    ----------
    losses, windows, gather
        The network, its windows, and the function from windows to a batch.
    method
        The method whose steps are executed.
    effects
        The side effects of a training pass.
    counters
        Where gradients are counted.
    options
        How it updates the parameters.
    processes
        The processes that share the work.
    scaler
        The scaler of mixed precision; None in full precision.
    precision
        The context of a training pass in the precision of the run.
    """

    losses: Losses
    windows: WindowIndex
    gather: Gather
    method: Method
    effects: TrainingEffects
    counters: Counters
    options: EngineOptions
    processes: Processes
    scaler: torch.amp.GradScaler | None
    precision: Callable[[], AbstractContextManager[None]]


class EngineSetup:
    """Makes and checks the engine of a run.

    Parameters
    ----------
    inputs
        Inputs of the engine.
    must_compile
        Whether a compiled step that is wrong is an error.
    """

    def __init__(self, inputs: EngineInputs, *, must_compile: bool) -> None:
        self._inputs = inputs
        self._must_compile = must_compile
        random = bool(inputs.effects.random)
        self._passes = PlainPasses(inputs.losses, inputs.gather, stochastic=random)
        self._looks_ahead = should_look_ahead(
            inputs.windows.device,
            random and inputs.method.stops_early,
            inputs.scaler is not None,
        )
        #: Why steps are not compiled although they should be; None otherwise.
        self.fallback: str | None = None
        self.compile_seconds = 0.0
        self.check_seconds = 0.0
        self._attributes: dict[str, Any] = {}
        with self._checking():
            uses_snapshot = inputs.method.uses_snapshot
            self.facts: NetworkFacts = check_network(
                self._passes, inputs.windows, uses_snapshot=uses_snapshot
            )

    def make(self, compiled: bool) -> EngineParts:
        """Make the engine of a new run.

        Raises
        ------
        SelfCheckError
        """
        # One process without a compiler is enough to compile in none of them.
        compiled = all(self._inputs.processes.gather(compiled))
        parts = self._make_compiled() if compiled else None
        if parts is None:
            parts = self._build(self._inputs.effects, compiled=False)
            self._check(parts)
        return parts

    def make_eager(
        self, message: str, reason: str, effects: TrainingEffects | None = None
    ) -> EngineParts:
        """Make an engine without compiled steps for the rest of a run, and warn why."""
        self._fall_back(message, reason)
        # Each process decides for itself, so the order of reductions must not change.
        options = self._inputs.options._replace(
            checks_every_step=True, looks_ahead=self._looks_ahead
        )
        effects = effects or self._inputs.effects
        return self._build(effects, compiled=False, options=options)

    def changed_attributes(self) -> list[str]:
        """Name the attributes of the network that were changed since compilation."""
        now = compiled_attributes(self._inputs.losses.network)
        names = dict.fromkeys([*self._attributes, *now])
        return [name for name in names if now.get(name) != self._attributes.get(name)]

    def _make_compiled(self) -> EngineParts | None:
        """Compile and check before the clock starts; None if that fails."""
        began, inputs = time.perf_counter(), self._inputs
        self._attributes = compiled_attributes(inputs.losses.network)
        parts, failure = None, None
        try:
            parts = self._build(inputs.effects, compiled=True)
            check_functional(self._passes, parts.engine.gradients, self.facts.finite)
            with self._passes.restored(), inputs.processes.apart():
                self._warm_up(parts)
            self.compile_seconds = time.perf_counter() - began
        except Exception as error:
            failure = self._failure(error)
        # All processes compile, or none: their reductions must follow each other.
        failures = [x for x in inputs.processes.gather(failure) if x is not None]
        if parts is not None and not failures:
            try:
                self._check(parts)
            except Exception as error:
                failures = [self._failure(error)]
        if failures:
            name = inputs.losses.name
            self._fall_back(
                f"{name} could not be compiled, so it is trained without compilation",
                failures[0],
            )
            return None
        return parts

    def _warm_up(self, parts: EngineParts) -> None:
        inputs, method = self._inputs, self._inputs.method
        # A network may keep what it computes for a batch size, such as a mask. While
        # steps are recorded, tensors have no values, and none of them should be kept.
        for size in {method.step_windows, method.anchor_windows} - {0}:
            windows = torch.zeros(min(size, MAX_PASS), dtype=torch.long)
            with torch.no_grad():
                inputs.losses(inputs.gather(windows.to(inputs.windows.device)))
        parts.engine.warm_up(
            method.anchor_windows, method.step_windows, method.step_sampler.is_weighted
        )

    def _failure(self, error: Exception) -> str:
        """Return why compilation failed; raise if that ends the run.

        Any part of the compiler may fail on a network that runs well without it.
        """
        if isinstance(error, SelfCheckError) and self._must_compile:
            raise error
        return f"{type(error).__name__}: {one_line(error, 200)}"

    def _fall_back(self, message: str, reason: str) -> None:
        self.fallback = reason
        warnings.warn(f"{message}: {reason}", ScottWarning, stacklevel=4)

    def _build(
        self,
        effects: TrainingEffects,
        *,
        compiled: bool,
        options: EngineOptions | None = None,
    ) -> EngineParts:
        inputs = self._inputs
        gradients = Gradients(
            inputs.losses,
            compiled=compiled,
            stochastic=effects.random,
            stateful=effects.buffers,
            scaler=inputs.scaler,
            idle=self.facts.idle,
        )
        return build_engine(
            inputs.method,
            gradients,
            inputs.gather,
            inputs.counters,
            options or inputs.options,
            inputs.processes,
        )

    def _check(self, parts: EngineParts) -> None:
        with self._checking(), self._inputs.processes.exact():
            optimizer, finite = self._inputs.options.optimizer, self.facts.finite
            check = EngineCheck(parts.engine, self._passes, optimizer, finite)
            check.run(self._inputs.method)

    @contextmanager
    def _checking(self) -> Iterator[None]:
        """Check in the precision of training, and measure the time."""
        began = time.perf_counter()
        with self._inputs.precision():
            yield
        self.check_seconds += time.perf_counter() - began
