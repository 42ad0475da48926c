"""The compiled engine: gather, gradients, v, norm and update as one compiled function.

On a small network the arithmetic of a step takes a fraction of a millisecond, and the
overhead takes longer: reading a batch, the optimizer's Python, one call per operator.
Here all of it is one function, which changes parameters and optimizer state in place. A
direction is therefore computed only when it is applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pts_scott.engine.base import Gather
from pts_scott.engine.compilation import compiled_method
from pts_scott.engine.eager import EagerEngine, fits_one_pass
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.rollback import Rollback
from pts_scott.engine.tensors import clip_scale
from pts_scott.engine.update_rules import CONSTANTS, RULES
from pts_scott.method.protocol import Counters, Sample, Step, Tensors

State = tuple[Tensors, ...]


class PendingDirection(NamedTuple):
    """The inputs from which v is computed when it is applied."""

    sample: Sample
    anchor: Tensors | None
    coefficient: float


class CompiledEngine(EagerEngine):
    """Compiled steps of one network with one optimizer.

    Parameters
    ----------
    gradients, gather, counters, uses_snapshot, clip_gradient
        See `EagerEngine`; ``gather`` consists of tensor operations only.
    optimizer
        One that ``can_fuse``: SGD, Adam, AdamW or Adagrad without unusual options. Its
        steps are counted here, so either all steps of a run are made here or none.
    """

    knows_direction = False

    def __init__(
        self,
        gradients: Gradients,
        gather: Gather,
        counters: Counters,
        optimizer: torch.optim.Optimizer,
        *,
        uses_snapshot: bool,
        clip_gradient: float | None = None,
    ) -> None:
        super().__init__(
            gradients,
            gather,
            counters,
            optimizer.step,
            uses_snapshot=uses_snapshot,
            clip_gradient=clip_gradient,
        )
        self.optimizer = optimizer
        self._rule = RULES[type(optimizer)]
        # Numbers such as 1 - lr * weight_decay are lost in half precision.
        dtype = torch.promote_types(gradients.dtype, torch.float32)
        first = torch.empty((), dtype=dtype, device=gradients.parameters[0].device)
        group = optimizer.param_groups[0]
        self._numbers = tuple(_Number(first) for _ in self._rule.numbers(1, group))
        self._coefficient = _Number(first)
        self._loaded: Any = None
        self._state: State = ()
        self._optimizer_step = 0
        self._options: dict[str, Any] = {}
        self._recompile_if_changed()
        self._compiled_anchor = compiled_method(self._anchor_gradient)

    def _anchor(self, sample: Sample) -> Tensors:
        if not fits_one_pass(len(sample.windows)):
            return super()._anchor(sample)
        anchor: Tensors = self._compiled_anchor(
            self.gradients.parameters, self.snapshot, sample.windows, sample.weights
        )
        return anchor

    def _direction(  # type: ignore[override]
        self, sample: Sample, anchor: Tensors | None, coefficient: float
    ) -> PendingDirection:
        return PendingDirection(sample, anchor, coefficient)

    def apply(self, v: PendingDirection, last: bool) -> Step:  # type: ignore[override]
        """Compute v and update the parameters along it, in one compiled function."""
        self.compiled_steps += 1
        numbers = self._next_numbers()
        (windows, weights), anchor, coefficient = v
        parameters = self.gradients.parameters
        if anchor is None:
            loss, squared_norm = self._single(
                parameters, self._state, numbers, windows, weights
            )
        else:
            loss, squared_norm = self._pair(
                parameters,
                self.snapshot,
                anchor,
                self._coefficient.tensor(coefficient),
                self._state,
                numbers,
                windows,
                weights,
            )
        return Step(windows, loss, squared_norm)

    def _try_step(self, sample: Sample, anchor: Tensors | None) -> None:
        with self.rolled_back():
            self.apply(self.direction(sample, anchor, 1.0), last=True)

    # -- the optimizer's state ------------------------------------------------------

    def load_optimizer_state(self) -> None:
        """Find torch's state, or create it as torch would at the first step."""
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
        self._optimizer_step = 0
        if rule.counts:
            # Views of one tensor, so that one addition counts for all parameters.
            given = optimizer.state[parameters[0]].get("step", torch.zeros(()))
            self._optimizer_step = int(given)
            self._counter = torch.full((len(parameters),), float(given))
            for parameter, count in zip(parameters, self._counter.unbind(), strict=True):
                optimizer.state[parameter]["step"] = count
        self._loaded = optimizer.state

    def reread_step(self) -> None:
        if self._rule.counts:
            self._optimizer_step = int(self._counter[0])

    @contextmanager
    def rolled_back(self) -> Iterator[None]:
        """Restore parameters, optimizer state and counts on exit."""
        compiled_steps = self.compiled_steps
        self.load_optimizer_state()
        try:
            with Rollback(self.optimizer, self.gradients.parameters).rolled_back():
                yield
        finally:
            self.compiled_steps = compiled_steps
            self.reread_step()

    def _recompile_if_changed(self) -> None:
        """Recompile if a callback has changed an option that is compiled in."""
        group = self.optimizer.param_groups[0]
        options = {k: v for k, v in group.items() if k in CONSTANTS}
        if options != self._options:
            self._options = options
            self._single = compiled_method(self._single_step)
            self._pair = compiled_method(self._paired_step)

    def _next_numbers(self) -> Tensors:
        """Return the numbers that the update of the next step needs."""
        self.load_optimizer_state()
        self._recompile_if_changed()
        self._optimizer_step += 1
        if self._rule.counts:
            self._counter.add_(1)
        group = self.optimizer.param_groups[0]
        values = self._rule.numbers(self._optimizer_step, group)
        pairs = zip(self._numbers, values, strict=True)
        return tuple(number.tensor(float(value)) for number, value in pairs)

    # -- compiled functions ---------------------------------------------------------

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
        return loss, self._fused_update(theta, v, state, numbers)

    def _paired_step(
        self,
        theta: Tensors,
        snapshot: Tensors,
        anchor: Tensors,
        coefficient: Tensor,
        state: State,
        numbers: Tensors,
        windows: Tensor,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        batch = self.gather(windows)
        v, loss = self.gradients.functional_pair(
            theta, snapshot, anchor, coefficient, batch, weights
        )
        return loss, self._fused_update(theta, v, state, numbers)

    def _fused_update(
        self, theta: Tensors, v: Tensors, state: State, numbers: Tensors
    ) -> Tensor:
        if self.clip_gradient is not None:
            # In double precision: a direction that is clipped may be of any size.
            squared = torch.stack([x.double().square().sum() for x in v]).sum()
            scale = clip_scale(squared, self.clip_gradient)
            v = tuple(scale * x for x in v)
        else:  # the guard skips a step if this overflows
            squared = torch.stack([x.square().sum() for x in v]).sum()
        steps = zip(theta, v, state, strict=True)
        for place, (parameter, direction, own) in enumerate(steps):
            if place not in self.gradients.idle:
                self._rule.update(parameter, direction, own, numbers, self._options)
        return squared


class _Number:
    """A number as a tensor, whose value can change without recompilation."""

    def __init__(self, like: Tensor) -> None:
        self._tensor = torch.zeros((), dtype=like.dtype, device=like.device)
        self._value = 0.0

    def tensor(self, value: float) -> Tensor:
        if value != self._value:
            self._value = value
            self._tensor.fill_(value)
        return self._tensor
