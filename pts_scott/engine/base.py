"""Base class of all engines: snapshot, gradient count and current windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pts_scott.data.window_index import Batch
from pts_scott.engine.gradients import Gradients
from pts_scott.method.protocol import Counters, Sample, Step, Tensors

Gather = Callable[[Tensor], Batch]


class Anchored(NamedTuple):
    """An anchor, and the loss of its windows."""

    anchor: Tensors
    loss: Tensor


class BaseEngine(ABC):
    """Base of the implementations of `pts_scott.method.protocol.Engine`.

    Parameters
    ----------
    gradients
        The gradients of the network.
    gather
        Function from windows to a batch.
    counters
        Where gradients are counted.
    uses_snapshot
        Whether the method has a control variate.
    """

    #: Whether v is known before its update; otherwise both are one compiled function.
    knows_direction = True

    def __init__(
        self,
        gradients: Gradients,
        gather: Gather,
        counters: Counters,
        *,
        uses_snapshot: bool,
    ) -> None:
        self.gradients = gradients
        self.gather = gather
        self.counters = counters
        self.uses_snapshot = uses_snapshot
        self.snapshot: Tensors = tuple(
            p.detach().clone() for p in gradients.parameters if uses_snapshot
        )
        #: Steps made by compiled functions, of which Lightning is not aware.
        self.compiled_steps = 0
        #: The last anchor, until the parameters move away from its snapshot.
        self.anchored: Anchored | None = None
        #: The windows whose gradient is being computed, or was last.
        self.current_windows: Tensor | None = None

    @property
    def parameters(self) -> Tensors:
        """θ, as it is now."""
        return self.gradients.parameters

    def set_snapshot(self, values: Tensors) -> None:
        """Make these values the snapshot, for a method that draws no anchor."""
        keep_snapshot(self.snapshot, values)
        self.anchored = None

    def anchor(self, sample: Sample) -> Tensors:
        """Return g(t,0) = Σ w_i ∇f_{ξ_i}(θ(t,0)); the parameters become the snapshot."""
        self.current_windows = sample.windows
        self.counters.gradients += sample.windows.numel()
        self.anchored = Anchored(*self._anchor(self._typed(sample)))
        return self.anchored.anchor

    def direction(
        self, sample: Sample, anchor: Tensors | None, coefficient: float
    ) -> Any:
        """Return v(t,k), or the gradient of a method without anchor.

        v(t,0) with c = 1 is the anchor: the two gradients of the mini-batch are the same,
        so neither is computed.
        """
        anchored = self.anchored
        if anchored is not None and anchor is anchored.anchor and coefficient == 1.0:
            return self._anchor_direction(sample, anchored)
        self.current_windows = sample.windows
        passes = 1 if anchor is None else 2
        self.counters.gradients += passes * sample.windows.numel()
        return self._direction(self._typed(sample), anchor, coefficient)

    def _typed(self, sample: Sample) -> Sample:
        """Return a sample with weights of the type in which losses are added up."""
        weights, dtype = sample.weights, self.gradients.dtype
        if weights is None or weights.dtype == dtype:
            return sample
        return Sample(sample.windows, weights.to(dtype))

    @abstractmethod
    def apply(self, v: Any, last: bool) -> Step:
        """Update the parameters along v."""

    @abstractmethod
    def _anchor(self, sample: Sample) -> tuple[Tensors, Tensor]:
        """Return the anchor, and the loss of its windows."""

    @abstractmethod
    def _anchor_direction(self, sample: Sample, anchored: Anchored) -> Any:
        """Return v(t,0) if it equals the anchor."""

    @abstractmethod
    def _direction(
        self, sample: Sample, anchor: Tensors | None, coefficient: float
    ) -> Any: ...

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Restore counts and current windows on exit, for checks before training."""
        gradients, current = self.counters.gradients, self.current_windows
        try:
            yield
        finally:
            self.counters.gradients, self.current_windows = gradients, current
            self.anchored = None


def keep_snapshot(snapshot: Tensors, values: Tensors) -> None:
    """Copy parameters, or other values, into the snapshot."""
    with torch.no_grad():
        torch._foreach_copy_(list(snapshot), list(values))
