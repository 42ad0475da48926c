"""Outer loops of a run: executed by its engine, within its budget, and recorded."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from pts_scott._utils.rng import (
    Generators,
    changed_sources,
    global_state,
    is_of_device,
    set_global_state,
)
from pts_scott._utils.text import shorten
from pts_scott.data.window_index import Batch, WindowIndex
from pts_scott.engine.build import EngineOptions, EngineParts
from pts_scott.engine.gradients import uncached_autocast
from pts_scott.engine.losses import Losses
from pts_scott.engine.processes import Processes, ProcessGroup
from pts_scott.engine.training_effects import TrainingEffects
from pts_scott.errors import ScottWarning
from pts_scott.method.methods import Method
from pts_scott.method.output import OutputSelector
from pts_scott.method.protocol import LoopReport, Tensors
from pts_scott.method.scott import Algorithm
from pts_scott.strata.partition import Strata
from pts_scott.training.engine_setup import EngineInputs, EngineSetup
from pts_scott.training.evaluated_parameters import EvaluatedParameters
from pts_scott.training.fault_log import FaultLog
from pts_scott.training.history import History
from pts_scott.training.plan import Plan
from pts_scott.training.probes import Probes
from pts_scott.training.run_state import RunState
from pts_scott.training.threads import is_large_step
from pts_scott.training.window_errors import named_window_errors

# What an outer loop costs besides its steps (Lightning, history, budgets) is as much as
# seven compiled steps of a small network. Slower steps hide it, and are rolled back or
# interrupted in smaller groups.
STEPS_TOGETHER = 200


class OuterLoopRunner:
    """The parts of a run, and the execution of its outer loops.

    Parameters
    ----------
    losses, effects
        The window losses of the network, and the side effects of a training pass.
    windows
        The windows to train on.
    method, probes
        The method, and the measurements that adapt its sampler; None for none.
    plan
        Budgets and output.
    generators
        The streams of random numbers.
    history
        The table to which each outer loop adds a row.
    """

    def __init__(
        self,
        losses: Losses,
        effects: TrainingEffects,
        windows: WindowIndex,
        method: Method,
        probes: Probes | None,
        plan: Plan,
        generators: Generators,
        history: History,
    ) -> None:
        self.losses, self.effects, self.windows = losses, effects, windows
        self.plan, self.generators = plan, generators
        self.method, self.probes = method, probes
        self.processes = Processes()
        self.evaluated = EvaluatedParameters(losses)
        self.output = OutputSelector(plan.output, self.evaluated, generators.output)
        faults = FaultLog(
            losses, windows, plan.skip_limit, lambda: self.processes.is_first
        )
        self.state = RunState(
            losses,
            effects.buffers,
            self.method,
            generators,
            self.output,
            faults,
            history,
            plan.budget,
            probes,
        )
        self.faults = faults
        #: Steps made by compiled functions instead of the optimizer.
        self.compiled_steps = 0
        #: Steps of an outer loop without an anchor, which are bookkept together.
        self._steps_together = method.hyperparameters.inner_steps
        size = method.step_windows, windows.context_length
        # Snapshots are sampled, and a coefficient decays, from loop to loop.
        counts = plan.output == "sampled" or isinstance(plan.coefficient, str)
        if plan.compiled and not counts and not is_large_step(losses, *size):
            self._steps_together = max(self._steps_together, STEPS_TOGETHER)
        self.setup: EngineSetup | None = None
        self._parts: EngineParts | None = None
        self._algorithm: Algorithm | None = None

    # -- budget ------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds of training, on which all processes agree."""
        group = self.processes
        if isinstance(group, ProcessGroup):
            return group.seconds
        return self.state.clock.seconds

    def spent(self) -> float:
        """Return the share of the budget that is used up."""
        counters = self.state.counters
        return self.plan.budget.spent(counters.steps, self.seconds, counters.gradients)

    def budget_allows_loop(self) -> bool:
        """Return whether the budget allows another outer loop."""
        return self._allows(self.state.counters.steps, self.method.first_step_cost)

    def _allows(self, steps: int, cost: int) -> bool:
        counted = self.state.counters.gradients
        return self.plan.budget.allows(steps, self.seconds, counted, cost)

    def coefficient(self) -> float:
        """Return the control variate's c in the outer loop that begins now."""
        if isinstance(self.plan.coefficient, str):  # "linear": from 1 to 0
            return 1.0 - self.spent()
        return self.plan.coefficient

    # -- the engine --------------------------------------------------------------------

    @property
    def parts(self) -> EngineParts:
        """The engine of the run, once it has started."""
        assert self._parts is not None
        return self._parts

    @property
    def algorithm(self) -> Algorithm:
        """The outer loops of the run, once it has started."""
        assert self._algorithm is not None
        return self._algorithm

    @property
    def compiled(self) -> bool:
        """Whether steps are compiled."""
        return self._parts is not None and self._parts.engine.gradients.compiled

    @property
    def snapshot(self) -> Tensors:
        """The parameters at which the last anchor was taken."""
        return self.parts.engine.snapshot

    def start(
        self,
        options: EngineOptions,
        scaler: torch.amp.GradScaler | None,
        precision: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Make and check the engine, and restore the state of a checkpoint.

        Parameters
        ----------
        options
            How it updates the parameters.
        scaler
            The scaler of mixed precision; None in full precision.
        precision
            The context of a training pass in the precision of the run.
        """
        inputs = EngineInputs(
            self.losses,
            self.windows,
            self._gather,
            self.method,
            self.effects,
            self.state.counters,
            options,
            self.processes,
            scaler,
            precision,
        )
        self.setup = EngineSetup(inputs, must_compile=self.plan.must_compile)
        self.faults.begin(self.setup.facts.finite)
        self._use(self.setup.make(self.plan.compiled), self.state.engine)
        self.state.history.compile_seconds += self.setup.compile_seconds
        if self.state.random is not None:
            self._restore_random(self.state.random)

    def _restore_random(self, state: dict[str, Any]) -> None:
        """Restore the global random state of a checkpoint."""
        device = self.windows.device
        if self.effects.random and not is_of_device(state, device):
            warnings.warn(
                "the checkpoint was written on another kind of device, whose random "
                f"numbers {device.type} cannot continue: {self.losses.name} draws others "
                "from here on than it would have drawn there.",
                ScottWarning,
                stacklevel=2,
            )
        set_global_state(state, device)

    def _gather(self, numbers: torch.Tensor) -> Batch:
        return self.windows.gather(numbers, self.losses.fields)

    def _use(self, parts: EngineParts, state: dict[str, Any]) -> None:
        """Use an engine for the next steps."""
        parts.wrapper.load_state_dict(state)
        self._parts = parts
        self._algorithm = Algorithm(
            self.method,
            parts.wrapper,
            parts.early_stop,
            self.output,
            self.state.counters,
            self.generators.length,
        )

    def engine_state(self) -> dict[str, Any]:
        """Return the state of the engine."""
        return {} if self._parts is None else self._parts.wrapper.state_dict()

    def _check_attributes(self) -> None:
        """Stop using compiled steps if an attribute that they contain was changed."""
        if self.setup is None or not self.compiled:
            return
        changed = self.setup.changed_attributes()
        if changed:
            self._train_eagerly(
                f"{self.losses.name} is trained without compilation from step "
                f"{self.state.counters.steps} on",
                f"{shorten(changed)} of the network was changed after its steps were "
                "compiled, which treat it as constant",
            )

    def _train_eagerly(
        self, message: str, reason: str, effects: TrainingEffects | None = None
    ) -> None:
        """Use no compiled steps from now on, and warn why."""
        assert self.setup is not None
        state = self.engine_state()
        self._use(self.setup.make_eager(message, reason, effects), state)

    # -- outer loops -------------------------------------------------------------------

    def outer_loop(self, step_size: float, limit: int | None) -> LoopReport:
        """Run one outer loop.

        Parameters
        ----------
        step_size
            α_t.
        limit
            Steps after which one without an anchor ends; None for no limit.
        """
        self._check_attributes()
        parts, counters = self.parts, self.state.counters
        probed = self._probe()
        together = probed if limit is None else min(probed, limit)
        engine, begun = parts.engine, counters.steps
        compiled_before = engine.compiled_steps

        def may_step(made: int) -> bool:
            return self._allows(begun + made, self.method.step_cost)

        with (
            uncached_autocast(),
            self.named_errors(self.windows, lambda: engine.current_windows),
            self._detect_draws(),
        ):
            report = self.algorithm.outer_loop(
                step_size, self.coefficient(), may_step, together
            )
            report = parts.wrapper.finish(report)
            counters.steps += len(report.steps)
        if self.effects.buffers:
            self.processes.share_buffers(self.losses)
        counters.outer += 1
        self.compiled_steps += engine.compiled_steps - compiled_before
        return report

    def _probe(self) -> int:
        """Measure gradients and adapt the sampler, if that is due.

        Returns
        -------
        Steps that may be made before the next call.
        """
        if self.probes is None:
            return self._steps_together
        steps, first = self.state.counters.steps, self.method.first_step_cost
        self.probes.before_loop(
            self.state.counters,
            lambda gradients: self._allows(steps, gradients + first),
            self.processes,
            self.method.hyperparameters.inner_steps,
        )
        left = self.probes.steps_until_call(
            steps, self.method.hyperparameters.inner_steps
        )
        return int(min(left, self._steps_together))

    def named_errors(
        self, windows: WindowIndex, current: Callable[[], torch.Tensor | None]
    ) -> Any:
        """Name the window if the network fails on one."""
        step = self.state.counters.steps
        return named_window_errors(self.losses, windows, current, self.faults, step)

    @contextmanager
    def _detect_draws(self) -> Iterator[None]:
        """Detect a network that draws random numbers for some windows only.

        No probe had such a window, so the two passes of an inner step drew different
        numbers.
        """
        if self.parts.engine.gradients.stochastic or not self.method.uses_snapshot:
            yield
            return
        device = self.windows.device
        before = global_state(device)
        yield
        drawn = changed_sources(before, global_state(device))
        if drawn:
            self._train_eagerly(
                f"{self.losses.name} draws random numbers for some windows, which was "
                f"detected only at step {self.state.counters.steps}",
                "until now the two passes of an inner step used different numbers; from "
                "now on they use the same, without compilation",
                self.effects._replace(random=drawn),
            )

    @property
    def strata(self) -> Strata | None:
        """The strata that are used now; None for none."""
        if self.probes is not None and self.probes.strata is not None:
            return self.probes.strata
        return self.method.strata_or_none

    def report(self) -> str:
        """Return which sampler was used when, and why, in a sentence each."""
        if self.probes is not None:
            return self.probes.report()
        return f"From step 0: {self.sampler}, as given."

    @property
    def sampler(self) -> str:
        """Name of the sampler of mini-batches that is used now."""
        if self.probes is not None:
            return self.probes.sampler
        return self.method.sampler_name

    def record(self, report: LoopReport, epoch: int) -> float | None:
        """Add the row of an outer loop to the history.

        Returns
        -------
        The mean loss of its finite steps: NaN if there is none, None without steps.
        """
        state, counters = self.state, self.state.counters
        good = [loss for loss in report.losses if not math.isnan(loss)]
        train_loss = sum(good) / len(good) if good else math.nan
        with state.clock.stopped():  # the search for faulty windows is not training
            self.faults.record(report, counters.steps)
        spent = {
            "gradients": counters.gradients,
            "anchors": counters.anchors,
            "seconds": state.clock.seconds,
            "skipped": self.faults.skipped,
            "probe_gradients": counters.probe_gradients,
            "probe_seconds": 0.0 if self.probes is None else self.probes.seconds,
            "sampler": state.history.sampler(self.sampler),
        }
        if not report.steps:  # the budget ended after the anchor, or the length was zero
            state.history.extend(**spent)
            return None
        state.history.add(
            step=counters.steps,
            outer=counters.outer,
            epoch=epoch,
            train_loss=train_loss,
            update_norm=math.sqrt(report.squared_norm),
            **spent,
        )
        if not math.isnan(train_loss):
            state.train_loss = train_loss
            self.faults.record_loss(train_loss, counters.steps)
        return train_loss
