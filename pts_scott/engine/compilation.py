"""``torch.compile`` for methods that are called in every step."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

BACKEND = "inductor"  # of torch.compile


def compiled_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a method with its own code object.

    The compiler stores its results, and counts its recompilations, per code object: with
    a shared one, the ninth network of a process would no longer be compiled.
    """
    function = method.__func__  # type: ignore[attr-defined]
    own = types.FunctionType(function.__code__.replace(), function.__globals__)
    bound = types.MethodType(own, method.__self__)  # type: ignore[attr-defined]
    # torch.func takes its own gradients; autograd has nothing to record here.
    return torch.no_grad()(torch.compile(bound, backend=BACKEND, options=_options()))


def _options() -> dict[str, Any]:
    """Guard on shapes alone, where torch offers that (from 2.8 on).

    The network, its parameters and its mode are the same in every step of a run; guarding
    against changes there would take a tenth of a small network's step.
    """
    if not hasattr(torch.compiler, "keep_tensor_guards_unsafe"):
        return {}

    def needed(guards: Sequence[Any]) -> list[bool]:
        return [
            guard.guard_type == "SHAPE_ENV"
            or (
                guard.guard_type == "TENSOR_MATCH"
                and not isinstance(guard.value, nn.Parameter)
            )
            for guard in guards
        ]

    return {"guard_filter_fn": needed}
