"""A whole step as one compiled function: gather, gradients, v, norm and update.

On a small network the arithmetic of a step is a fraction of a millisecond, and what
surrounds it costs more: reading a batch, the optimizer's Python, one call for each
operator. Here all of it is one function, which changes parameters and optimizer state
in place. The state stays ``torch.optim``'s own, so checkpoints and an eager step after
it find what they expect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

from pts_scott.data.window_index import Batch
from pts_scott.engine.gradients import Gradients, Tensors, compiled_method

State = tuple[Tensors, ...]


class Outcome(NamedTuple):
    """What one step leaves behind, besides the parameters that it moved."""

    loss: Tensor
    squared_norm: Tensor


# The update rules of torch.optim, in a form that becomes one loop over each parameter.
# What depends on the step alone comes as numbers, or it would be computed for each
# element. ``theta``, ``v`` and the state's tensors belong to one parameter.


def _sgd(theta: Tensor, v: Tensor, state: Tensors, n: Tensors, o: Any) -> None:
    (lr,) = n
    theta.sub_(lr * (v + o["weight_decay"] * theta))


def _adam(theta: Tensor, v: Tensor, state: Tensors, n: Tensors, o: Any) -> None:
    _adam_update(theta, v + o["weight_decay"] * theta, state, n, o)


def _adamw(theta: Tensor, v: Tensor, state: Tensors, n: Tensors, o: Any) -> None:
    theta.mul_(n[2])
    _adam_update(theta, v, state, n[:2], o)


def _adam_update(
    theta: Tensor, v: Tensor, state: Tensors, n: Sequence[Tensor], o: Any
) -> None:
    first, second = state
    step, root = n
    first.lerp_(v, 1 - o["betas"][0])
    second.mul_(o["betas"][1]).addcmul_(v, v, value=1 - o["betas"][1])
    theta.sub_(step * first / (second.sqrt() / root + o["eps"]))


def _adagrad(theta: Tensor, v: Tensor, state: Tensors, n: Tensors, o: Any) -> None:
    (total,) = state
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


class _Rule(NamedTuple):
    """How an optimizer updates, and what it keeps for each parameter."""

    update: Callable[[Tensor, Tensor, Tensors, Tensors, Any], None]
    numbers: Callable[[int, Any], tuple[float, ...]]
    state: tuple[str, ...]
    counts: bool = True


RULES: dict[type[torch.optim.Optimizer], _Rule] = {
    torch.optim.SGD: _Rule(_sgd, _sgd_numbers, (), counts=False),
    torch.optim.Adam: _Rule(_adam, _adam_numbers, ("exp_avg", "exp_avg_sq")),
    torch.optim.AdamW: _Rule(_adamw, _adamw_numbers, ("exp_avg", "exp_avg_sq")),
    torch.optim.Adagrad: _Rule(_adagrad, _adagrad_numbers, ("sum",)),
}


#: Options that the rules know; any other that is set belongs to another update.
KNOWN = {"params", "lr", "weight_decay", "betas", "eps", "lr_decay"}
#: Options that say how to compute the same.
INDIFFERENT = {"foreach", "fused", "capturable", "initial_lr"}


def global_hooks() -> tuple[Any, ...]:
    """Return torch's registries of hooks that every optimizer calls."""
    return _global_optimizer_pre_hooks, _global_optimizer_post_hooks


def can_fuse(optimizer: torch.optim.Optimizer, parameters: Tensors) -> bool:
    """Return whether an optimizer's whole update is known here, and has no hooks."""
    (group, *others) = optimizer.param_groups
    hooks = (
        *(optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks),
        *global_hooks(),
    )
    known = KNOWN | INDIFFERENT
    if type(optimizer) is torch.optim.AdamW:  # newer ones are an Adam with this option
        known = known | {"decoupled_weight_decay"}
    unknown = (v for k, v in group.items() if k not in known)
    state = [optimizer.state[p] for p in parameters if p in optimizer.state]
    steps = {float(own["step"]) for own in state if "step" in own}
    return (
        type(optimizer) in RULES
        and not others
        and [id(p) for p in group["params"]] == [id(p) for p in parameters]
        and not any(unknown)
        and not any(hooks)
        and len(steps) <= 1
    )


