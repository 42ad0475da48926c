"""The update rules of ``torch.optim`` that compiled steps contain.

Each is written so that it compiles to one loop per parameter. Numbers that depend only on
the step are passed in; otherwise they would be computed for each element. The state is
``torch.optim``'s own, so checkpoints and eager steps can use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

from pts_scott.method.protocol import Tensors

# ``theta``, ``v`` and the state's tensors ``s`` belong to one parameter; ``n`` are the
# step's numbers, and ``o`` the optimizer's options.


def _sgd(theta: Tensor, v: Tensor, s: Tensors, n: Tensors, o: Any) -> None:
    (lr,) = n
    theta.sub_(lr * (v + o["weight_decay"] * theta))


def _adam(theta: Tensor, v: Tensor, s: Tensors, n: Tensors, o: Any) -> None:
    _adam_update(theta, v + o["weight_decay"] * theta, s, n, o)


def _adamw(theta: Tensor, v: Tensor, s: Tensors, n: Tensors, o: Any) -> None:
    theta.mul_(n[2])
    _adam_update(theta, v, s, n[:2], o)


def _adam_update(
    theta: Tensor, v: Tensor, s: Tensors, n: Sequence[Tensor], o: Any
) -> None:
    first, second = s
    step, root = n
    first.lerp_(v, 1 - o["betas"][0])
    second.mul_(o["betas"][1]).addcmul_(v, v, value=1 - o["betas"][1])
    theta.sub_(step * first / (second.sqrt() / root + o["eps"]))


def _adagrad(theta: Tensor, v: Tensor, s: Tensors, n: Tensors, o: Any) -> None:
    (total,) = s
    (lr,) = n
    v = v + o["weight_decay"] * theta
    total.addcmul_(v, v)
    theta.sub_(lr * v / (total.sqrt() + o["eps"]))


def _sgd_numbers(step: int, o: Any) -> tuple[float, ...]:
    return (o["lr"],)


def _adam_numbers(step: int, o: Any) -> tuple[float, ...]:
    first, second = (1 - beta**step for beta in o["betas"])
    return o["lr"] / first, math.sqrt(second)


def _adamw_numbers(step: int, o: Any) -> tuple[float, ...]:
    return *_adam_numbers(step, o), 1 - o["lr"] * o["weight_decay"]


def _adagrad_numbers(step: int, o: Any) -> tuple[float, ...]:
    return (o["lr"] / (1 + (step - 1) * o["lr_decay"]),)


class UpdateRule(NamedTuple):
    """How an optimizer updates one parameter, and the state it needs for that."""

    update: Callable[[Tensor, Tensor, Tensors, Tensors, Any], None]
    numbers: Callable[[int, Any], tuple[float, ...]]
    state: tuple[str, ...]
    counts: bool = True


RULES: dict[type[torch.optim.Optimizer], UpdateRule] = {
    torch.optim.SGD: UpdateRule(_sgd, _sgd_numbers, (), counts=False),
    torch.optim.Adam: UpdateRule(_adam, _adam_numbers, ("exp_avg", "exp_avg_sq")),
    torch.optim.AdamW: UpdateRule(_adamw, _adamw_numbers, ("exp_avg", "exp_avg_sq")),
    torch.optim.Adagrad: UpdateRule(_adagrad, _adagrad_numbers, ("sum",)),
}

#: Options that may differ from step to step; the others are compiled into an update.
VARYING = {"params", "lr", "lr_decay", "initial_lr"}
#: Options that the rules know; any other that is set belongs to another update.
KNOWN = {*VARYING, "weight_decay", "betas", "eps"}
#: Options that choose between implementations of the same update.
INDIFFERENT = {"foreach", "fused", "capturable"}


def global_hooks() -> tuple[Any, ...]:
    """Return torch's registries of hooks that every optimizer calls."""
    return _global_optimizer_pre_hooks, _global_optimizer_post_hooks


def unknown_options(optimizer: torch.optim.Optimizer) -> list[str]:
    """Name the options that are set but are not part of the rules here."""
    known = KNOWN | INDIFFERENT
    if type(optimizer) is torch.optim.AdamW:  # newer ones are an Adam with this option
        known = known | {"decoupled_weight_decay"}
    group = optimizer.param_groups[0]
    return [name for name, value in group.items() if name not in known and value]


def can_fuse(optimizer: torch.optim.Optimizer, parameters: Tensors) -> bool:
    """Return whether an optimizer's whole update has a rule here, and no hooks."""
    (group, *others) = optimizer.param_groups
    hooks = (
        *(optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks),
        *global_hooks(),
    )
    state = [optimizer.state[p] for p in parameters if p in optimizer.state]
    steps = {float(own["step"]) for own in state if "step" in own}
    return (
        type(optimizer) in RULES
        and not others
        and [id(p) for p in group["params"]] == [id(p) for p in parameters]
        and not unknown_options(optimizer)
        and not any(hooks)
        and len(steps) <= 1
    )
