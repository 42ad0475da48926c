"""The compiled engine: gather, gradients, v, norm and update as one compiled function.

On a small network the arithmetic of a step takes a fraction of a millisecond, and the
overhead takes longer: reading a batch, the optimizer's Python, one call per operator.
Here all of it is one function, which changes parameters and optimizer state in place. A
direction is therefore computed only when it is applied.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pts_scott.data.window_index import Batch
from pts_scott.engine.base import Anchored, Gather
from pts_scott.engine.compilation import CompiledFunction
from pts_scott.engine.eager import EagerEngine, fits_one_pass
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.rollback import Rollback
from pts_scott.engine.tensors import clip_scale
from pts_scott.engine.update_rules import RULES, VARYING, unknown_options
from pts_scott.errors import ModelError
from pts_scott.method.protocol import Counters, Sample, Step, Tensors

State = tuple[Tensors, ...]


class StepInputs(NamedTuple):
    """The tensors that a compiled step reads or changes in place, in their order."""

    theta: Tensors
    state: State
    step_count: Tensors
    numbers: Tensors
    buffers: Tensors
    snapshot: Tensors = ()
    anchor: Tensors = ()
    coefficient: Tensors = ()


class PendingDirection(NamedTuple):
    """The inputs from which v is computed when it is applied."""

    sample: Sample
    anchor: Tensors | None
    coefficient: float
    loss: Tensor | None = None  # if v is the anchor itself


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
        self._held: list[Tensor | None] = []
        self._count: Tensors = ()  # the optimizer's steps, if it counts them
        self._changed: list[Tensor] = []  # by a step: parameters, state and count
        self._optimizer_step = 0
        self._options: dict[str, Any] = {}
        self._recompile_if_changed()
        self._compiled_anchor = CompiledFunction(self._anchor_gradient, gradients.losses)

    def _anchor(self, sample: Sample) -> tuple[Tensors, Tensor]:
        if not fits_one_pass(len(sample.windows)):
            return super()._anchor(sample)
        gradients = self.gradients
        fixed = (*gradients.parameters, *gradients.buffers, *self.snapshot)
        assert sample.weights is not None
        *anchor, loss = self._compiled_anchor(fixed, sample.windows, sample.weights)
        return tuple(anchor), loss

    def _anchor_direction(  # type: ignore[override]
        self, sample: Sample, anchored: Anchored
    ) -> PendingDirection:
        return PendingDirection(sample, anchored.anchor, 1.0, anchored.loss)

    def _direction(  # type: ignore[override]
        self, sample: Sample, anchor: Tensors | None, coefficient: float
    ) -> PendingDirection:
        return PendingDirection(sample, anchor, coefficient)

    def apply(self, v: PendingDirection, last: bool) -> Step:  # type: ignore[override]
        """Compute v and update the parameters along it, in one compiled function."""
        self.compiled_steps += 1
        self.anchored = None
        (windows, weights), anchor, coefficient, loss = v
        numbers = self._next_numbers()
        inputs = [*self._changed, *numbers, *self.gradients.buffers]  # as `StepInputs`
        if loss is not None:
            assert anchor is not None
            (squared_norm,) = self._along_anchor([*inputs, *anchor])
            return Step(windows, loss, squared_norm)
        function = self._single
        if anchor is not None:
            c = self._coefficient.tensor(coefficient)
            inputs += [*self.snapshot, *anchor, c]
            function = self._pair
        drawn = (windows,) if weights is None else (windows, weights)
        loss, squared_norm = function(inputs, *drawn)
        return Step(windows, loss, squared_norm)

    def _try_step(self, sample: Sample, anchor: Tensors | None) -> None:
        with self.rolled_back():
            self.apply(self.direction(sample, anchor, 1.0), last=True)

    # -- the optimizer's state ------------------------------------------------------

    def load_optimizer_state(self) -> None:
        """Find torch's state, or create it as torch would at the first step.

        Called before the first step of each outer loop: callbacks may have changed it.
        """
        optimizer, rule = self.optimizer, self._rule
        parameters = self.gradients.parameters
        self._recompile_if_changed()
        if self._loaded is optimizer.state and self._is_current():
            return
        for parameter in parameters:
            for name in rule.state:
                if name not in optimizer.state[parameter]:
                    zeros = torch.zeros_like(parameter, requires_grad=False)
                    optimizer.state[parameter][name] = zeros
        state = [optimizer.state[p][name] for p in parameters for name in rule.state]
        self._optimizer_step = 0
        if rule.counts:
            # Views of one tensor, so that one addition counts for all parameters.
            # An eager step does not count for parameters without a gradient.
            counted = [int(optimizer.state[p].get("step", 0)) for p in parameters]
            self._optimizer_step = max(counted)
            count = torch.full((len(parameters),), float(self._optimizer_step))
            self._count = (count,)
            for parameter, own in zip(parameters, count.unbind(), strict=True):
                optimizer.state[parameter]["step"] = own
        self._changed = [*parameters, *state, *self._count]
        self._loaded = optimizer.state
        self._held = self._own_state()

    def _is_current(self) -> bool:
        """Return whether the optimizer still holds the tensors that steps change."""
        own = self._own_state()
        return len(own) == len(self._held) and all(map(operator.is_, own, self._held))

    def _own_state(self) -> list[Tensor | None]:
        """Return what the optimizer holds for each parameter; None for what it lacks."""
        state, rule = self.optimizer.state, self._rule
        names = (*rule.state, "step") if rule.counts else rule.state
        return [state[p].get(name) for p in self.gradients.parameters for name in names]

    def reread_step(self) -> None:
        for count in self._count:
            self._optimizer_step = int(count[0])

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
        options = {k: v for k, v in group.items() if k not in VARYING}
        if options == self._options:
            return
        unknown = unknown_options(self.optimizer)
        if unknown:
            raise ModelError(
                f"{unknown[0]}={group[unknown[0]]!r} of the optimizer was set during "
                "training, which compiled steps do not contain. Pass it to the optimizer "
                "from the start, or pass compile=False."
            )
        self._options = options
        losses = self.gradients.losses
        self._single = CompiledFunction(self._single_step, losses)
        self._pair = CompiledFunction(self._paired_step, losses, has_two_passes=True)
        self._along_anchor = CompiledFunction(self._anchor_step, losses)

    def _next_numbers(self) -> Tensors:
        """Return the numbers that the update of the next step needs."""
        if self._loaded is not self.optimizer.state:
            self.load_optimizer_state()
        self._optimizer_step += 1
        group = self.optimizer.param_groups[0]
        values = self._rule.numbers(self._optimizer_step, group)
        pairs = zip(self._numbers, values, strict=True)
        return tuple(number.tensor(float(value)) for number, value in pairs)

    # -- compiled functions ---------------------------------------------------------

    def _anchor_gradient(self, *tensors: Tensor) -> Tensors:
        count = len(self.gradients.parameters)
        parameters, others = tensors[:count], tensors[count:-2]
        buffers, snapshot = others[: len(others) - count], others[len(others) - count :]
        windows, weights = tensors[-2:]
        for copy, parameter in zip(snapshot, parameters, strict=True):
            copy.copy_(parameter)
        batch = self.gather(windows)
        anchor, loss = self.gradients.functional(parameters, buffers, batch, weights)
        return *anchor, loss

    def _anchor_step(self, *tensors: Tensor) -> Tensors:
        inputs, _ = self._step_inputs(tensors, anchor=True)
        return (self._fused_update(inputs, inputs.anchor),)

    def _single_step(self, *tensors: Tensor) -> Tensors:
        inputs, drawn = self._step_inputs(tensors)
        batch, weights = self._drawn(*drawn)
        v, loss = self.gradients.functional(inputs.theta, inputs.buffers, batch, weights)
        return loss, self._fused_update(inputs, v)

    def _paired_step(self, *tensors: Tensor) -> Tensors:
        inputs, drawn = self._step_inputs(tensors, anchor=True, snapshot=True)
        batch, weights = self._drawn(*drawn)
        now, then, loss = self.gradients.functional_pair(
            inputs.theta, inputs.snapshot, inputs.buffers, batch, weights
        )
        (c,) = inputs.coefficient
        v = tuple(
            g - c * (h - a) for g, h, a in zip(now, then, inputs.anchor, strict=True)
        )
        return loss, self._fused_update(inputs, v)

    def _step_inputs(
        self, tensors: Tensors, *, anchor: bool = False, snapshot: bool = False
    ) -> tuple[StepInputs, Tensors]:
        """Return the inputs of a step, and the rest: its windows and weights."""
        flat, count = iter(tensors), len(self.gradients.parameters)

        def take(number: int) -> Tensors:
            return tuple(itertools.islice(flat, number))

        inputs = StepInputs(
            theta=take(count),
            state=tuple(take(len(self._rule.state)) for _ in range(count)),
            step_count=take(len(self._count)),
            numbers=take(len(self._numbers)),
            buffers=take(len(self.gradients.buffers)),
            snapshot=take(count if snapshot else 0),
            anchor=take(count if anchor else 0),
            coefficient=take(1 if snapshot else 0),
        )
        return inputs, tuple(flat)

    def _drawn(self, windows: Tensor, *weights: Tensor) -> tuple[Batch, Tensor]:
        """Return the batch of some windows, and their weights."""
        batch = self.gather(windows)
        return batch, weights[0] if weights else self.gradients.equal_weights(batch)

    def _fused_update(self, inputs: StepInputs, v: Tensors) -> Tensor:
        if self.clip_gradient is not None:
            # In double precision: a direction that is clipped may be of any size.
            squared = torch.stack([x.double().square().sum() for x in v]).sum()
            scale = clip_scale(squared, self.clip_gradient)
            v = tuple(scale * x for x in v)
        else:  # the guard skips a step if this overflows
            squared = torch.stack([x.square().sum() for x in v]).sum()
        for count in inputs.step_count:
            count.add_(1)
        steps = zip(inputs.theta, v, inputs.state, strict=True)
        for place, (parameter, direction, own) in enumerate(steps):
            if place not in self.gradients.idle:
                self._rule.update(
                    parameter, direction, own, inputs.numbers, self._options
                )
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