class FusedStep:
    """Compiled steps of one network with one optimizer.

    Parameters
    ----------
    gradients
        The gradient estimators of the network; they count what is computed here, too.
    gather
        From windows to a batch, by tensor operations alone.
    optimizer
        One that ``can_fuse``: SGD, Adam or Adagrad without unusual options.
    clip_gradient
        Largest norm of an update; None for no clipping.
    """

    def __init__(
        self,
        gradients: Gradients,
        gather: Callable[[Tensor], Batch],
        optimizer: torch.optim.Optimizer,
        clip_gradient: float | None = None,
    ) -> None:
        self.gradients = gradients
        self.gather = gather
        self.optimizer = optimizer
        self.clip_gradient = clip_gradient
        self._rule = RULES[type(optimizer)]
        # Numbers such as 1 - lr * weight_decay are lost in half precision.
        dtype = torch.promote_types(gradients.dtype, torch.float32)
        first = torch.empty((), dtype=dtype, device=gradients.parameters[0].device)
        group = optimizer.param_groups[0]
        self._numbers = tuple(_Number(first) for _ in self._rule.numbers(1, group))
        self._coefficient = _Number(first)
        self._loaded: Any = None
        self._state: State = ()
        self._step = 0
        self._kept: list[Tensor] = []
        self._kept_step = 0
        self._kept_theta: Tensors = ()
        self._options: dict[str, Any] = {}
        self._check_options()
        self._anchor = compiled_method(self._anchor_gradient)

    def _load_state(self) -> None:
        """Find torch's state, or make it as torch would at the first step."""
        optimizer, rule = self.optimizer, self._rule
        if self._loaded is optimizer.state:
            return
        parameters = self.gradients.parameters
        for parameter in parameters:
            for name in rule.state:
                if name not in optimizer.state[parameter]:
                    zeros = torch.zeros_like(parameter, requires_grad=False)
                    optimizer.state[parameter][name] = zeros
        self._state = tuple(
            tuple(optimizer.state[p][name] for name in rule.state) for p in parameters
        )
        self._step = 0
        if rule.counts:
            # Views of one tensor, so that one addition counts for all parameters.
            given = optimizer.state[parameters[0]].get("step", torch.zeros(()))
            self._step = int(given)
            self._counter = torch.full((len(parameters),), float(self._step))
            for parameter, count in zip(parameters, self._counter.unbind(), strict=True):
                optimizer.state[parameter]["step"] = count
        self._loaded = optimizer.state

    def _check_options(self) -> None:
        """Compile anew where a callback has changed what was compiled for."""
        group = self.optimizer.param_groups[0]
        options = {
            k: v for k, v in group.items() if k in ("weight_decay", "betas", "eps")
        }
        if options != self._options:
            self._options = options
            self._single = compiled_method(self._single_step)
            self._pair = compiled_method(self._paired_step)

    def _next_numbers(self) -> Tensors:
        """What the update needs to know of the step that begins."""
        self._load_state()
        self._check_options()
        self._step += 1
        if self._rule.counts:
            self._counter.add_(1)
        values = self._rule.numbers(self._step, self.optimizer.param_groups[0])
        pairs = zip(self._numbers, values, strict=True)
        return tuple(number.tensor(float(value)) for number, value in pairs)

    def anchor(self, windows: Tensor, weights: Tensor, snapshot: Tensors) -> Tensors:
        """Σ_j weights_j ∇f_j(θ), and θ copied into the snapshot."""
        self.gradients.count += len(windows)
        anchor: Tensors = self._anchor(
            self.gradients.parameters, snapshot, windows, weights
        )
        return anchor

    def plain(self, windows: Tensor, weights: Tensor | None = None) -> Outcome:
        """A step along Σ_j weights_j ∇f_j(θ); equal weights if there are none."""
        self.gradients.count += len(windows)
        numbers = self._next_numbers()
        return Outcome(
            *self._single(
                self.gradients.parameters, self._state, numbers, windows, weights
            )
        )

    def inner(
        self, windows: Tensor, snapshot: Tensors, anchor: Tensors, coefficient: float
    ) -> Outcome:
        """A step along ∇f_ξ(θ) − c · (∇f_ξ(snapshot) − anchor)."""
        self.gradients.count += 2 * len(windows)
        numbers = self._next_numbers()
        return Outcome(
            *self._pair(
                self.gradients.parameters,
                snapshot,
                anchor,
                self._coefficient.tensor(coefficient),
                self._state,
                numbers,
                windows,
            )
        )

    def keep(self, theta: Tensors = ()) -> None:
        """Remember where an outer loop begins, so that it can be taken back.

        Parameters
        ----------
        theta
            The parameters as they are now, where somebody holds a copy of them.
        """
        self._load_state()
        self._kept_step = self._step
        held = [t for s in self._state for t in s]
        held += [] if theta else [p.detach() for p in self.gradients.parameters]
        if len(self._kept) != len(held):
            self._kept = [torch.empty_like(tensor) for tensor in held]
        if held:
            torch._foreach_copy_(self._kept, held)
        self._kept_theta = theta

    def take_back(self) -> None:
        """Put parameters and optimizer state back to where `keep` was called."""
        parameters = [p.detach() for p in self.gradients.parameters]
        held = [t for s in self._state for t in s]
        held += parameters if not self._kept_theta else []
        with torch.no_grad():
            if held:
                torch._foreach_copy_(held, self._kept)
            if self._kept_theta:
                torch._foreach_copy_(parameters, list(self._kept_theta))
        self._step = self._kept_step
        if self._rule.counts:
            self._counter.fill_(self._step)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """A block after which parameters and optimizer state are as they were."""
        self._load_state()
        tensors = [*self.gradients.parameters, *(t for s in self._state for t in s)]
        before = [tensor.detach().clone() for tensor in tensors]
        step = self._step
        try:
            yield
        finally:
            self._step = step
            if self._rule.counts:
                self._counter.fill_(step)
            with torch.no_grad():
                torch._foreach_copy_(tensors, before)

    # -- what is compiled -----------------------------------------------------------

    def _anchor_gradient(
        self, theta: Tensors, snapshot: Tensors, windows: Tensor, weights: Tensor
    ) -> Tensors:
        for copy, parameter in zip(snapshot, theta, strict=True):
            copy.copy_(parameter)
        return self.gradients.functional(theta, self.gather(windows), weights)[0]

    def _single_step(
        self,
        theta: Tensors,
        state: State,
        numbers: Tensors,
        windows: Tensor,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        batch = self.gather(windows)
        weights = self.gradients.equal_weights(batch) if weights is None else weights
        v, loss = self.gradients.functional(theta, batch, weights)
        return loss, self._update(theta, v, state, numbers)

    def _paired_step(
        self,
        theta: Tensors,
        snapshot: Tensors,
        anchor: Tensors,
        coefficient: Tensor,
        state: State,
        numbers: Tensors,
        windows: Tensor,
    ) -> tuple[Tensor, Tensor]:
        batch = self.gather(windows)
        v, loss = self.gradients.functional_pair(
            theta, snapshot, anchor, coefficient, batch
        )
        return loss, self._update(theta, v, state, numbers)

    def _update(
        self, theta: Tensors, v: Tensors, state: State, numbers: Tensors
    ) -> Tensor:
        if self.clip_gradient is not None:
            # In double precision: what is clipped may be of any size.
            squared = torch.stack([x.double().square().sum() for x in v]).sum()
            scale = clip_scale(squared, self.clip_gradient)
            v = tuple(scale * x for x in v)
        else:  # a step is skipped if this overflows
            squared = torch.stack([x.square().sum() for x in v]).sum()
        steps = zip(theta, v, state, strict=True)
        for place, (parameter, direction, own) in enumerate(steps):
            if place not in self.gradients.idle:
                self._rule.update(parameter, direction, own, numbers, self._options)
        return squared


class _Number:
    """A number as a tensor: compiled functions take another without compiling anew."""

    def __init__(self, like: Tensor) -> None:
        self._tensor = torch.zeros((), dtype=like.dtype, device=like.device)
        self._value = 0.0

    def tensor(self, value: float) -> Tensor:
        if value != self._value:
            self._value = value
            self._tensor.fill_(value)
        return self._tensor


def clip_scale(squared_norm: Tensor, largest: float) -> Tensor:
    """The factor that brings an update's norm down to ``largest``."""
    return (largest / (squared_norm.sqrt() + 1e-6)).clamp(max=1.0)
