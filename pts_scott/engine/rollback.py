"""Rollback: parameters and optimizer state as they were when an outer loop began."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pts_scott.engine.tensors import largest_square, squared_norm
from pts_scott.method.protocol import Tensors

SMALL = 2**26  # bytes of copies that are negligible
SETS = 3  # copies of all parameters: of themselves, and of a state like Adam's


def affords_state(parameters: Tensors) -> bool:
    """Return whether a copy of the optimizer state is small enough to be kept."""
    size = sum(p.numel() * p.element_size() for p in parameters)
    return SETS * size <= SMALL


class Rollback:
    """A saved point of training that can be restored.

    Parameters
    ----------
    optimizer
        The optimizer whose state is saved, once it has any.
    parameters
        The parameters that it updates.
    with_state
        Whether to save the optimizer state. Otherwise it is reset by a rollback, which
        saves two thirds of the memory that Adam would need.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Tensors,
        *,
        with_state: bool = True,
    ) -> None:
        self._optimizer = optimizer
        self._trained = parameters
        self._detached = [p.detach() for p in parameters]
        self._with_state = with_state
        self._live: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._entries: list[tuple[Tensor, dict[str, Any]]] = []  # state at `save`
        self._groups: list[dict[str, Any]] = []
        self._snapshot: list[Tensor] = []

    @property
    def _parameters(self) -> list[Tensor]:
        """The parameters' memory, which changes if ``parameter.data`` is assigned."""
        pairs = zip(self._trained, self._detached, strict=True)
        if any(p.data_ptr() != own.data_ptr() for p, own in pairs):
            self._detached = [p.detach() for p in self._trained]
        return self._detached

    def save(self, snapshot: Tensors = ()) -> None:
        """Save the current point.

        Parameters
        ----------
        snapshot
            A copy of the current parameters that does not change, if there is one.
        """
        state = self._optimizer.state if self._with_state else {}
        self._entries = [(p, _saved_entries(values)) for p, values in state.items()]
        self._groups = [_options(group) for group in self._optimizer.param_groups]
        held = (v for _, own in self._entries for v in own.values())
        live = [value for value in held if isinstance(value, Tensor)]
        self._snapshot = [tensor.detach() for tensor in snapshot]
        live += [] if snapshot else self._parameters
        # An optimizer may replace a tensor of its state with another one.
        if len(live) != len(self._live) or any(map(operator.is_not, live, self._live)):
            self._live, self._copies = live, [torch.empty_like(t) for t in live]
        if live:
            torch._foreach_copy_(self._copies, live)

    def restore(self) -> None:
        """Restore the saved point."""
        if self._live:
            torch._foreach_copy_(self._live, self._copies)
        if self._snapshot:
            torch._foreach_copy_(self._parameters, self._snapshot)
        for group, options in zip(
            self._optimizer.param_groups, self._groups, strict=True
        ):
            group.update(options)
        self._optimizer.state.clear()
        for parameter, own in self._entries:
            self._optimizer.state[parameter] = own

    @contextmanager
    def rolled_back(self) -> Iterator[None]:
        """Restore the current point on exit."""
        self.save()
        try:
            yield
        finally:
            self.restore()

    def is_needed(self) -> bool:
        """Return whether parameters or optimizer state are non-finite or far too large.

        A second moment that has overflowed would freeze its parameters permanently.
        """
        largest = largest_square(self._parameters)
        if not math.isfinite(squared_norm(self._parameters, largest)):
            return True
        device = self._parameters[0].device
        state = [
            value
            for own in self._optimizer.state.values()
            for value in own.values()
            if isinstance(value, Tensor)
            and value.is_floating_point()
            and value.device == device
        ]
        return bool(state) and not math.isfinite(squared_norm(state))

    def reset_state(self) -> None:
        """Reset the optimizer state."""
        self._optimizer.state.clear()


def _saved_entries(state: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a parameter's state: tensors as they are, others copied."""
    return {
        name: value if isinstance(value, Tensor) else copy.deepcopy(value)
        for name, value in state.items()
    }


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
