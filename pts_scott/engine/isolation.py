"""Passes outside of training that change no state: checks, diagnostics, messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from pts_scott._utils.rng import isolated_rng
from pts_scott.engine.losses import Losses


@contextmanager
def evaluation_passes(losses: Losses, device: torch.device) -> Iterator[None]:
    """Allow gradients in evaluation mode; mode and random state are restored on exit."""
    with (
        isolated_rng(0, device),
        without_cudnn(device),
        losses.mode(training=False),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        yield


def without_cudnn(device: torch.device) -> AbstractContextManager[None]:
    """Switch off cuDNN where passes must repeat, or are in evaluation mode.

    It draws the dropout of recurrent layers from a state that cannot be restored, and
    computes their gradients in training mode only.
    """
    if device.type == "cuda":
        return torch.backends.cudnn.flags(enabled=False)
    return nullcontext()


def constant(tensor: Tensor) -> Tensor:
    """Return the values as a tensor that autograd accepts, not one of inference mode."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()
