"""The protocol of engines, and the samples and steps that it exchanges.

The method knows engines only by this protocol. How a gradient is computed, fused with its
update, shared by several processes or checked for non-finite values is up to the engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]


@dataclass
class Counters:
    """Cost of a run so far; this is the only place where it is counted.

    Parameters
    ----------
    steps, outer
        Steps, and outer loops.
    anchors
        Anchors computed.
    gradients
        Windows whose gradient was computed: M for a plain step, 2 M for an inner step
        (none for the first after an anchor with c = 1, which is along the anchor),
        B·b for an anchor, one for each window that a probe measures.
    probe_gradients
        Those of probes, which are contained in ``gradients``.
    """

    steps: int = 0
    outer: int = 0
    anchors: int = 0
    gradients: int = 0
    probe_gradients: int = 0


class Sample(NamedTuple):
    """Windows drawn for one gradient; without weights each counts 1/M."""

    windows: Tensor
    weights: Tensor | None = None


class Step(NamedTuple):
    """The results of one step, except for the updated parameters.

    A ``skipped`` step was non-finite and changed nothing; its loss is NaN. A
    ``cancelled`` one was never applied: the early stop fired while its direction was
    being computed.
    """

    windows: Tensor
    loss: Tensor
    squared_norm: Tensor
    skipped: bool = False
    cancelled: bool = False


class Engine(Protocol):
    """How a step is executed."""

    @property
    def parameters(self) -> Tensors:
        """θ, as it is now."""
        ...

    def set_snapshot(self, values: Tensors) -> None:
        """Make these values the snapshot, in place of an anchor's."""
        ...

    def anchor(self, sample: Sample) -> Tensors:
        """Return g(t,0), the sample's gradient; the parameters become the snapshot."""
        ...

    def direction(
        self, sample: Sample, anchor: Tensors | None, coefficient: float
    ) -> Any:
        """Return v = ∇f_ξ(θ) − c·(∇f_ξ(snapshot) − anchor), or ∇f_ξ(θ) without anchor.

        It is valid until the next call, and may not have been computed yet; for a method
        that needs it, it has been, and its ``tensors`` may be replaced.
        """
        ...

    def apply(self, v: Any, last: bool) -> Step:
        """Update the parameters along v; ``last`` marks the last step of a loop."""
        ...


@dataclass(frozen=True)
class LoopReport:
    """The results of one outer loop.

    Parameters
    ----------
    steps
        Its steps; their numbers may still be on an accelerator.
    anchor_windows
        The windows of its anchor; None for methods without one.
    rolled_back
        Whether something was non-finite, and all steps were rolled back.
    """

    steps: Sequence[Step]
    anchor_windows: Tensor | None = None
    rolled_back: bool = False

    @cached_property
    def _numbers(self) -> list[float]:
        """The losses of all steps, then ‖v‖² of each; waits for the device."""
        losses, norms = zip(*((s.loss, s.squared_norm) for s in self.steps), strict=True)
        values = [*losses, *norms]
        if values[0].device.type == "cpu":  # where reading one is cheaper than stacking
            return [value.item() for value in values]
        return torch.stack(values).tolist()  # type: ignore[no-any-return]

    @property
    def is_finite(self) -> bool:
        """Whether all losses and norms are finite."""
        return not self.steps or all(map(math.isfinite, self._numbers))

    @property
    def losses(self) -> list[float]:
        """The loss of each step; NaN for faulty steps."""
        if not self.steps:
            return []
        losses = self._numbers[: len(self.steps)]
        if self.rolled_back:
            pairs = zip(losses, self._numbers[len(self.steps) :], strict=True)
            losses = [x if math.isfinite(x + y) else math.nan for x, y in pairs]
            if not any(map(math.isnan, losses)):  # only the last step can be faulty
                losses[-1] = math.nan
        return losses

    @property
    def squared_norm(self) -> float:
        """‖v‖² of the last step; NaN if there was none."""
        return self._numbers[-1] if self.steps else math.nan

    def as_rolled_back(self) -> LoopReport:
        """Return the report of the same loop, marked as rolled back."""
        return replace(self, rolled_back=True)
