"""Plain passes in training mode, which an engine must equal, and their comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from pts_scott._utils.rng import global_state, preserved_rng, set_global_state
from pts_scott.engine.base import Gather
from pts_scott.engine.buffers import Buffers
from pts_scott.engine.gradients import uncached_autocast
from pts_scott.engine.isolation import without_cudnn
from pts_scott.engine.losses import Losses
from pts_scott.engine.tensors import autograd, finest_type
from pts_scott.method.protocol import Tensors

SHIFT = 0.1  # how far other parameters are moved, relative to a parameter's size
# Errors are measured against a parameter's own gradient plus this share of all gradients,
# below which rounding may dominate.
FLOOR = 1e-2


class PlainPasses:
    """Passes by ``loss.backward()`` on the module as it is; everything is restored.

    Parameters
    ----------
    losses
        The window losses of a network.
    gather
        From windows to a batch.
    stochastic
        Whether a pass draws random numbers, which the next one has to repeat.
    """

    def __init__(
        self, losses: Losses, gather: Gather, *, stochastic: bool = False
    ) -> None:
        self.network_losses = losses
        self.gather = gather
        self.names = list(losses.trainable())
        self.parameters: Tensors = tuple(losses.trainable().values())
        self._dtype = finest_type(self.parameters)
        self._device = self.parameters[0].device
        self.tolerance = max(tolerance(p) for p in self.parameters)
        self._random: dict[str, Any] = {}
        self._stochastic = stochastic

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Run passes in training mode, and restore everything that they change."""
        losses = self.network_losses
        with (
            preserved_rng(self._device),
            without_cudnn(self._device) if self._stochastic else nullcontext(),
            losses.mode(training=True),
            torch.inference_mode(False),
            torch.enable_grad(),
            uncached_autocast(),
        ):
            self._random = global_state(self._device)
            self._buffers = Buffers(losses)
            try:
                yield
            finally:
                self._buffers.restore()

    def rewind(self) -> None:
        """Give the next pass the random state and the buffers of the first."""
        set_global_state(self._random, self._device)
        self._buffers.restore()

    def losses(self, windows: Tensor) -> Tensor:
        """Return the losses of some windows."""
        self.rewind()
        result: Tensor = self.network_losses(self.gather(windows))
        return result

    def gradient(
        self, windows: Tensor, weights: Tensor | None, at: Tensors | None = None
    ) -> Tensors:
        """Return the gradient that ``loss.backward()`` leaves in ``.grad``.

        Parameters
        ----------
        windows, weights
            Of a weighted sum of losses; equal weights if there are none.
        at
            Values to use in place of the parameters; None for the parameters themselves.
        """
        weights = self.equal_weights(windows) if weights is None else weights
        before = [(p.data, p.grad) for p in self.parameters]
        try:
            for n, parameter in enumerate(self.parameters):
                parameter.grad = None
                if at is not None:
                    parameter.data = at[n].detach()
            (weights * self.losses(windows)).sum().backward()
            found = [p.grad for p in self.parameters]
        finally:
            for parameter, own in zip(self.parameters, before, strict=True):
                parameter.data, parameter.grad = own
        return tuple(
            torch.zeros_like(p.detach()) if g is None else g.to_dense()
            for p, g in zip(self.parameters, found, strict=True)
        )

    def is_finite(self, windows: Tensor, at: Tensors | None = None) -> bool:
        """Return whether the losses and the gradient of some windows are finite."""
        if at is not None:
            return math.isfinite(total_norm(self.gradient(windows, None, at)))
        losses = self.losses(windows)
        if not bool(losses.isfinite().all()):
            return False
        # Tensors that are not registered must get no gradient, so not by backward().
        return math.isfinite(total_norm(autograd(losses.sum(), self.parameters)))

    def moved_parameters(self) -> Iterator[Tensor]:
        """Yield other values for the parameters, near their own."""
        for parameter in self.parameters:
            value = parameter.detach()
            yield value + SHIFT * random_like(value)

    def unequal_weights(self, windows: Tensor) -> Tensor:
        """Return unequal weights that sum to one."""
        weights = torch.arange(1.0, len(windows) + 1, dtype=torch.float32)
        return (weights / weights.sum()).to(self.equal_weights(windows))

    def equal_weights(self, windows: Tensor) -> Tensor:
        """Return 1/M for each of M windows."""
        size = len(windows)
        return torch.full((size,), 1 / size, dtype=self._dtype, device=self._device)

    def differing(self, found: Tensors, expected: Tensors) -> list[str]:
        """Name the parameters whose two gradients differ by more than rounding."""
        floor = FLOOR * total_norm(expected)
        return [
            name
            for name, x, y in zip(self.names, found, expected, strict=True)
            if not norm(x - y) <= self.tolerance * (norm(y) + floor)
        ]


def tolerance(parameter: Tensor) -> float:
    """Return ten times the root of the rounding error; real errors are far larger."""
    return 10 * math.sqrt(torch.finfo(parameter.dtype).eps)


def random_like(v: Tensor) -> Tensor:
    """Return random numbers of the size of v, in its memory layout."""
    places = zip(v.shape, v.stride(), strict=True)
    extent = 1 + sum((n - 1) * stride for n, stride in places) if v.numel() else 0
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(extent, generator=generator).to(v)
    size = norm(v) / math.sqrt(max(v.numel(), 1)) or 1.0
    return (size * numbers).as_strided(v.shape, v.stride())


def norm(tensor: Tensor) -> float:
    """Return the norm in double precision."""
    place = tensor.detach().cpu() if tensor.device.type == "mps" else tensor.detach()
    return float(torch.linalg.vector_norm(place, dtype=torch.float64))


def total_norm(tensors: Sequence[Tensor]) -> float:
    """Return the norm over all tensors."""
    return math.sqrt(sum(norm(x) ** 2 for x in tensors))


def distance(left: Tensors, right: Tensors) -> float:
    """Return the norm of the difference."""
    return total_norm(tuple(x - y for x, y in zip(left, right, strict=True)))
