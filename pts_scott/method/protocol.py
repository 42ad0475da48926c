"""What the algorithm and an engine exchange: samples, steps, and the engine's protocol.

The method knows engines by this protocol alone. How a gradient is taken, fused with its
update, shared by several processes or checked for non-finite values is the engine's.
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
    """What a run has spent so far, each count kept here and nowhere else.

    Parameters
    ----------
    steps, outer
        Steps, and outer loops.
    anchors
        Anchors computed.
    gradients
        Windows whose gradient was computed: M for a plain step, 2 M for an inner step,
        B·b for an anchor.
    """

    steps: int = 0
    outer: int = 0
    anchors: int = 0
    gradients: int = 0


class Sample(NamedTuple):
    """Windows drawn for one gradient; without weights each counts 1/M."""

    windows: Tensor
    weights: Tensor | None = None


class Step(NamedTuple):
    """What one step leaves behind, besides the parameters that it moved.

    A ``skipped`` step was non-finite and changed nothing; its loss is NaN. A
    ``cancelled`` one was not made at all: the early stop fired while its direction was
    being computed.
    """

    windows: Tensor
    loss: Tensor
    squared_norm: Tensor
    skipped: bool = False
    cancelled: bool = False


class Engine(Protocol):
    """How a step is executed."""

    def anchor(self, sample: Sample) -> Tensors:
        """Return g(t,0), the sample's gradient; the parameters become the snapshot."""
        ...

    def direction(
        self, sample: Sample, anchor: Tensors | None, coefficient: float
    ) -> Any:
        """Return v = ∇f_ξ(θ) − c·(∇f_ξ(snapshot) − anchor), or ∇f_ξ(θ) without anchor.

        It is valid until the next call, and may not have been computed yet.
        """
        ...

    def apply(self, v: Any, last: bool) -> Step:
        """Update the parameters along v, in the last step of a loop or another one."""
        ...


@dataclass(frozen=True)
class LoopReport:
    """What one outer loop did.

    Parameters
    ----------
    steps
        Its steps; their numbers may still be on an accelerator.
    anchor_windows
        The windows of its anchor; None for methods without.
    rolled_back
        Whether something was non-finite, and all steps were undone.
    """

    steps: Sequence[Step]
    anchor_windows: Tensor | None = None
    rolled_back: bool = False

    @cached_property
    def _numbers(self) -> list[float]:
        """The losses of all steps, then ‖v‖² of each; waits for the device."""
        losses, norms = zip(*((s.loss, s.squared_norm) for s in self.steps), strict=True)
        return torch.stack([*losses, *norms]).tolist()  # type: ignore[no-any-return]

    @property
    def is_finite(self) -> bool:
        """Whether all losses and norms are finite."""
        return not self.steps or all(map(math.isfinite, self._numbers))

    @property
    def losses(self) -> list[float]:
        """The loss of each step; NaN for one that was skipped or made others so."""
        if not self.steps:
            return []
        losses = self._numbers[: len(self.steps)]
        if self.rolled_back:
            pairs = zip(losses, self._numbers[len(self.steps) :], strict=True)
            losses = [x if math.isfinite(x + y) else math.nan for x, y in pairs]
            if not any(map(math.isnan, losses)):  # no loss was seen after the bad step
                losses[-1] = math.nan
        return losses

    @property
    def squared_norm(self) -> float:
        """‖v‖² of the last step; NaN if there was none."""
        return self._numbers[-1] if self.steps else math.nan

    def as_rolled_back(self) -> LoopReport:
        """Return the report of a loop whose steps were all undone."""
        return replace(self, rolled_back=True)
