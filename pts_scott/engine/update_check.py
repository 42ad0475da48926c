"""Compare an update with that of the same optimizer without fused kernels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pts_scott.engine.plain_passes import (
    FLOOR,
    PlainPasses,
    norm,
    random_like,
    tolerance,
)
from pts_scott.engine.tensors import in_layout_of
from pts_scott.engine.update_rules import global_hooks
from pts_scott.method.protocol import Tensors


def differing_updates(
    passes: PlainPasses,
    optimizer: torch.optim.Optimizer,
    direction: Tensors,
    before: list[Tensor] | None = None,
    after: list[Tensor] | None = None,
) -> list[str]:
    """Name the parameters that an update moves differently from the plain optimizer.

    Parameters
    ----------
    passes
        Whose parameters are updated.
    optimizer
        Its options and state are used, on copies of the parameters.
    direction
        v, along which the update is made.
    before, after
        The parameters around an update that an engine has made; None to make it with a
        copy of the optimizer.
    """
    if not type(optimizer).__module__.startswith("torch.optim") or any(global_hooks()):
        return []  # another one of its kind cannot be made, or only with side effects
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    found: list[tuple[str, float, float, float, float]] = []
    for n, (parameter, v) in enumerate(zip(passes.parameters, direction, strict=True)):
        options = {k: x for k, x in groups[id(parameter)].items() if k != "params"}
        state = optimizer.state.get(parameter, {})
        start = parameter.detach() if before is None else before[n]
        plain = {k: False for k in ("fused", "foreach") if k in options}
        v = random_like(v) if after is None else v
        expected = _plain_update(type(optimizer), options | plain, state, start, v)
        if after is None:
            made = _engine_update(type(optimizer), options, state, parameter, v)
        else:
            made = after[n]
        # Weighted by v: Adam's first step is ±lr even where v is only rounding error.
        error, size = norm((made - expected) * v), norm((expected - start) * v)
        rounding = 8 * torch.finfo(v.dtype).eps * norm(start * v)
        found.append((passes.names[n], error, size, rounding, tolerance(parameter)))
    floor = FLOOR * math.sqrt(sum(size**2 for _, _, size, _, _ in found))
    return [
        name
        for name, error, size, rounding, limit in found
        if not error <= limit * (size + floor) + rounding
    ]


def _engine_update(
    kind: Any, options: Any, state: Any, parameter: Tensor, v: Tensor
) -> Tensor:
    """Make one update as the engine does, on a copy with the parameter's layout."""
    copy = torch.empty_strided(
        parameter.shape,
        parameter.stride(),
        dtype=parameter.dtype,
        device=parameter.device,
    )
    copy.copy_(parameter.detach())
    (v,) = in_layout_of((copy,), (v,))
    return _step(kind, options, state, copy, v)


def _plain_update(
    kind: Any, options: Any, state: Any, start: Tensor, v: Tensor
) -> Tensor:
    """Make one update on a contiguous copy."""
    copy = start.contiguous().clone(memory_format=torch.contiguous_format)
    return _step(kind, options, state, copy, v.contiguous())


def _step(kind: Any, options: Any, state: Any, parameter: Tensor, v: Tensor) -> Tensor:
    """Make one update of a parameter by a new optimizer with the same state."""
    parameter.requires_grad_()
    optimizer = kind([{"params": [parameter], **options}])
    if state:
        optimizer.state[parameter] = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in state.items()
        }
    parameter.grad = v
    optimizer.step()
    return parameter.detach()
