"""Operations on directions and gradients: tuples of tensors, one per parameter."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pts_scott.method.protocol import Tensors

LARGEST = torch.finfo(torch.float64).max  # everything above is infinite


def squared_norm(tensors: Sequence[Tensor], largest: float = math.inf) -> Tensor:
    """Return ‖v‖² over all tensors as a tensor, without waiting for the device.

    Parameters
    ----------
    tensors
        v.
    largest
        Values above this are returned as infinite, on the CPU.
    """
    squared = torch.stack(torch._foreach_norm(list(tensors))).square().sum()
    if squared.device.type != "cpu" or float(squared) <= min(largest, LARGEST):
        return squared
    # A norm in single precision overflows early; this is rare, so it may be slow.
    squared = torch.stack([t.double().square().sum() for t in tensors]).sum()
    return squared if float(squared) <= largest else torch.full_like(squared, math.inf)


def largest_square(parameters: Iterable[Tensor]) -> float:
    """Return the largest ‖v‖² that an optimizer's second moments can represent."""
    single = torch.finfo(torch.float32).max
    return max(single, min(torch.finfo(p.dtype).max for p in parameters))


def finest_type(tensors: Iterable[Tensor]) -> torch.dtype:
    """Return the type of the highest precision, in which windows are weighted."""
    return functools.reduce(torch.promote_types, (t.dtype for t in tensors))


def clip_scale(squared_norm: Tensor, largest: float) -> Tensor:
    """Return the factor that brings an update's norm down to ``largest``."""
    return (largest / (squared_norm.sqrt() + 1e-6)).clamp(max=1.0)


def autograd(loss: Tensor, parameters: Tensors) -> Tensors:
    """Return the gradient of a loss: dense, and zero for parameters it does not use.

    The zeros that torch itself can return require a gradient up to version 2.6, so that a
    graph would grow with every step. The gradient of an embedding may be sparse.
    """
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return tuple(
        torch.zeros_like(p.detach())
        if g is None
        else (g if g.layout == torch.strided else g.to_dense())
        for p, g in zip(parameters, found, strict=True)
    )


def add(left: Tensors, right: Tensors) -> Tensors:
    """Return the sum, in place of ``left``."""
    total = own_tensors(left)
    torch._foreach_add_(total, right)
    return tuple(total)


def zeros_like(parameters: Tensors) -> Tensors:
    """Return a gradient of zero."""
    return tuple(torch.zeros_like(p, requires_grad=False) for p in parameters)


def in_layout_of(parameters: Tensors, values: Tensors) -> Tensors:
    """Copy the values whose memory layout differs from that of their parameter.

    torch's fused optimizers walk through memory and ignore strides. Autograd may return
    a transposed gradient, or one number expanded to many places.
    """
    return tuple(
        v
        if v.stride() == p.stride()
        else torch.empty_like(p, requires_grad=False).copy_(v)
        for p, v in zip(parameters, values, strict=True)
    )


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor fills its memory without gaps or overlaps."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def own_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the same tensors, safe to change in place.

    Autograd may return one tensor for two parameters, or one number expanded to many
    places; only such tensors are copied.
    """
    seen: set[int] = set()
    result = []
    for tensor in tensors:
        expanded = any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape))
        shared = tensor.data_ptr() in seen
        seen.add(tensor.data_ptr())
        result.append(tensor.clone() if expanded or shared else tensor)
    return result
