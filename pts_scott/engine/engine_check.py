"""Check the engine before the first step: it must equal plain torch.

A wrong gradient does not crash; it trains a worse model. So the engine that will run
(eager, compiled or distributed) first computes a few gradients and one update in training
mode, which must equal those of plain autograd and an unfused optimizer on the same
windows. Parameters, buffers, random state and counts are left untouched.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pts_scott._utils.text import shorten
from pts_scott.engine.base import keep_snapshot
from pts_scott.engine.compiled import CompiledEngine
from pts_scott.engine.distributed import DistributedEngine
from pts_scott.engine.eager import MAX_PASS, EagerEngine
from pts_scott.engine.network_check import REGISTER
from pts_scott.engine.plain_passes import PlainPasses, distance, total_norm
from pts_scott.engine.tensors import clip_scale
from pts_scott.engine.update_check import differing_updates
from pts_scott.errors import HiddenParameterError, SelfCheckError
from pts_scott.method.methods import Method
from pts_scott.method.protocol import Sample, Tensors

_TWO_PASSES = (
    "The two passes of an inner step have different inputs: check whether the network "
    "writes into its batch, or keeps state outside its buffers; method='plain' needs "
    "no second pass."
)
_ENGINE = (
    "Pass compile=False if it is compiled; activation checkpointing needs "
    "use_reentrant=False."
)


class EngineCheck:
    """The checks of one engine.

    Parameters
    ----------
    engine
        The engine, as it will run.
    passes
        Plain passes to compare with.
    optimizer
        The optimizer of the run; it makes no step.
    finite
        Windows whose losses and gradients are finite.
    """

    def __init__(
        self,
        engine: EagerEngine,
        passes: PlainPasses,
        optimizer: torch.optim.Optimizer,
        finite: Tensor,
    ) -> None:
        self._engine, self._passes = engine, passes
        self._optimizer, self._finite = optimizer, finite

    def run(self, method: Method) -> None:
        """Check the gradients and the update of a method.

        Raises
        ------
        SelfCheckError
        """
        self._check_membership()
        if not len(self._finite):
            return
        engine, passes = self._engine, self._passes
        with passes.restored(), engine.untouched(), engine.gradients.unscaled():
            windows = self._repeated(method.step_windows)
            sample = self._sample(windows, method.step_sampler.is_weighted)
            if method.uses_anchor:
                size = min(method.anchor_windows, MAX_PASS)
                v = self._checked_anchor(self._repeated(size))
            else:
                v = self._checked_gradient(sample)
            if method.uses_snapshot:  # without anchors, the first v is the next one's
                v = self._checked_control_variate(sample, v)
            if not isinstance(engine, CompiledEngine):
                self._check_update(v)

    def _check_membership(self) -> None:
        groups = self._optimizer.param_groups
        held = {id(p) for group in groups for p in group["params"]}
        pairs = zip(self._passes.names, self._passes.parameters, strict=True)
        missing = [name for name, p in pairs if id(p) not in held]
        if missing:
            raise SelfCheckError(
                f"the optimizer does not hold {shorten(missing)}, which would never be "
                "trained. Give it all parameters that it is called with, and freeze "
                "others with requires_grad_(False)."
            )

    def _repeated(self, size: int) -> Tensor:
        """Return the windows, repeated to the number that compiled functions expect."""
        if not self._engine.gradients.compiled:
            return self._finite
        places = torch.arange(size, device=self._finite.device) % len(self._finite)
        return self._finite[places]

    @property
    def _is_comparable(self) -> bool:
        """Whether the engine draws the same random numbers as a plain pass.

        Several processes draw different masks, each for its shard of the windows.
        """
        stochastic = self._engine.gradients.stochastic
        return not (stochastic and isinstance(self._engine, DistributedEngine))

    # -- gradients ---------------------------------------------------------------------

    def _checked_anchor(self, windows: Tensor) -> Tensors:
        """Return an anchor that equals autograd's; the snapshot then equals θ."""
        weights = self._passes.unequal_weights(windows)
        self._move_snapshot()
        self._passes.rewind()
        anchor = self._engine.anchor(Sample(windows, weights))
        pairs = zip(self._engine.snapshot, self._passes.parameters, strict=True)
        if not all(torch.equal(x.detach(), p.detach()) for x, p in pairs):
            raise SelfCheckError(f"the snapshot differs from the parameters. {_ENGINE}")
        if self._is_comparable:
            expected = self._passes.gradient(windows, weights)
            self._compare(anchor, expected, self._subject("anchor"), _ENGINE)
        return anchor

    def _sample(self, windows: Tensor, is_weighted: bool) -> Sample:
        weights = self._passes.unequal_weights(windows) if is_weighted else None
        return Sample(windows, weights)

    def _checked_control_variate(self, sample: Sample, anchor: Tensors) -> Tensors:
        """Check v at another snapshot, and at θ itself, where it equals the anchor.

        At θ, v equals the anchor regardless of the gradient at the snapshot; only another
        snapshot shows whether that gradient is correct.
        """
        engine, passes = self._engine, self._passes
        self._move_snapshot()
        moved = engine.snapshot
        if self._is_comparable and passes.is_finite(sample.windows, moved):
            # In place: for large networks every copy counts.
            expected = passes.gradient(*sample)
            torch._foreach_sub_(expected, passes.gradient(*sample, moved))
            torch._foreach_add_(expected, anchor)
            if isinstance(engine, CompiledEngine):
                self._check_step(engine, sample, anchor, expected)
            else:
                self._check_snapshot_gradient(sample, anchor, expected)
            del expected
        if isinstance(engine, CompiledEngine):
            return anchor
        keep_snapshot(moved, passes.parameters)
        v = self._direction(sample, anchor)
        self._compare(v, anchor, "v(t,0) differs from its anchor", _TWO_PASSES)
        return v

    def _check_snapshot_gradient(
        self, sample: Sample, anchor: Tensors, expected: Tensors
    ) -> None:
        found = self._direction(sample, anchor)
        wrong = self._passes.differing(found, expected)
        if wrong:
            name = self._passes.network_losses.name
            raise HiddenParameterError(
                f"the gradient of {name} at a snapshot is wrong in "
                f"{shorten(wrong)}: the network accesses parameters other than by "
                f"their registered names. {REGISTER} method='plain' needs no snapshot."
            )

    def _checked_gradient(self, sample: Sample) -> Tensors:
        """Return the gradient of a step without control variate."""
        expected = self._passes.gradient(*sample)
        if isinstance(self._engine, CompiledEngine):
            self._check_step(self._engine, sample, None, expected)
            return expected
        found = self._direction(sample, None)
        if self._is_comparable:
            self._compare(found, expected, self._subject("gradient"), _ENGINE)
        return found

    def _direction(self, sample: Sample, anchor: Tensors | None) -> Tensors:
        self._passes.rewind()
        v: Tensors = self._engine.direction(sample, anchor, 1.0).tensors
        return v

    def _move_snapshot(self) -> None:
        with torch.no_grad():
            values = self._passes.moved_parameters()
            for tensor, value in zip(self._engine.snapshot, values, strict=True):
                tensor.copy_(value)
        self._engine.anchored = None  # so that both gradients are computed

    def _subject(self, what: str) -> str:
        kind = "compiled " if self._engine.gradients.compiled else ""
        return f"the {kind}{what} differs from that of loss.backward()"

    def _compare(self, found: Tensors, expected: Tensors, what: str, cause: str) -> None:
        wrong = self._passes.differing(found, expected)
        if wrong:
            error = distance(found, expected) / max(total_norm(expected), 1e-300)
            raise SelfCheckError(
                f"{what} by {error:.2g} times its norm, in {shorten(wrong)}. {cause}"
            )

    # -- updates -----------------------------------------------------------------------

    def _check_step(
        self,
        engine: CompiledEngine,
        sample: Sample,
        anchor: Tensors | None,
        expected: Tensors,
    ) -> None:
        """Make a whole compiled step, compare it, and roll it back."""
        length = total_norm(expected)
        if engine.clip_gradient is not None:
            squared = torch.tensor(length**2, dtype=torch.float64)
            shorter = float(clip_scale(squared, engine.clip_gradient))
            expected = tuple(shorter * v for v in expected)
        parameters = self._passes.parameters
        with engine.rolled_back():
            before = [p.detach().clone() for p in parameters]
            self._passes.rewind()
            step = engine.apply(engine.direction(sample, anchor, 1.0), last=True)
            after = [p.detach().clone() for p in parameters]
        # The first step of Adam or Adagrad does not show how long v is.
        found = math.sqrt(float(step.squared_norm))
        if not abs(found - length) <= self._passes.tolerance * length:
            raise SelfCheckError(
                f"the direction of a compiled step has norm {found:.6g}, and that of "
                f"loss.backward() {length:.6g}. Pass compile=False."
            )
        optimizer = self._optimizer
        wrong = differing_updates(self._passes, optimizer, expected, before, after)
        if wrong:
            raise SelfCheckError(
                f"one compiled step of {type(optimizer).__name__} moves {shorten(wrong)} "
                "differently from loss.backward() and the optimizer. Pass compile=False."
            )

    def _check_update(self, v: Tensors) -> None:
        """Compare an update in the layout of v with one without fused kernels."""
        wrong = differing_updates(self._passes, self._optimizer, v)
        if wrong:
            raise SelfCheckError(
                f"one update of {type(self._optimizer).__name__} moves {shorten(wrong)} "
                "differently from the same optimizer without fused kernels. Pass an "
                "optimizer with fused=False, or make these parameters contiguous."
            )
