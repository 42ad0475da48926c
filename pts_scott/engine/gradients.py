"""Gradients of weighted sums of window losses: uniform, weighted, and control variate.

There are two equivalent ways to compute them: by autograd on the module as it is, and in
a compiled function, which autograd has recorded once. Parameters, snapshot and anchor are
tuples of plain tensors in the order of ``Gradients.parameters``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from pts_scott._utils.rng import global_state, set_global_state
from pts_scott.data.window_index import Batch
from pts_scott.engine.buffers import Buffers
from pts_scott.engine.compilation import CompiledFunction
from pts_scott.engine.isolation import without_cudnn
from pts_scott.engine.losses import Losses, batch_size
from pts_scott.engine.tensors import autograd, finest_type, own_tensors
from pts_scott.method.protocol import Tensors


class Update(NamedTuple):
    """A direction, and the loss of the windows it was computed from."""

    direction: Tensors
    loss: Tensor


class Gradients:
    """Gradients of the window losses of one network.

    Parameters
    ----------
    losses
        The window losses of a network.
    compiled
        Compute gradients in compiled functions.
    stochastic
        Global generators that a pass draws from, which the second pass must repeat.
    stateful
        Whether a pass changes buffers of the network, which the second must not see.
    scaler
        Of mixed precision: losses are multiplied by its scale before a backward pass, and
        gradients divided by it afterwards, in every pass.
    idle
        Indices of parameters on which no loss was found to depend. They are not updated
        while their direction is zero, or weight decay would shrink them.
    """

    def __init__(
        self,
        losses: Losses,
        *,
        compiled: bool = False,
        stochastic: frozenset[str] = frozenset(),
        stateful: bool = False,
        scaler: torch.amp.GradScaler | None = None,
        idle: frozenset[int] = frozenset(),
    ) -> None:
        self.losses = losses
        self.compiled = compiled
        self.stochastic, self.stateful = stochastic, stateful
        self.scaler, self.idle = scaler, idle
        self.parameters: Tensors = tuple(losses.trainable().values())
        #: The type in which windows are weighted.
        self.dtype = finest_type(self.parameters)
        #: Buffers that a pass changes; compiled functions take them as arguments.
        self.buffers: Tensors = tuple(losses.buffers()) if stateful else ()
        self._places = losses.places()
        if stateful:
            self._places += losses.buffer_places()
        self._direction: Tensors = ()  # v, in the same place in every step
        self._function: CompiledFunction | None = None
        if compiled:
            self._function = CompiledFunction(self._flat, losses)

    def uniform(self, batch: Batch) -> Update:
        """Return ∇f_ξ(θ), the mean gradient of a uniform mini-batch."""
        return self.weighted(batch, self.equal_weights(batch))

    def weighted(self, batch: Batch, weights: Tensor) -> Update:
        """Return Σ_j weights_j ∇f_j(θ), in one batched pass.

        With ``weights`` w_i / b for the b windows of stratum i this is the anchor.
        """
        if self._function is not None:
            return Update(*self._compiled(self.parameters, self.buffers, batch, weights))
        return Update(*self._autograd(batch, weights))

    def control_variate(
        self,
        batch: Batch,
        snapshot: Tensors,
        anchor: Tensors,
        coefficient: float,
        weights: Tensor | None = None,
    ) -> Update:
        """Return ∇f_ξ(θ) − c · (∇f_ξ(snapshot) − anchor) on a mini-batch ξ.

        Without ``weights`` each window counts 1/M. The direction is valid until the next
        call.
        """
        weights = self.equal_weights(batch) if weights is None else weights
        return self.control_variate_share(batch, weights, snapshot, anchor, coefficient)

    def control_variate_share(
        self,
        batch: Batch,
        weights: Tensor,
        snapshot: Tensors,
        anchor: Tensors | None,
        coefficient: float,
    ) -> Update:
        """Return Σ_j weights_j (∇f_j(θ) − c ∇f_j(snapshot)), plus c · anchor if given.

        Without anchor, this is what one of several processes adds to v.
        """
        pair = self._autograd_pair if self._function is None else self._compiled_pair
        return Update(*pair(snapshot, anchor, coefficient, batch, weights))

    def start_direction(self, anchor: Tensors | None) -> Tensors:
        """Return v as a copy of the anchor, or as zeros, in the same place in every step.

        Both passes accumulate into it: large networks need no memory for two more
        gradients, and no time to allocate it.
        """
        if not self._direction:
            self._direction = tuple(torch.empty_like(p.detach()) for p in self.parameters)
        if anchor is None:
            torch._foreach_zero_(self._direction)
        else:
            torch._foreach_copy_(self._direction, anchor)
        return self._direction

    def equal_weights(self, batch: Batch) -> Tensor:
        """Return 1/M for each of the M windows of a mini-batch."""
        size, device = batch_size(batch), next(iter(batch.values())).device
        return torch.full((size,), 1 / size, dtype=self.dtype, device=device)

    @property
    def scale(self) -> float:
        """The factor of the loss before a backward pass; 1 in full precision."""
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    @contextmanager
    def unscaled(self) -> Iterator[None]:
        """Disable the scaler, which lets gradients overflow on purpose."""
        scaler, self.scaler = self.scaler, None
        try:
            yield
        finally:
            self.scaler = scaler

    # -- by autograd, on the module as it is ----------------------------------------

    def _autograd(self, batch: Batch, weights: Tensor) -> tuple[Tensors, Tensor]:
        scale = self.scale
        with self._repeatable(weights.device):
            loss = (weights * self.losses(batch)).sum()
        dense = autograd(loss * scale if scale != 1.0 else loss, self.parameters)
        if scale != 1.0:
            dense = tuple(g / scale for g in dense)
        return dense, loss.detach()

    def _autograd_pair(
        self,
        snapshot: Tensors,
        anchor: Tensors | None,
        c: float,
        batch: Batch,
        weights: Tensor,
    ) -> tuple[Tensors, Tensor]:
        self.start_direction(anchor)
        scale = self.scale
        if c * scale != 1.0:
            torch._foreach_mul_(self._direction, c * scale)
        for tensor in snapshot:
            tensor.requires_grad_()
        second = self._second_pass(weights.device)
        loss = self._add_gradient(self.parameters, batch, scale * weights)
        with second:
            self._add_gradient(snapshot, batch, -c * scale * weights)
        if scale != 1.0:
            torch._foreach_div_(self._direction, scale)
        return self._direction, loss / scale

    def _add_gradient(self, at: Tensors, batch: Batch, weights: Tensor) -> Tensor:
        """Add Σ_j weights_j ∇f_j to v, and return the weighted loss."""
        own = at is self.parameters
        exchange = nullcontext() if own else self.losses.exchanged(self._places, at)
        with exchange:
            with self._repeatable(weights.device):
                loss = (weights * self.losses(batch)).sum()
            for tensor, total in zip(at, self._direction, strict=True):
                tensor.grad = total
            loss.backward(inputs=at)  # type: ignore[no-untyped-call]
            for tensor in at:
                tensor.grad = None
        return loss.detach()

    def _second_pass(self, device: torch.device) -> AbstractContextManager[None]:
        """Run the second pass with the random state and the buffers of the first.

        It uses the dropout masks of the first; otherwise the difference of the two
        gradients would be noise. Running statistics are those of the pass at the
        parameters; the pass at the snapshot does not change them.
        """
        random = global_state(device, self.stochastic)
        before = Buffers(self.losses) if self.stateful else None

        @contextmanager
        def repeated() -> Iterator[None]:
            set_global_state(random, device)
            after = None
            if before is not None:
                after = Buffers(self.losses)
                before.restore()
            try:
                yield
            finally:
                if after is not None:
                    after.restore()

        return repeated()

    def _repeatable(self, device: torch.device) -> AbstractContextManager[None]:
        """Let two passes of a network that draws random numbers draw the same."""
        return without_cudnn(device) if self.stochastic else nullcontext()

    # -- in compiled functions ---------------------------------------------------------

    def functional(
        self, at: Tensors, buffers: Tensors, batch: Batch, weights: Tensor
    ) -> tuple[Tensors, Tensor]:
        """Return Σ_j weights_j ∇f_j and Σ_j weights_j f_j, in a form that compiles.

        Parameters
        ----------
        at, buffers
            Values of the parameters, and of the buffers that a pass changes; the latter
            are changed.
        batch, weights
            The windows and their weights.
        """
        with torch.enable_grad():
            leaves = tuple(x.detach().requires_grad_() for x in at)
            with self.losses.exchanged(self._places, (*leaves, *buffers)):
                loss = (weights * self.losses(batch)).sum()
                gradient = autograd(loss, leaves)
        return gradient, loss.detach()

    def functional_pair(
        self,
        at: Tensors,
        snapshot: Tensors,
        buffers: Tensors,
        batch: Batch,
        weights: Tensor,
    ) -> tuple[Tensors, Tensors, Tensor]:
        """Return both gradients of an inner step, and the loss at the parameters.

        The random numbers of the two passes are different; they are made equal once both
        are parts of one graph.
        """
        unchanged = tuple(buffer.clone() for buffer in buffers)
        then, _ = self.functional(snapshot, unchanged, batch, weights)
        now, loss = self.functional(at, buffers, batch, weights)
        return now, then, loss

    def _flat(self, *tensors: Tensor) -> Tensors:
        """Compute `functional` from parameters, buffers, fields and weights in a row."""
        split = len(self.parameters)
        rest = split + len(self.buffers)
        batch = dict(zip(self.losses.fields, tensors[rest:-1], strict=True))
        gradient, loss = self.functional(
            tensors[:split], tensors[split:rest], batch, tensors[-1]
        )
        return *gradient, loss

    def _compiled(
        self, at: Tensors, buffers: Tensors, batch: Batch, weights: Tensor
    ) -> tuple[Tensors, Tensor]:
        assert self._function is not None
        fields = [batch[name] for name in self.losses.fields]
        with self._repeatable(weights.device):
            *gradient, loss = self._function((*at, *buffers), *fields, weights)
        return tuple(gradient), loss

    def _compiled_pair(
        self,
        snapshot: Tensors,
        anchor: Tensors | None,
        c: float,
        batch: Batch,
        weights: Tensor,
    ) -> tuple[Tensors, Tensor]:
        random = global_state(weights.device, self.stochastic)
        unchanged = tuple(buffer.clone() for buffer in self.buffers)
        then, _ = self._compiled(snapshot, unchanged, batch, weights)
        set_global_state(random, weights.device)
        now, loss = self._compiled(self.parameters, self.buffers, batch, weights)
        direction, change = own_tensors(now), own_tensors(then)
        if anchor is not None:
            torch._foreach_sub_(change, anchor)
        torch._foreach_add_(direction, change, alpha=-c)
        return tuple(direction), loss


@contextmanager
def uncached_autocast() -> Iterator[None]:
    """Switch off autocast's cache of weights in half precision.

    The cache lives as long as the autocast region, which spans many updates here: after
    the first one it would return stale weights.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
        torch.clear_autocast_cache()
