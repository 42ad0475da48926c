"""Probes: measurements of gradients along a run, and the samplers that they lead to."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pts_scott._utils.spacing import spaced_draws
from pts_scott._utils.text import cause
from pts_scott.data.window_index import WindowIndex
from pts_scott.diagnostics.allocation_variance import (
    control_variate_variance,
    uniform_variance,
)
from pts_scott.diagnostics.gradient_sketches import GradientSketches
from pts_scott.diagnostics.sampler_choice import (
    CHANGED_PART,
    REFERENCE_WINDOWS,
    Finding,
    Layout,
    Measured,
    SamplerChoice,
)
from pts_scott.engine.losses import Losses
from pts_scott.engine.processes import Processes
from pts_scott.errors import ScottWarning
from pts_scott.method.methods import Method
from pts_scott.method.objective import Objective
from pts_scott.method.protocol import Counters, Tensors
from pts_scott.strata.partition import Strata
from pts_scott.strata.policies import Single
from pts_scott.strata.policy import Policy
from pts_scott.training.probe_schedule import FIRST_STEP, ProbeSchedule

UNIFORM = "uniform"
WORTHWHILE = 0.9  # relative variance up to which other samples than uniform are used
POOL_PER_DRAW = 4  # windows sorted into learned strata, for each that will be drawn
MIN_POOL, MAX_POOL = 2**14, 2**21


@dataclass(frozen=True)
class Choice:
    """A sampler, and why it is used; a plain value that checkpoints hold.

    Parameters
    ----------
    step
        The step from which on it is used.
    label, allocation
        The partition and its allocation; the label is "uniform" for uniform samples.
    reason
        One sentence.
    learned
        What the policy learned from gradients.
    shares, order
        The layout of the strata; None for uniform samples.
    pool
        The state of the generator that draws the windows to sort; None for all windows.
    pool_size
        How many it draws.
    """

    step: int
    label: str
    allocation: str
    reason: str
    learned: list[dict[str, Any]]
    shares: Tensor | None = None
    order: Tensor | None = None
    pool: Tensor | None = None
    pool_size: int = 0

    def without_layout(self) -> Choice:
        """Return what a report needs, once another choice is used."""
        return Choice(self.step, self.label, self.allocation, self.reason, [])

    @property
    def sampler(self) -> str:
        """Name of the sampler in the history."""
        if self.label == UNIFORM:
            return UNIFORM
        return f"{self.label}, {self.allocation}"


class Probes:
    """Measures gradients at scheduled steps, and adapts the method's sampler.

    Parameters
    ----------
    losses, windows
        The network, and the windows that it is trained on.
    method
        The method whose sampler is adapted.
    choice
        The candidate partitions. A method that chooses compares them; another has one.
    allocation
        The allocation of a method that does not choose.
    sketches
        Measures gradients.
    make_schedule
        Returns when to measure how many windows, given the cost of one in gradients. It
        is made when the first probe is due: to find the cost, the network is called.
    objective
        The weights of the windows in the loss; None if each counts alike.
    generator
        Draws the windows that are measured.
    """

    def __init__(
        self,
        losses: Losses,
        windows: WindowIndex,
        method: Method,
        choice: SamplerChoice,
        allocation: str,
        sketches: GradientSketches,
        make_schedule: Callable[[int], ProbeSchedule],
        objective: Objective | None,
        generator: torch.Generator,
    ) -> None:
        self._losses, self._windows, self._method = losses, windows, method
        self._choice, self._allocation = choice, allocation
        self._sketches, self._make_schedule = sketches, make_schedule
        self._objective, self._generator = objective, generator
        self._due: float = FIRST_STEP
        self._first = method.sampler_name
        self._earlier: Tensors | None = None
        #: What was used from which step on, and the last comparison.
        self.choices: list[Choice] = []
        self.findings: list[Finding] = []
        #: Variance of a gradient's change in one outer loop, by that of the gradient.
        self.change = math.nan
        #: Variance of SCott at its best anchor, relative to uniform; NaN if unknown.
        self.control_variate = math.nan
        self.seconds = 0.0
        self.strata: Strata | None = None
        self._sorted: tuple[Choice, Strata] | None = None
        self._processes = Processes()

    @property
    def sampler(self) -> str:
        """Name of the sampler that is used now."""
        if self.choices and self.choices[-1].label != UNIFORM:
            return self.choices[-1].sampler
        return self._first

    def before_loop(
        self,
        counters: Counters,
        allows: Callable[[int], bool],
        processes: Processes,
        length: int,
    ) -> None:
        """Probe if a probe is due, before an outer loop of about ``length`` steps.

        Parameters
        ----------
        counters
            Of the run; gradients are counted there.
        allows
            Returns whether the budget allows so many gradients.
        processes
            The processes that train together; the choice of the first one counts.
        length
            Steps of an outer loop.
        """
        self._processes = processes
        if counters.steps >= self._due:
            self._probe(counters, allows, processes)
        elif self._method.chooses_strata and counters.steps + length >= self._due:
            # For the change of gradients since one outer loop ago.
            self._earlier = tuple(
                p.detach().clone() for p in self._losses.trainable().values()
            )

    def steps_until_call(self, steps: int, length: int) -> float:
        """Return after how many steps `before_loop` must be called at the latest.

        A probe compares gradients with those of ``length`` steps ago, so it needs the
        parameters of then, too.
        """
        early = self._due - length
        return max(1, (early if steps < early else self._due) - steps)

    def _probe(
        self, counters: Counters, allows: Callable[[int], bool], processes: Processes
    ) -> None:
        began = time.perf_counter()
        choice = None
        try:
            choice = self._decide_if_affordable(counters, allows)
        except Exception as error:  # a run must not be lost to a measurement
            self._due = math.inf
            self._warn(
                f"gradients could not be probed at step {counters.steps} "
                f"({cause(error)}), so mini-batches are drawn as before until the end"
            )
        # All processes follow the first, whatever happened in the others.
        found = choice, self._due, counters.gradients, counters.probe_gradients
        choice, self._due, *counted = processes.gather(found)[0]
        counters.gradients, counters.probe_gradients = counted
        if choice is not None:
            self._use(choice)
            self.choices = [c.without_layout() for c in self.choices] + [choice]
        self._earlier = None
        self.seconds += time.perf_counter() - began

    def _warn(self, message: str) -> None:
        if self._processes.is_first:
            warnings.warn(f"{message}.", ScottWarning, stacklevel=3)

    def _decide_if_affordable(
        self, counters: Counters, allows: Callable[[int], bool]
    ) -> Choice | None:
        """Schedule the next probe, and measure now if the budget allows it."""
        schedule = self._make_schedule(self._sketches.cost(self._windows))
        self._due = schedule.next_after(counters.steps)
        count = schedule.windows(counters.steps)
        if not count or not allows(2 * count):
            return None
        return self._decide(counters, count)

    def _decide(self, counters: Counters, count: int) -> Choice | None:
        """Measure, and return what to use from now on; None to leave it as it is."""
        measured = self._measure(counters, count)
        if measured is None:
            return None
        step = counters.steps
        if not self._method.chooses_strata:
            (label,) = self._choice.policies
            reason = f"the spread of {len(measured.numbers)} gradients was measured"
            return self._fitted(step, label, self._allocation, reason, measured)
        reference = self._windows.draw(REFERENCE_WINDOWS, self._generator).cpu().numpy()
        self.findings = self._choice.compare(measured, reference)
        lowest = min((f.best[1].value for f in self.findings), default=1.0)
        self.control_variate = control_variate_variance(min(lowest, 1.0), self.change)
        gains = [
            f
            for f in self.findings
            if f.best[1].is_gain and f.best[1].value <= WORTHWHILE
        ]
        current = self.choices[-1].label if self.choices else UNIFORM
        if not gains:  # what is used stays, unless it does harm
            gains = [
                f for f in self.findings if f.label == current and f.best[1].value < 1
            ]
        if not gains:
            reason = (
                f"no strata reduce the variance of {count} measured gradients by a tenth "
                f"beyond doubt (the best to {lowest:.2f} of uniform)"
            )
            return Choice(step, UNIFORM, "", reason, [])
        best = min(gains, key=lambda finding: finding.best[1].value)
        allocation, variance = best.best
        reason = (
            f"they reduce the variance of a mini-batch to {variance.value:.2f} ± "
            f"{variance.standard_error:.2f} of uniform, on windows not used to find them"
        )
        return self._fitted(step, best.label, allocation, reason, measured)

    def _measure(self, counters: Counters, count: int) -> Measured | None:
        """Measure the gradients of uniform windows; None if most are not finite."""
        numbers = self._windows.draw(count, self._generator)
        sketches = self._sketches(self._windows, numbers)
        counters.gradients += count
        counters.probe_gradients += count
        self._measure_change(counters, numbers, sketches)
        finite = sketches.isfinite().all(dim=1)
        faulty = int((~finite).sum())
        if faulty:
            enough = faulty < count / 2
            self._warn(
                f"{faulty} of {count} gradients probed at step {counters.steps} are not "
                "finite and are left out"
                + ("" if enough else ", so mini-batches are drawn as before")
            )
            if not enough:
                return None
        if self._objective is not None:
            sketches = self._objective.weighted(sketches, numbers)
        measured = Measured(numbers.cpu().numpy(), sketches)
        return measured.part(torch.nonzero(finite)[:, 0])

    def _measure_change(
        self, counters: Counters, numbers: Tensor, sketches: Tensor
    ) -> None:
        """Measure how far gradients changed in one outer loop: δ of a control variate."""
        if self._earlier is None:
            return
        few = numbers[: max(2, len(numbers) // CHANGED_PART)]
        earlier = self._sketches.at(self._earlier, self._windows, few)
        counters.gradients += len(few)
        counters.probe_gradients += len(few)
        base = uniform_variance(sketches[: len(few)])
        change = uniform_variance(sketches[: len(few)] - earlier)
        self.change = change / base if base > 0 else math.nan

    def _fitted(
        self, step: int, label: str, allocation: str, reason: str, measured: Measured
    ) -> Choice:
        """Return the choice of a partition, with layout and what it learned."""
        policy = self._choice.policies[label]
        if not policy.needs_gradients:
            strata = self._choice.strata(label)
            layout = self._choice.layout(strata, measured, allocation)
            return Choice(step, label, allocation, reason, [], *layout)
        rows = measured.sketches.numpy()
        fitted = policy.fit_gradients(self._windows, measured.numbers, rows)
        state = self._generator.get_state()
        draws = (min(self._due, 2**31) - step) * self._method.step_windows
        size = int(min(max(POOL_PER_DRAW * draws, MIN_POOL), MAX_POOL))
        learned = fitted.learned_state()
        choice = Choice(
            step, label, allocation, reason, learned, pool=state, pool_size=size
        )
        strata = self._strata_of(choice, fitted)
        layout = self._choice.layout(strata, measured, allocation)
        choice = replace(choice, shares=layout.shares, order=layout.order)
        self._sorted = choice, strata
        return choice

    def _use(self, choice: Choice) -> None:
        """Make the method draw by a choice."""
        if choice.label == UNIFORM and self.strata is None:
            return  # samples are uniform already
        if choice.label == UNIFORM:
            strata = Single().stratify(self._windows)
            layout = Layout(strata.weights, torch.arange(1))
        else:
            if self._sorted is not None and self._sorted[0] is choice:
                strata = self._sorted[1]
            else:
                policy = self._choice.policies[choice.label]
                learned = policy.with_learned(choice.learned)
                strata = self._strata_of(choice, learned.fit(self._windows))
            assert choice.shares is not None
            assert choice.order is not None
            layout = Layout(choice.shares, choice.order)
        self.strata = None if choice.label == UNIFORM else strata
        self._method.reallocate(strata, *layout)

    def _strata_of(self, choice: Choice, policy: Policy) -> Strata:
        if not choice.learned:
            return self._choice.strata(choice.label)
        if choice.pool_size >= len(self._windows):
            return Strata.of_pool(policy, self._windows)
        assert choice.pool is not None
        self._generator.set_state(choice.pool)
        pool = spaced_draws(len(self._windows), choice.pool_size, self._generator)
        return Strata.of_pool(policy, self._windows, pool.numpy())

    def report(self) -> str:
        """Return what was used when and why, one sentence per choice."""
        lines = [f"From step 0: {self._first}, until gradients are measured."]
        for choice in self.choices:
            name = self._first if choice.label == UNIFORM else choice.sampler
            lines.append(f"From step {choice.step}: {name}: {choice.reason}.")
        if not self.choices:
            lines.append("No gradients were measured: the run is too short for that.")
        if not math.isnan(self.control_variate):
            lines.append(
                f"A control variate would have {self.control_variate:.2f} of the "
                "variance of uniform mini-batches at the same cost, at its best anchor."
            )
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Any]:
        """Return what the next samples and probes depend on."""
        return {
            "due": self._due,
            "seconds": self.seconds,
            "choices": [vars(choice) for choice in self.choices],
            "control_variate": self.control_variate,
            "maps": self._sketches.state_dict(),
            "earlier": self._earlier,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; before the method's own state is loaded."""
        self._due, self.seconds = state["due"], state["seconds"]
        self.choices = [Choice(**choice) for choice in state["choices"]]
        self.control_variate = state["control_variate"]
        self._sketches.load_state_dict(state["maps"])
        if state["earlier"] is not None:
            device = self._windows.device
            self._earlier = tuple(x.to(device) for x in state["earlier"])
        if self.choices:
            self._use(self.choices[-1])
