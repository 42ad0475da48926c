"""Per-window gradients: the gradient of every window of a batch, not only their sum."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.func import grad, vmap

from pts_scott.data.window_index import Batch
from pts_scott.engine.isolation import constant, evaluation_passes
from pts_scott.engine.losses import Losses
from pts_scott.engine.tensors import autograd
from pts_scott.errors import ArgumentError, WindowLossError
from pts_scott.method.protocol import Tensors

PASS_NUMBERS = 2**23  # numbers in the gradients of one pass: 32 MB in float32
PASS_WINDOWS = 256  # windows per pass if the network has few parameters


def window_gradients(losses: Losses, parameters: Tensors, batch: Batch) -> Tensor:
    """Return ∇f_j(θ) of each window j of a batch, as rows of shape (M, P).

    Parameters
    ----------
    losses
        The window losses of a network, which is used in evaluation mode.
    parameters
        θ, in the order of ``Gradients.parameters``; P numbers in all.
    batch
        The windows.
    """
    gradients = WindowGradients(losses)
    with evaluation_passes(losses, parameters[0].device):
        point = tuple(map(constant, parameters))
        parts = [constant(batch[name]).split(gradients.chunk) for name in losses.fields]
        rows = [
            gradients(point, dict(zip(losses.fields, part, strict=True)))
            for part in zip(*parts, strict=True)
        ]
        return torch.cat(
            [torch.cat([g.reshape(len(g), -1) for g in part], dim=1) for part in rows]
        )


class WindowGradients:
    """Gradients of many windows, one row per window.

    They are computed together by ``vmap``, or one by one for a network that does not
    allow it: one that branches on values, modifies tensors in place, draws random
    numbers, or has a kernel that ``vmap`` can only call repeatedly, such as the LSTM's.
    """

    def __init__(self, losses: Losses) -> None:
        if not isinstance(losses, Losses):
            raise ArgumentError(
                f"losses is a {type(losses).__name__}; expected Losses(network)."
            )
        self.losses = losses
        trainable = losses.trainable()
        size = sum(p.numel() for p in trainable.values())
        #: Windows per pass.
        self.chunk = max(1, min(PASS_WINDOWS, PASS_NUMBERS // max(size, 1)))
        self._places = losses.places()
        self._use_vmap = True

    def __call__(self, parameters: Tensors, batch: Batch) -> Tensors:
        """Return one tensor of shape (M, …) per parameter."""
        size = len(next(iter(batch.values())))
        if self._use_vmap and size > 1:
            try:
                return self._all_windows(parameters, batch)
            except Exception:  # an error that is not vmap's is raised again below
                self._use_vmap = False
        rows = [
            self._one_window(parameters, {name: v[row] for name, v in batch.items()})
            for row in range(size)
        ]
        if size == 1:  # the network may be large: avoid a copy
            return tuple(g[None] for g in rows[0])
        return tuple(torch.stack(g) for g in zip(*rows, strict=True))

    def _all_windows(self, parameters: Tensors, batch: Batch) -> Tensors:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "There is a performance drop")
            gradients: Tensors = vmap(grad(self._loss), in_dims=(None, 0))(
                parameters, batch
            )
        return gradients

    def _one_window(self, parameters: Tensors, window: Batch) -> Tensors:
        leaves = tuple(p.detach().requires_grad_() for p in parameters)
        return autograd(self._loss(leaves, window), leaves)

    def _loss(self, parameters: Tensors, window: Batch) -> Tensor:
        batch = {name: values[None] for name, values in window.items()}
        loss = self.losses.at(self._places, parameters, batch)
        if loss.shape != (1,):
            raise WindowLossError(
                f"{type(self.losses.network).__name__}.loss returns shape "
                f"{tuple(loss.shape)} for a batch of one window; expected (1,), one loss "
                "per window."
            )
        return loss[0]
