"""The gradient of every single window of a batch; estimators need only their sum."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.func import grad, vmap

from pts_scott._utils.rng import isolated_rng
from pts_scott.data.window_index import Batch
from pts_scott.engine.gradients import Losses, Tensors, autograd
from pts_scott.errors import ArgumentError, WindowLossError

PASS_NUMBERS = 2**23  # numbers in the gradients of one pass: 32 MB in float32
PASS_WINDOWS = 256  # windows of one pass where a network has few parameters


def window_gradients(losses: Losses, parameters: Tensors, batch: Batch) -> Tensor:
    """∇f_j(θ) of each window j of a batch, as rows of shape (M, P).

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
    with undisturbed(losses, parameters[0].device):
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
    """Gradients of many windows, a row each.

    They are taken together by ``vmap``, or one by one where a network does not allow
    that: if it looks at values, changes tensors in place, draws random numbers, or has
    a kernel that ``vmap`` can only call again and again, as the LSTM's.
    """

    def __init__(self, losses: Losses) -> None:
        if not isinstance(losses, Losses):
            raise ArgumentError(
                f"losses is a {type(losses).__name__}; expected Losses(network)."
            )
        self.losses = losses
        trainable = losses.trainable()
        size = sum(p.numel() for p in trainable.values())
        #: Windows for one pass.
        self.chunk = max(1, min(PASS_WINDOWS, PASS_NUMBERS // max(size, 1)))
        self._places = losses.places()
        self._together = True

    def __call__(self, parameters: Tensors, batch: Batch) -> Tensors:
        """Tensors of shape (M, …), one a parameter."""
        size = len(next(iter(batch.values())))
        if self._together and size > 1:
            try:
                return self._at_once(parameters, batch)
            except Exception:  # what is not vmap's own complaint comes up again below
                self._together = False
        rows = [
            self._alone(parameters, {name: v[row] for name, v in batch.items()})
            for row in range(size)
        ]
        if size == 1:  # of a large network, perhaps: no copy
            return tuple(g[None] for g in rows[0])
        return tuple(torch.stack(g) for g in zip(*rows, strict=True))

    def _at_once(self, parameters: Tensors, batch: Batch) -> Tensors:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "There is a performance drop")
            gradients: Tensors = vmap(grad(self._loss), in_dims=(None, 0))(
                parameters, batch
            )
        return gradients

    def _alone(self, parameters: Tensors, window: Batch) -> Tensors:
        leaves = tuple(p.detach().requires_grad_() for p in parameters)
        return autograd(self._loss(leaves, window), leaves)

    def _loss(self, parameters: Tensors, window: Batch) -> Tensor:
        batch = {name: values[None] for name, values in window.items()}
        loss = self.losses.at(self._places, parameters, batch)
        if loss.shape != (1,):
            raise WindowLossError(
                f"{type(self.losses.network).__name__}.loss gives shape "
                f"{tuple(loss.shape)} for a batch of one window; expected (1,), one loss "
                "a window."
            )
        return loss[0]


@contextmanager
def undisturbed(losses: Losses, device: torch.device) -> Iterator[None]:
    """Gradients in evaluation mode, wherever they are asked for, and no trace of it."""
    with (
        isolated_rng(0, device),
        losses.mode(training=False),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        yield


def constant(tensor: Tensor) -> Tensor:
    """Its values, as autograd takes them: not as a tensor of inference mode."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()
