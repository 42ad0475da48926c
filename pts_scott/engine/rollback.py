"""An outer loop taken back: parameters and optimizer state as they were when it began.

Whether a gradient is finite takes a look at all of it, which can be a good part of a
step's time. Where nobody else asks for its norm, steps are made without that look; if at
the end of an outer loop the parameters are not finite, or the optimizer's state is not,
the loop is taken back.
"""

from __future__ import annotations

import copy
import math
import operator
from typing import Any

import torch
from torch import Tensor

from pts_scott.engine.gradients import Tensors, largest_square, squared_norm

SMALL = 2**26  # bytes of copies that nobody minds
SETS = 3  # copies of all parameters: of themselves, and of a state like Adam's


class Undo:
    """Where an outer loop began.

    Of large networks the parameters are kept and no more: the state of their optimizer
    would take twice that room, and begins anew if a loop is taken back.

    Parameters
    ----------
    optimizer
        Whose state is kept, once it has any.
    parameters
        What it moves.
    initialised
        Whether the optimizer's constructor makes its state, as Adagrad's does. Such a
        state cannot begin anew and is kept whatever its size.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Tensors,
        *,
        initialised: bool = False,
    ) -> None:
        self._optimizer = optimizer
        self._parameters = [p.detach() for p in parameters]
        size = sum(p.numel() * p.element_size() for p in parameters)
        self._whole = initialised or SETS * size <= SMALL
        self._live: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._entries: list[tuple[Tensor, dict[str, Any]]] = []  # state at `keep`
        self._groups: list[dict[str, Any]] = []

    def keep(self) -> None:
        """Remember where everything is."""
        state = self._optimizer.state if self._whole else {}
        self._entries = [(p, _own(values)) for p, values in state.items()]
        self._groups = [_options(group) for group in self._optimizer.param_groups]
        held = (v for _, own in self._entries for v in own.values())
        live = [value for value in held if isinstance(value, Tensor)]
        live += self._parameters
        # An optimizer may put another tensor in the place of one.
        if len(live) != len(self._live) or any(map(operator.is_not, live, self._live)):
            self._live, self._copies = live, [torch.empty_like(t) for t in live]
        torch._foreach_copy_(self._copies, self._live)

    def is_due(self) -> bool:
        """Whether parameters are not finite, or far too large, or a state is not finite.

        A second moment that has overflowed keeps the parameters where they are, for ever.
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

    def take_back(self) -> None:
        """Put everything back to where it was."""
        torch._foreach_copy_(self._live, self._copies)
        for group, options in zip(
            self._optimizer.param_groups, self._groups, strict=True
        ):
            group.update(options)
        self._optimizer.state.clear()  # there was none yet, or no room for it
        for parameter, own in self._entries:
            self._optimizer.state[parameter] = own
        if self.is_due():  # a state that was not finite before
            self._optimizer.state.clear()


def _own(state: dict[str, Any]) -> dict[str, Any]:
    """The entries of a parameter's state: tensors as they are, all else copied."""
    return {
        name: value if isinstance(value, Tensor) else copy.deepcopy(value)
        for name, value in state.items()
    }


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
