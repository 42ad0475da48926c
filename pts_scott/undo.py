"""An outer loop taken back: parameters and optimizer state as they were when it began.

Whether a gradient is finite takes a look at all of it, which can be a good part of a
step's time. Where nobody else asks for its norm, steps are made without that look; if at
the end of an outer loop the parameters are not finite, or the optimizer's state is not,
the loop is taken back.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pts_scott.gradients import Tensors, largest_square, squared_norm

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
        self._state: Any = None
        self._size = -1
        self._live: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._numbers: list[tuple[dict[str, Any], str, Any]] = []

    def keep(self) -> None:
        """Remember where everything is."""
        state = self._optimizer.state
        if self._state is not state or self._size != len(state):
            self._find(state)
        torch._foreach_copy_(self._copies, self._live)
        self._numbers = [(own, name, own[name]) for own, name, _ in self._numbers]

    def _find(self, state: Any) -> None:
        """What a step changes; the first step makes a state, or it comes from a file."""
        self._state, self._size = state, len(state)
        states = state.values() if self._whole else ()
        owned = [(own, name, own[name]) for own in states for name in own]
        self._live = [value for *_, value in owned if isinstance(value, Tensor)]
        self._live += self._parameters
        self._numbers = [x for x in owned if not isinstance(x[2], Tensor)]
        self._copies = [torch.empty_like(tensor) for tensor in self._live]

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
        for own, name, value in self._numbers:
            own[name] = value
        if not (self._whole and self._size):  # there was none yet, or no room for it
            self._optimizer.state.clear()
