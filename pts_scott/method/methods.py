"""The methods: one class per method, which defines the windows it draws, and a table.

A method is a sampler for its steps and, with a control variate, one for its anchors. To
add one, write a class and add it to ``METHODS``; nothing else in the package compares
method names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from pts_scott._utils.rng import Generators
from pts_scott.data.window_index import WindowIndex
from pts_scott.method.allocation import shares_of
from pts_scott.method.hyperparameters import Hyperparameters
from pts_scott.method.memory import Memory
from pts_scott.method.objective import Objective, ObjectiveSampler
from pts_scott.method.places import ReshuffledPlaces
from pts_scott.method.protocol import Engine, Sample, Step, Tensors
from pts_scott.method.samplers import (
    AllocatedSampler,
    FullSampler,
    Sampler,
    StratifiedSampler,
    UniformSampler,
    WeightedUniformSampler,
)
from pts_scott.strata.candidates import label
from pts_scott.strata.partition import Strata
from pts_scott.strata.policies import Single

#: MARS: γ, which scales its correction, and the momentum β₁ that this corrects.
MARS_GAMMA, MARS_BETA = 0.025, 0.95
#: STORM: a, the share of the previous direction that each step forgets.
STORM_A = 0.1


class Method:
    """The windows that are drawn, and how a direction is computed from them.

    Parameters
    ----------
    hyperparameters
        M, b, K and γ.
    windows
        D, the training windows.
    strata
        Their partition; None for a method that uses none, or whose strata are found
        during training.
    generators
        The streams of random numbers.
    objective
        The weights of the windows in the loss; None if each counts alike.
    """

    #: Whether windows have to be stratified.
    uses_strata: ClassVar[bool] = False
    #: Whether outer loops begin with an anchor, and may stop early by γ.
    uses_anchor: ClassVar[bool] = False
    #: Whether steps have a control variate, and so a second pass at a snapshot.
    uses_snapshot: ClassVar[bool] = False
    #: Whether the tensors of v must be known before the update that follows them.
    needs_direction: ClassVar[bool] = False
    #: Whether strata and shares are chosen during training.
    chooses_strata: ClassVar[bool] = False
    #: Allocation of mini-batches if none is given; None for uniform ones.
    allocation: ClassVar[str | None] = None

    def __init__(
        self,
        hyperparameters: Hyperparameters,
        windows: WindowIndex,
        strata: Strata | None,
        generators: Generators,
        objective: Objective | None = None,
    ) -> None:
        self.hyperparameters = hyperparameters
        self.windows = windows
        self._strata = strata
        self._shares: Tensor | None = None
        self._order: Tensor | None = None
        self._generators = generators
        self._objective = objective
        self._memory = Memory()
        self._make_samplers()

    def reallocate(self, strata: Strata, shares: Tensor, order: Tensor) -> None:
        """Draw from these strata by these shares, in this order, from now on."""
        self._strata, self._shares, self._order = strata, shares, order
        self._make_samplers()

    def _make_samplers(self) -> None:
        self.step_sampler = self._for_objective(self.make_step_sampler())
        self.anchor_sampler: Sampler | None = None
        if self.uses_anchor:
            self.anchor_sampler = self._for_objective(self.make_anchor_sampler())

    def make_step_sampler(self) -> Sampler:
        """Create the sampler of a step's mini-batch of M windows."""
        size, generator = self.hyperparameters.batch_size, self._generators.inner
        allocation = self.hyperparameters.allocation or self.allocation
        if allocation is not None:
            return self._allocated_sampler(allocation, size, generator)
        if self.hyperparameters.replacement:
            return UniformSampler(self.windows, size, generator)
        everything = Single().stratify(self.windows)
        places = ReshuffledPlaces(everything, generator)
        return AllocatedSampler(everything, everything.weights, size, generator, places)

    def make_anchor_sampler(self) -> Sampler:
        """Create the sampler of anchors, for methods that use them."""
        raise NotImplementedError

    def _allocated_sampler(
        self,
        allocation: str | Mapping[str, float],
        size: int,
        generator: torch.Generator,
    ) -> Sampler:
        """Create a sampler of ``size`` windows from the strata."""
        windows = self.windows
        strata = self._strata or Single().stratify(windows)
        replacement = self.hyperparameters.replacement
        if allocation == "equal" and size % len(strata) == 0 and replacement:
            b = size // len(strata)
            return StratifiedSampler(windows, strata, b, generator)
        shares = self._shares
        if shares is None:
            shares = shares_of(allocation, strata)
        places = None if replacement else ReshuffledPlaces(strata, generator)
        return AllocatedSampler(strata, shares, size, generator, places, self._order)

    def _for_objective(self, sampler: Sampler) -> Sampler:
        if self._objective is None:
            return sampler
        return ObjectiveSampler(sampler, self._objective)

    @property
    def strata(self) -> Strata:
        """The partition, for methods that use one."""
        assert self._strata is not None
        return self._strata

    @property
    def strata_or_none(self) -> Strata | None:
        """The partition; None without one."""
        return self._strata

    @property
    def objective(self) -> Objective | None:
        """The weights of the windows in the loss; None if each counts alike."""
        return self._objective

    @property
    def num_strata(self) -> int:
        """B; without a partition every window is its own stratum."""
        return len(self.windows) if self._strata is None else len(self._strata)

    @property
    def sampler_name(self) -> str:
        """Name of the sampler of mini-batches, in the history."""
        allocation = self.hyperparameters.allocation or self.allocation
        if allocation is None or self._strata is None:
            return "uniform" if self.hyperparameters.replacement else "reshuffled"
        name = allocation if isinstance(allocation, str) else "given shares"
        if allocation == "spread" and self._shares is None:
            name = "proportional"  # until it is measured
        return f"{label(self._strata.stratifier)}, {name}"

    @property
    def stops_early(self) -> bool:
        """Whether γ may end an outer loop before its K steps."""
        return self.uses_anchor and self.hyperparameters.gamma is not None

    @property
    def anchor_windows(self) -> int:
        """Windows in one anchor; 0 for methods without one."""
        return 0 if self.anchor_sampler is None else self.anchor_sampler.size

    @property
    def step_windows(self) -> int:
        """Windows in the mini-batch of one step."""
        return self.step_sampler.size

    @property
    def step_cost(self) -> int:
        """Gradients that one step computes, at most."""
        return self.step_windows * (2 if self.uses_snapshot else 1)

    @property
    def first_step_cost(self) -> int:
        """Gradients of the first step of an outer loop, its anchor included."""
        return self.anchor_windows + self.step_cost

    def inner_steps(self, steps_together: int) -> int:
        """Return the maximum number of steps of the next outer loop: K with anchors.

        Parameters
        ----------
        steps_together
            Steps after which an outer loop without an anchor ends.
        """
        return self.hyperparameters.inner_steps

    def anchor(self) -> Sample | None:
        """Draw the windows of an anchor; None for methods without one."""
        return None if self.anchor_sampler is None else self.anchor_sampler.draw()

    def minibatch(self) -> Sample:
        """Draw the windows of one step, ξ."""
        return self.step_sampler.draw()

    def put_back(self, xi: Sample) -> None:
        """Put back the windows of a cancelled step, for the next one."""
        self.step_sampler.put_back(xi)

    def direction(
        self, engine: Engine, xi: Sample, anchor: Tensors | None, coefficient: float
    ) -> Any:
        """Return v(t,k)."""
        return engine.direction(xi, anchor, coefficient)

    def applied(self, step: Step) -> None:
        """Learn what became of the last direction, before the next one."""
        self._memory.settle(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next steps depend on, except the generators."""
        anchor = self.anchor_sampler
        return {
            "step": self.step_sampler.state_dict(),
            "anchor": {} if anchor is None else anchor.state_dict(),
            "memory": self._memory.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.step_sampler.load_state_dict(state["step"])
        if self.anchor_sampler is not None:
            self.anchor_sampler.load_state_dict(state["anchor"])
        self._memory.load_state_dict(state["memory"], self.windows.device)


class Unanchored(Method):
    """A method without anchors, whose outer loops only group its steps."""

    @property
    def num_strata(self) -> int:
        # Steps of all outer loops have the same cost, whatever strata they use.
        return 1

    def inner_steps(self, steps_together: int) -> int:
        return steps_together


class SingleGradient(Unanchored):
    """A method without control variate: one gradient per window and step."""


class Plain(SingleGradient):
    """Uniform mini-batches: the standard optimizer."""


class Stratified(SingleGradient):
    """Stratified mini-batches of M windows."""

    uses_strata = True
    allocation = "proportional"

    def make_step_sampler(self) -> Sampler:
        size, generator = self.hyperparameters.batch_size, self._generators.anchor
        allocation = self.hyperparameters.allocation or self.allocation
        return self._allocated_sampler(allocation, size, generator)


class Auto(Stratified):
    """Mini-batches of M windows from the strata and shares that measurements favour.

    They are uniform until the first measurement.
    """

    uses_strata = False
    chooses_strata = True


class ControlVariate(Method):
    """Uniform mini-batches, corrected by an anchor: v = ∇f_ξ(θ) − c(∇f_ξ(θ_0) − g)."""

    uses_anchor = True
    uses_snapshot = True


class Scott(ControlVariate):
    """The paper's method: a stratified anchor of b windows per stratum."""

    uses_strata = True

    def make_anchor_sampler(self) -> Sampler:
        size = len(self.strata) * self.hyperparameters.anchor_batch_size
        allocation = self.hyperparameters.allocation or "equal"
        return self._allocated_sampler(allocation, size, self._generators.anchor)


class SCSG(ControlVariate):
    """A uniform anchor with as many windows as SCott's."""

    uses_strata = True  # they define the size of the anchor

    def make_anchor_sampler(self) -> Sampler:
        size = len(self.strata) * self.hyperparameters.anchor_batch_size
        return WeightedUniformSampler(self.windows, size, self._generators.anchor)


class SVRG(ControlVariate):
    """The full gradient as anchor: the finest stratification."""

    @property
    def num_strata(self) -> int:
        return len(self.windows)  # each is its own stratum, whatever mini-batches use

    def make_anchor_sampler(self) -> Sampler:
        return FullSampler(self.windows)


class MARS(SingleGradient):
    """Uniform mini-batches, corrected by the previous one: v = g + s·(g − g_before).

    This is the approximate form, with s = c·γ·β₁/(1 − β₁): g is the gradient of the
    step's mini-batch, and g_before that of the previous step's, at the parameters of that
    step. The first step has v = g. The paper (Yuan et al. 2024, "MARS: Unleashing the
    Power of Variance Reduction for Training Large Models") clips v to norm 1, which is
    clip_gradient=1.0 here, and gives it to AdamW with β = (0.95, 0.99).
    """

    needs_direction = True

    def direction(
        self, engine: Engine, xi: Sample, anchor: Tensors | None, coefficient: float
    ) -> Any:
        v = engine.direction(xi, anchor, coefficient)
        gradient = v.tensors
        self._memory.propose(gradient)
        if self._memory.values:
            (before,) = self._memory.values
            scale = coefficient * MARS_GAMMA * MARS_BETA / (1 - MARS_BETA)
            change = torch._foreach_sub(gradient, before)
            v.tensors = tuple(torch._foreach_add(gradient, change, alpha=scale))
        return v


class Storm(Unanchored):
    """Momentum that is corrected: v = ∇f_ξ(θ) − c(1 − a)(∇f_ξ(θ_before) − v_before).

    This is a control variate whose snapshot and anchor are the parameters and the
    direction of the previous step; the first step has v = ∇f_ξ(θ). The paper (Cutkosky
    and Orabona 2019, "Momentum-Based Variance Reduction in Non-Convex SGD") decreases a
    with the step size; here it is constant, and as large as 1 − β₁ of Adam. With a = 0,
    the error of the first direction would never be forgotten.
    """

    uses_snapshot = True
    needs_direction = True

    def direction(
        self, engine: Engine, xi: Sample, anchor: Tensors | None, coefficient: float
    ) -> Any:
        if self._memory.values:
            anchor, before = self._memory.values
            engine.set_snapshot(before)
        v = engine.direction(xi, anchor, coefficient * (1 - STORM_A))
        self._memory.propose(v.tensors, engine.parameters)
        return v


#: The methods by name.
METHODS: dict[str, type[Method]] = {
    "auto": Auto,
    "scott": Scott,
    "scsg": SCSG,
    "svrg": SVRG,
    "stratified": Stratified,
    "plain": Plain,
    "mars": MARS,
    "storm": Storm,
}
