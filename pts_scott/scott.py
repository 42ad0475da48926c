"""SCott: the outer and inner loop of the paper, for every method of the family.

Line numbers are those of Algorithm 1 (inner length drawn from a geometric
distribution) and Algorithm 2 (the practical version, with early stop by γ).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pts_scott.gradients import Gradients, Tensors, Update, squared_norm
from pts_scott.randomness import Generators
from pts_scott.strata import Strata
from pts_scott.windows import Batch, WindowIndex

METHODS = ("scott", "scsg", "svrg", "stratified", "plain")

MAX_PASS = 4096  # windows in one pass; larger anchors (SVRG's) are summed up


@dataclass(frozen=True)
class Settings:
    """The method's own numbers, in the paper's letters.

    Parameters
    ----------
    method
        "scott", "scsg", "svrg", "stratified" or "plain".
    batch_size
        M, windows in a uniform mini-batch.
    anchor_batch_size
        b, windows from each stratum.
    inner_steps
        K, the most inner steps of an outer loop.
    inner_length
        "fixed": K steps; "geometric": a random number of steps with mean B.
    gamma
        γ, early stop of the inner loop; None for none.
    """

    method: str = "scott"
    batch_size: int = 32
    anchor_batch_size: int = 1
    inner_steps: int = 20
    inner_length: str = "fixed"
    gamma: float | None = 0.125

    @property
    def has_anchor(self) -> bool:
        """Whether the method uses a control variate."""
        return self.method in ("scott", "scsg", "svrg")

    def anchor_size(self, strata: Strata | None, windows: WindowIndex) -> int:
        """Windows in one anchor, or in one stratified mini-batch."""
        if self.method == "svrg":
            return len(windows)
        if self.method == "plain" or strata is None:
            return 0
        return len(strata) * self.anchor_batch_size

    def step_size(self, strata: Strata | None, windows: WindowIndex) -> int:
        """Gradients that one step computes."""
        if self.method == "stratified":
            return self.anchor_size(strata, windows)
        return self.batch_size * (2 if self.has_anchor else 1)

    def first_step_size(self, strata: Strata | None, windows: WindowIndex) -> int:
        """Gradients that the first step of an outer loop needs, its anchor included."""
        anchor = self.anchor_size(strata, windows) if self.has_anchor else 0
        return anchor + self.step_size(strata, windows)


class OuterLoop(NamedTuple):
    """What one outer loop did; tensors are read only by who needs their numbers."""

    steps: int
    loss: Tensor
    squared_norm: Tensor


class Draws(Protocol):
    """Where the windows of anchors and mini-batches come from."""

    def anchor(self) -> tuple[Tensor, Tensor]:
        """Windows of an anchor (or of a stratified step) and their weights."""
        ...

    def inner(self) -> Tensor:
        """Windows of a uniform mini-batch, ξ."""
        ...


class WindowDraws:
    """Draws from a window index, by the method's own rule for the anchor."""

    def __init__(
        self,
        settings: Settings,
        windows: WindowIndex,
        strata: Strata | None,
        generators: Generators,
    ) -> None:
        self._settings = settings
        self._windows = windows
        self._strata = strata
        self._generators = generators
        self._weights = self._anchor_weights()

    def _anchor_weights(self) -> Tensor:
        size = self._settings.anchor_size(self._strata, self._windows)
        values = self._windows.series.values
        if self._settings.method in ("scott", "stratified"):
            assert self._strata is not None
            b = self._settings.anchor_batch_size
            return (self._strata.weights / b).repeat_interleave(b).to(values)
        return values.new_full((size,), 1 / max(size, 1))

    def anchor(self) -> tuple[Tensor, Tensor]:
        method, generator = self._settings.method, self._generators.anchor
        if method == "svrg":  # every window: the full gradient
            windows = torch.arange(len(self._windows), device=self._windows.device)
        elif method == "scsg":  # as many windows as SCott, from anywhere
            windows = self._windows.draw(len(self._weights), generator)
        else:
            assert self._strata is not None
            windows = self._strata.draw(self._settings.anchor_batch_size, generator)
        return windows, self._weights

    def inner(self) -> Tensor:
        return self._windows.draw(self._settings.batch_size, self._generators.inner)


