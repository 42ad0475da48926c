"""A whole step as one compiled function: gather, gradients, v, norm and update.

On a small network the arithmetic of a step is a fraction of a millisecond, and what
surrounds it costs more: reading a batch, the optimizer's Python, one call for each
operator. Here all of it is one function, which changes parameters and optimizer state
in place. The state stays ``torch.optim``'s own, so checkpoints and an eager step after
it find what they expect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from pts_scott.gradients import Gradients, Tensors, compiled_method, equal_weights
from pts_scott.windows import Batch

State = tuple[Tensors, ...]


class Outcome(NamedTuple):
    """What one step leaves behind, besides the parameters that it moved."""

    loss: Tensor
    squared_norm: Tensor


def _sgd(theta: Tensors, v: Tensors, state: State, rate: Tensor, group: Any) -> None:
    sgd(
        list(theta),
        list(v),
        [None] * len(theta),
        foreach=False,
        momentum=0.0,
        dampening=0.0,
        nesterov=False,
        lr=rate,  # type: ignore[arg-type]
        weight_decay=group["weight_decay"],
        maximize=False,
    )


def _adam(theta: Tensors, v: Tensors, state: State, rate: Tensor, group: Any) -> None:
    steps, first, second = state
    # In single precision, as torch keeps it, 1 − β^step would lose four digits.
    exact = [step.double() for step in steps]
    torch._foreach_add_(list(steps), 1.0)
    adam(
        list(theta),
        list(v),
        list(first),
        list(second),
        [],
        exact,
        foreach=False,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        eps=group["eps"],
        lr=rate,
        weight_decay=group["weight_decay"],
        maximize=False,
    )


def _adagrad(theta: Tensors, v: Tensors, state: State, rate: Tensor, group: Any) -> None:
    steps, total = state
    adagrad(
        list(theta),
        list(v),
        list(total),
        list(steps),
        foreach=False,
        lr=rate,  # type: ignore[arg-type]
        weight_decay=group["weight_decay"],
        lr_decay=group["lr_decay"],
        eps=group["eps"],
        maximize=False,
    )


class _Rule(NamedTuple):
    """How an optimizer updates, and what it keeps for each parameter."""

    update: Callable[[Tensors, Tensors, State, Tensor, Any], None]
    state: tuple[str, ...]


RULES: dict[type[torch.optim.Optimizer], _Rule] = {
    torch.optim.SGD: _Rule(_sgd, ()),
    torch.optim.Adam: _Rule(_adam, ("step", "exp_avg", "exp_avg_sq")),
    torch.optim.Adagrad: _Rule(_adagrad, ("step", "sum")),
}


def can_fuse(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer's whole update is known here, and nobody watches it."""
    (group, *others) = optimizer.param_groups
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    return (
        type(optimizer) in RULES
        and not others
        and not any(group.get(name) for name in ("momentum", "amsgrad", "maximize"))
        and not any(hooks)
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
        SGD, Adam or Adagrad without options besides step size and weight decay.
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
        (group,) = optimizer.param_groups
        self._options = {k: v for k, v in group.items() if k != "params"}
        self._rule = RULES[type(optimizer)]
        _fill_state(optimizer, gradients.parameters, self._rule.state)
        self._rate = _Number()
        self._coefficient = _Number()
        self._source: Any = None
        self._tensors: State = ()
        self._single = compiled_method(self._single_step)
        self._pair = compiled_method(self._paired_step)

    @property
    def _state(self) -> State:
        state = self.optimizer.state
        if self._source is not state:  # loading a checkpoint replaces it
            self._source = state
            self._tensors = tuple(
                tuple(state[p][name] for p in self.gradients.parameters)
                for name in self._rule.state
            )
        return self._tensors

    def plain(self, windows: Tensor, weights: Tensor | None = None) -> Outcome:
        """A step along Σ_j weights_j ∇f_j(θ); equal weights if there are none."""
        self.gradients.count += len(windows)
        rate = self._rate.tensor(self.optimizer.param_groups[0]["lr"])
        return Outcome(
            *self._single(self.gradients.parameters, self._state, rate, windows, weights)
        )

    def inner(
        self, windows: Tensor, snapshot: Tensors, anchor: Tensors, coefficient: float
    ) -> Outcome:
        """A step along ∇f_ξ(θ) − c · (∇f_ξ(snapshot) − anchor)."""
        self.gradients.count += 2 * len(windows)
        return Outcome(
            *self._pair(
                self.gradients.parameters,
                snapshot,
                anchor,
                self._coefficient.tensor(coefficient),
                self._state,
                self._rate.tensor(self.optimizer.param_groups[0]["lr"]),
                windows,
            )
        )

    @contextmanager
    def undone(self) -> Iterator[None]:
        """A block after which parameters and optimizer state are as they were."""
        tensors = [*self.gradients.parameters, *(t for s in self._state for t in s)]
        before = [tensor.detach().clone() for tensor in tensors]
        count = self.gradients.count
        try:
            yield
        finally:
            self.gradients.count = count
            with torch.no_grad():
                torch._foreach_copy_(tensors, before)

    # -- what is compiled -----------------------------------------------------------

    def _single_step(
        self,
        theta: Tensors,
        state: State,
        rate: Tensor,
        windows: Tensor,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        batch = self.gather(windows)
        weights = equal_weights(batch) if weights is None else weights
        v, loss = self.gradients.functional(theta, batch, weights)
        return loss, self._update(theta, v, state, rate)

    def _paired_step(
        self,
        theta: Tensors,
        snapshot: Tensors,
        anchor: Tensors,
        coefficient: Tensor,
        state: State,
        rate: Tensor,
        windows: Tensor,
    ) -> tuple[Tensor, Tensor]:
        batch = self.gather(windows)
        v, loss = self.gradients.functional_pair(
            theta, snapshot, anchor, coefficient, batch
        )
        return loss, self._update(theta, v, state, rate)

    def _update(self, theta: Tensors, v: Tensors, state: State, rate: Tensor) -> Tensor:
        squared = torch.stack([x.square().sum() for x in v]).sum()
        if self.clip_gradient is not None:
            scale = clip_scale(squared, self.clip_gradient)
            v = tuple(scale * x for x in v)
        self._rule.update(theta, v, state, rate, self._options)
        return squared


class _Number:
    """A number as a tensor: compiled functions take another without compiling anew."""

    def __init__(self) -> None:
        self._tensor = torch.zeros((), dtype=torch.float64)
        self._value = 0.0

    def tensor(self, value: float) -> Tensor:
        if value != self._value:
            self._value = value
            self._tensor.fill_(value)
        return self._tensor


def clip_scale(squared_norm: Tensor, largest: float) -> Tensor:
    """The factor that brings an update's norm down to ``largest``."""
    return (largest / (squared_norm.sqrt() + 1e-6)).clamp(max=1.0)


def _fill_state(
    optimizer: torch.optim.Optimizer, parameters: Tensors, names: tuple[str, ...]
) -> None:
    """The state that torch would make at the first step, if it is not there yet."""
    for parameter in parameters:
        state = optimizer.state[parameter]
        for name in names:
            if name not in state:
                state[name] = (
                    torch.zeros((), device=parameter.device)
                    if name == "step"
                    else torch.zeros_like(parameter, requires_grad=False)
                )
