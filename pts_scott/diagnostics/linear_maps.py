"""Gradients of single windows from one batched pass, for the linear maps of a network.

If a network applies y = x Wᵀ + b, the gradient of one window's loss with respect to W is
Σ_t δ_t x_tᵀ over the rows t of that window, where δ is the gradient with respect to y.
One pass over a batch gives x and δ of all windows, so norms and projections of their
gradients cost little more than the gradient of the batch: no gradient of a single window
is stored, and the network's kernels run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pts_scott.method.protocol import Tensors

#: The indices of a linear map's weight and bias; None for one that is not trained.
Map = tuple[int | None, int | None]


class LinearCall(NamedTuple):
    """One call y = x Wᵀ + b: which parameters it used, x, and y."""

    weight: int | None
    bias: int | None
    inputs: Tensor
    outputs: Tensor


class RecordLinear(TorchFunctionMode):
    """Records every linear map that uses a trained parameter, whichever module makes it.

    Parameters
    ----------
    parameters
        The trained parameters; calls name them by their index.
    """

    def __init__(self, parameters: Tensors) -> None:
        super().__init__()
        self._places = {id(p): place for place, p in enumerate(parameters)}
        self.calls: list[LinearCall] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not torch.nn.functional.linear:
            return result
        named = dict(zip(("input", "weight", "bias"), args), **(kwargs or {}))
        weight = self._places.get(id(named["weight"]))
        bias = self._places.get(id(named.get("bias")))
        if (weight is None and bias is None) or not result.requires_grad:
            return result
        self.calls.append(LinearCall(weight, bias, named["input"].detach(), result))
        return result.clone()  # so that no later operation changes y in place


class WindowFactors(NamedTuple):
    """x and δ of one linear map: shapes (M, T, in) and (M, T, out).

    T is the number of rows per window, over all calls.
    """

    inputs: Tensor
    deltas: Tensor


def window_factors(
    losses: Tensor, calls: Sequence[LinearCall]
) -> dict[Map, WindowFactors]:
    """Return the factors of the per-window gradients of each recorded linear map.

    Parameters
    ----------
    losses
        One loss per window, of shape (M,), computed while the calls were recorded.
    calls
        The recorded calls.
    """
    windows = len(losses)
    # A map of something that all windows share has no rows per window.
    calls = [c for c in calls if c.inputs.ndim > 1 and len(c.inputs) % windows == 0]
    if not calls:
        return {}
    deltas = torch.autograd.grad(
        losses.sum(), [call.outputs for call in calls], allow_unused=True
    )
    found: dict[Map, list[WindowFactors]] = {}
    for call, delta in zip(calls, deltas, strict=True):
        if delta is None:
            continue
        inputs, rows = (x.reshape(windows, -1, x.shape[-1]) for x in (call.inputs, delta))
        found.setdefault((call.weight, call.bias), []).append(WindowFactors(inputs, rows))
    return {
        places: parts[0]
        if len(parts) == 1
        else WindowFactors(*(torch.cat(part, dim=1) for part in zip(*parts)))
        for places, parts in found.items()
    }


def squared_norms(key: Map, factors: WindowFactors) -> Tensor:
    """Return the squared norm of each window's gradient in weight and bias."""
    inputs, deltas = factors
    weight, bias = key
    squares = inputs.new_zeros(len(inputs))
    if weight is not None and inputs.shape[1] == 1:
        squares += inputs.square().sum(dim=(1, 2)) * deltas.square().sum(dim=(1, 2))
    elif weight is not None:
        squares += (deltas.transpose(1, 2) @ inputs).square().sum(dim=(1, 2))
    if bias is not None:
        squares += deltas.sum(dim=1).square().sum(dim=1)
    return squares


def projections(
    key: Map, factors: WindowFactors, left: Tensor, right: Tensor, bias: Tensor
) -> Tensor:
    """Return Σ_t (x_t·u + c)(δ_t·s) of each window, for columns u and s, and numbers c.

    With random signs it is a projection of the gradient of weight and bias: uᵀGs of the
    matrix G = Σ_t x_t δ_tᵀ, and c times the projection of Σ_t δ_t.

    Parameters
    ----------
    key
        Which of weight and bias are trained.
    factors
        x and δ.
    left, right, bias
        u of shape (in, K), s of shape (out, K), and c of shape (K,).
    """
    inputs, deltas = factors
    total = inputs.new_zeros(1) if key[0] is None else inputs @ left
    if key[1] is not None:
        total = total + bias
    return (total * (deltas @ right)).sum(dim=1)