class Scott:
    """One trainable network, and the outer loops that train it.

    Parameters
    ----------
    gradients
        The gradient estimators of the network.
    gather
        From windows to a batch.
    draws
        Where windows come from.
    settings
        The method and its numbers.
    step
        The optimizer's update, from the gradients in ``.grad``.
    """

    def __init__(
        self,
        gradients: Gradients,
        gather: Callable[[Tensor], Batch],
        draws: Draws,
        settings: Settings,
        step: Callable[[], object],
        *,
        clip_gradient: float | None = None,
    ) -> None:
        self.gradients = gradients
        self.gather = gather
        self.draws = draws
        self.settings = settings
        self.step = step
        self.clip_gradient = clip_gradient
        self.anchors = 0
        self.snapshot: Tensors = tuple(
            p.detach().clone() for p in gradients.parameters if settings.has_anchor
        )

    def outer_loop(
        self,
        length: int,
        coefficient: float = 1.0,
        exhausted: Callable[[], bool] = lambda: False,
    ) -> OuterLoop:
        """An anchor and at most ``length`` inner steps (lines 2–9).

        Parameters
        ----------
        length
            K_t, drawn by ``geometric_length`` for Algorithm 1.
        coefficient
            c; 1 is the paper's method.
        exhausted
            Asked before each step; True ends the loop (a budget is used up).
        """
        if self.settings.has_anchor:
            anchor = self._take_anchor()  # line 2: g(t,0), and θ(t,0) is kept
            c = anchor[0].new_tensor(coefficient)

        losses: list[Tensor] = []
        norm = first_norm = None  # ‖v(t,0)‖² belongs to this outer loop alone
        for _ in range(length):  # line 3
            if exhausted():
                break
            if self.settings.has_anchor:
                batch = self.gather(self.draws.inner())  # line 4: ξ(t,k)
                v = self.gradients.control_variate(  # line 5: v(t,k)
                    batch, self.snapshot, anchor, c
                )
            else:
                v = self._plain_step()
            norm = squared_norm(v.direction)
            self._update(v.direction, norm)  # line 6
            losses.append(v.loss)
            if first_norm is None:
                first_norm = norm
            gamma = self.settings.gamma if self.settings.has_anchor else None
            if gamma is not None and bool(norm <= gamma * first_norm):  # line 7
                break  # line 8
        return self._report(losses, norm)

    def _take_anchor(self) -> Tensors:
        """g(t,0) = Σ w_i ∇f_{ξ_i}(θ(t,0)); the parameters become the snapshot."""
        with torch.no_grad():
            torch._foreach_copy_(list(self.snapshot), list(self.gradients.parameters))
        self.anchors += 1
        return self._stratified_gradient().direction

    def _plain_step(self) -> Update:
        """A step without control variate: the baselines in the same engine."""
        if self.settings.method == "stratified":
            return self._stratified_gradient()
        return self.gradients.uniform(self.gather(self.draws.inner()))

    def _stratified_gradient(self) -> Update:
        windows, weights = self.draws.anchor()
        total: Update | None = None
        for part, w in zip(windows.split(MAX_PASS), weights.split(MAX_PASS), strict=True):
            update = self.gradients.stratified(self.gather(part), w)
            total = update if total is None else _add(total, update)
        assert total is not None
        return total

    def _update(self, direction: Tensors, squared: Tensor) -> None:
        if self.clip_gradient is not None:
            scale = (self.clip_gradient / (squared.sqrt() + 1e-6)).clamp(max=1.0)
            direction = tuple(torch._foreach_mul(direction, scale))
        for parameter, value in zip(self.gradients.parameters, direction, strict=True):
            parameter.grad = value
        self.step()

    def _report(self, losses: list[Tensor], norm: Tensor | None) -> OuterLoop:
        if not losses or norm is None:
            nothing = self.gradients.parameters[0].new_tensor(math.nan)
            return OuterLoop(0, nothing, nothing)
        return OuterLoop(len(losses), torch.stack(losses).mean(), norm)


def _add(left: Update, right: Update) -> Update:
    direction = torch._foreach_add(left.direction, right.direction)
    return Update(tuple(direction), left.loss + right.loss)


def geometric_length(mean: int, generator: torch.Generator) -> int:
    """K_t ~ Geo(B/(B+1)): P(K = k) = p^k (1 − p) for k = 0, 1, …, with mean B."""
    p = mean / (mean + 1)
    uniform = 1.0 - torch.rand((), generator=generator, dtype=torch.float64).item()
    return int(math.log(uniform) / math.log(p))
