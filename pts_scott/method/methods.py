"""The methods: one class per method, which defines the windows it draws, and a table.

A method is a sampler for its steps and, with a control variate, one for its anchors. To
add one, write a class and add it to ``METHODS``; nothing else in the package compares
method names.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from pts_scott._utils.rng import Generators
from pts_scott.data.window_index import WindowIndex
from pts_scott.method.hyperparameters import Hyperparameters
from pts_scott.method.protocol import Engine, Sample, Tensors
from pts_scott.method.samplers import (
    FullSampler,
    Sampler,
    StratifiedSampler,
    UniformSampler,
    WeightedUniformSampler,
)
from pts_scott.strata.partition import Strata


class Method:
    """The windows that are drawn, and how a direction is computed from them.

    Parameters
    ----------
    hyperparameters
        M, b, K and γ.
    windows
        D, the training windows.
    strata
        Their partition; None for a method that uses none.
    generators
        The streams of random numbers.
    """

    #: Whether windows have to be stratified.
    uses_strata: ClassVar[bool] = False
    #: Whether steps have a control variate, and so need an anchor and two passes.
    uses_anchor: ClassVar[bool] = False

    def __init__(
        self,
        hyperparameters: Hyperparameters,
        windows: WindowIndex,
        strata: Strata | None,
        generators: Generators,
    ) -> None:
        self.hyperparameters = hyperparameters
        self.windows = windows
        self._strata = strata
        self._generators = generators
        self.step_sampler = self.make_step_sampler()
        self.anchor_sampler = self.make_anchor_sampler() if self.uses_anchor else None

    def make_step_sampler(self) -> Sampler:
        """Create the sampler of a step's mini-batch: M uniform windows by default."""
        size = self.hyperparameters.batch_size
        return UniformSampler(self.windows, size, self._generators.inner)

    def make_anchor_sampler(self) -> Sampler:
        """Create the sampler of anchors, for methods that use them."""
        raise NotImplementedError

    def _stratified_sampler(self) -> Sampler:
        b = self.hyperparameters.anchor_batch_size
        return StratifiedSampler(self.windows, self.strata, b, self._generators.anchor)

    @property
    def strata(self) -> Strata:
        """The partition, for methods that use one."""
        assert self._strata is not None
        return self._strata

    @property
    def num_strata(self) -> int:
        """B; without a partition every window is its own stratum."""
        return len(self.windows) if self._strata is None else len(self._strata)

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
        """Gradients that one step computes."""
        return self.step_windows * (2 if self.uses_anchor else 1)

    @property
    def first_step_cost(self) -> int:
        """Gradients of the first step of an outer loop, its anchor included."""
        return self.anchor_windows + self.step_cost

    def inner_steps(self, steps_left_in_epoch: int) -> int:
        """Return K, the maximum number of steps of the next outer loop."""
        return self.hyperparameters.inner_steps

    def anchor(self) -> Sample | None:
        """Draw the windows of an anchor; None for methods without one."""
        return None if self.anchor_sampler is None else self.anchor_sampler.draw()

    def minibatch(self) -> Sample:
        """Draw the windows of one step, ξ."""
        return self.step_sampler.draw()

    def put_back(self, windows: Tensor) -> None:
        """Put back the windows of a cancelled step, for the next one."""
        assert isinstance(self.step_sampler, UniformSampler)
        self.step_sampler.put_back(windows)

    def direction(
        self, engine: Engine, xi: Sample, anchor: Tensors | None, coefficient: float
    ) -> Any:
        """Return v(t,k)."""
        return engine.direction(xi, anchor, coefficient)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next draws depend on, except the generators."""
        anchor = self.anchor_sampler
        return {
            "step": self.step_sampler.state_dict(),
            "anchor": {} if anchor is None else anchor.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.step_sampler.load_state_dict(state["step"])
        if self.anchor_sampler is not None:
            self.anchor_sampler.load_state_dict(state["anchor"])


class SingleGradient(Method):
    """A method without control variate: one gradient per window and step."""

    def inner_steps(self, steps_left_in_epoch: int) -> int:
        # No anchor links these steps, so an outer loop may end with the epoch.
        return min(self.hyperparameters.inner_steps, steps_left_in_epoch)


class Plain(SingleGradient):
    """Uniform mini-batches: the standard optimizer."""


class Stratified(SingleGradient):
    """Stratified mini-batches: b windows of each stratum in every step."""

    uses_strata = True

    def make_step_sampler(self) -> Sampler:
        return self._stratified_sampler()


class ControlVariate(Method):
    """Uniform mini-batches, corrected by an anchor: v = ∇f_ξ(θ) − c(∇f_ξ(θ_0) − g)."""

    uses_anchor = True


class Scott(ControlVariate):
    """The paper's method: a stratified anchor of b windows per stratum."""

    uses_strata = True

    def make_anchor_sampler(self) -> Sampler:
        return self._stratified_sampler()


class SCSG(ControlVariate):
    """A uniform anchor with as many windows as SCott's."""

    uses_strata = True  # they define the size of the anchor

    def make_anchor_sampler(self) -> Sampler:
        size = len(self.strata) * self.hyperparameters.anchor_batch_size
        return WeightedUniformSampler(self.windows, size, self._generators.anchor)


class SVRG(ControlVariate):
    """The full gradient as anchor: the finest stratification."""

    def make_anchor_sampler(self) -> Sampler:
        return FullSampler(self.windows)


#: The methods by name.
METHODS: dict[str, type[Method]] = {
    "scott": Scott,
    "scsg": SCSG,
    "svrg": SVRG,
    "stratified": Stratified,
    "plain": Plain,
}
