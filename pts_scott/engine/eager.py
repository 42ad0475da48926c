"""The eager engine: a gradient, then the update of any ``torch.optim`` optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from pts_scott.engine.base import Anchored, BaseEngine, Gather, keep_snapshot
from pts_scott.engine.gradients import Gradients, Update
from pts_scott.engine.tensors import (
    add,
    clip_scale,
    in_layout_of,
    largest_square,
    own_tensors,
    squared_norm,
    zeros_like,
)
from pts_scott.method.protocol import Counters, Sample, Step, Tensors

MAX_PASS = 4096  # windows in one pass; larger anchors (SVRG's) take several


def fits_one_pass(windows: int) -> bool:
    """Return whether the gradient of this many windows is computed in one pass."""
    return windows <= MAX_PASS


class Direction:
    """v(t,k) with its loss; the norm is computed when it is first needed.

    Parameters
    ----------
    sample
        The windows it was computed from.
    update
        v and the loss.
    largest
        Maximum ‖v‖²; above it, the norm is infinite.
    """

    def __init__(self, sample: Sample, update: Update, largest: float) -> None:
        self.windows = sample.windows
        self.tensors, self.loss = update
        self._largest = largest

    @cached_property
    def squared_norm(self) -> Tensor:
        """‖v‖², which is costly to compute for a large v."""
        return squared_norm(self.tensors, self._largest)


class EagerEngine(BaseEngine):
    """Gradients by autograd or compiled functions, updates by the optimizer.

    Parameters
    ----------
    gradients, gather, counters, uses_snapshot
        See `BaseEngine`.
    step
        The optimizer's update, from the gradients in ``.grad``.
    clip_gradient
        Maximum norm of an update; None for no clipping.
    """

    def __init__(
        self,
        gradients: Gradients,
        gather: Gather,
        counters: Counters,
        step: Callable[[], object],
        *,
        uses_snapshot: bool,
        clip_gradient: float | None = None,
    ) -> None:
        super().__init__(gradients, gather, counters, uses_snapshot=uses_snapshot)
        self._step = step
        self.clip_gradient = clip_gradient
        # Beyond this, an optimizer's second moments would overflow and never recover.
        self.largest = math.inf
        if clip_gradient is None:
            self.largest = largest_square(gradients.parameters)
        device = gradients.parameters[0].device
        self._unknown_norm = torch.zeros((), device=device)

    def _anchor(self, sample: Sample) -> tuple[Tensors, Tensor]:
        keep_snapshot(self.snapshot, self.gradients.parameters)
        return self._weighted(sample)

    def _anchor_direction(self, sample: Sample, anchored: Anchored) -> Direction:
        v = self.gradients.start_direction(anchored.anchor)
        return Direction(sample, Update(v, anchored.loss), self.largest)

    def _direction(
        self, sample: Sample, anchor: Tensors | None, coefficient: float
    ) -> Direction:
        if anchor is not None:
            update = self._control_variate(sample, anchor, coefficient)
        elif sample.weights is None:
            update = self._uniform(sample)
        else:
            update = self._weighted(sample)
        return Direction(sample, update, self.largest)

    def _uniform(self, sample: Sample) -> Update:
        return self.gradients.uniform(self.gather(sample.windows))

    def _control_variate(
        self, sample: Sample, anchor: Tensors, coefficient: float
    ) -> Update:
        batch = self.gather(sample.windows)
        return self.gradients.control_variate(
            batch, self.snapshot, anchor, coefficient, sample.weights
        )

    def _weighted(self, sample: Sample) -> Update:
        """Return Σ_j weights_j ∇f_j(θ), in as many passes as needed."""
        assert sample.weights is not None
        parts = zip(
            sample.windows.split(MAX_PASS), sample.weights.split(MAX_PASS), strict=True
        )
        total: Update | None = None
        for windows, weights in parts:
            if not len(windows):
                continue
            update = self.gradients.weighted(self.gather(windows), weights)
            if total is not None:
                direction = add(total.direction, update.direction)
                update = Update(direction, total.loss + update.loss)
            total = update
        return total or self._zero_update()

    def _zero_update(self) -> Update:
        """Return the gradient of zero windows: zero."""
        like = self.gradients.parameters[0]
        zero = torch.zeros((), dtype=like.dtype, device=like.device)
        return Update(zeros_like(self.gradients.parameters), zero)

    def apply(self, v: Direction, last: bool) -> Step:
        """Update the parameters along v, clipped if its norm is too large.

        The norm is returned where it is known, and in the last step of a loop.
        """
        self.anchored = None
        known = last or self.uses_snapshot or "squared_norm" in vars(v)
        norm = v.squared_norm if known else self._unknown_norm
        tensors = v.tensors
        if self.clip_gradient is not None:
            norm = v.squared_norm
            tensors = tuple(own_tensors(tensors))
            shorter = clip_scale(norm, self.clip_gradient)
            torch._foreach_mul_(tensors, shorter.to(self.gradients.dtype))
        self._update(tensors)
        v.tensors = ()  # the next gradient needs the memory
        return Step(v.windows, v.loss, norm)

    def _update(self, direction: Tensors) -> None:
        """Make the optimizer step along a direction."""
        parameters, scale = self.gradients.parameters, self.gradients.scale
        direction = in_layout_of(parameters, direction)
        for parameter, value in zip(parameters, direction, strict=True):
            parameter.grad = value if scale == 1.0 else scale * value
        for place in self.gradients.idle:
            if not bool(direction[place].any()):
                parameters[place].grad = None
        self._step()  # in mixed precision by the scaler, which detects overflows
        for parameter in parameters:  # so that v can be freed
            parameter.grad = None

    def load_optimizer_state(self) -> None:
        """Make the optimizer state complete, before it is saved."""

    def reread_step(self) -> None:
        """Read the optimizer's step again, after a rollback has changed it."""

    def may_overflow(self) -> bool:
        """Return whether a gradient may be infinite because half precision is narrow.

        Then the scaler skips the step and lowers its scale; below one, half precision is
        no longer the reason.
        """
        return self.gradients.scaler is not None and self.gradients.scale >= 1.0

    def warm_up(self, anchor_windows: int, step_windows: int, is_weighted: bool) -> None:
        """Compile all functions; leave parameters, state and counts unchanged."""

        # Two passes are enough: a full one and the last, which may be smaller.
        def in_passes(size: int) -> int:
            if fits_one_pass(size):
                return size
            return MAX_PASS + (size % MAX_PASS or MAX_PASS)

        anchor = None
        with self.untouched():
            if anchor_windows:
                anchor = self.anchor(self._any_sample(in_passes(anchor_windows), True))
            size = in_passes(step_windows) if is_weighted else step_windows
            sample = self._any_sample(size, is_weighted)
            if self.uses_snapshot and anchor is None:
                # The first step has one pass, and its v is the anchor of the next.
                anchor = self.direction(sample, None, 1.0).tensors
            self._try_step(sample, anchor)
            if anchor_windows:  # that was v(t,0), which needs no gradient
                self.anchored = None
                self._try_step(sample, anchor)

    def _try_step(self, sample: Sample, anchor: Tensors | None) -> None:
        """Run the computations of a step without changing anything."""
        self.direction(sample, anchor, 1.0)

    def _any_sample(self, size: int, is_weighted: bool) -> Sample:
        parameter = self.gradients.parameters[0].detach()
        windows = torch.zeros(size, dtype=torch.long, device=parameter.device)
        ones = parameter.new_ones(size, dtype=self.gradients.dtype)
        return Sample(windows, ones if is_weighted else None)
