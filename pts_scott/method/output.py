"""The return line: the last parameters, a sampled snapshot, or the best on validation."""

from __future__ import annotations

import math
import warnings
from typing import Any, Protocol

import torch

from pts_scott.errors import ScottWarning


class Copyable(Protocol):
    """A network whose parameters and buffers can be copied and restored."""

    def copy_state(self) -> Any:
        """Return a copy of the state."""
        ...

    def restore_state(self, copy: Any) -> None:
        """Restore a copy of the state."""
        ...


class OutputSelector:
    """The parameters that training returns.

    Parameters
    ----------
    output
        "last", "sampled" or "best".
    network
        The network whose parameters are kept.
    generator
        Source of the random numbers of "sampled".
    """

    def __init__(
        self, output: str, network: Copyable, generator: torch.Generator
    ) -> None:
        self._output = output
        self._network = network
        self._generator = generator
        self._copy: Any = None
        self._weight = 0.0
        self._best = math.inf
        self._validated = False

    def offer_snapshot(self, weight: float) -> None:
        """Keep θ(t,0) with probability ∝ α_t·B, by a reservoir of one."""
        if self._output != "sampled":
            return
        self._weight += weight
        if torch.rand((), generator=self._generator).item() * self._weight < weight:
            self._copy = self._network.copy_state()

    def offer_validated(self, loss: float) -> None:
        """Keep the parameters if their validation loss is the best so far."""
        self._validated = True
        if self._output == "best" and loss < self._best:
            self._best = loss
            self._copy = self._network.copy_state()

    def restore(self) -> None:
        """Put the selected parameters into the network."""
        if self._output == "best" and self._copy is None:
            reason = (
                "no validation loss was finite, so output='best' returns the last "
                "parameters; check the validation data."
                if self._validated
                else "training ended before the first validation, so output='best' "
                "returns the last parameters; make epochs shorter or the budget larger."
            )
            warnings.warn(reason, ScottWarning, stacklevel=2)
        if self._copy is not None:
            self._network.restore_state(self._copy)

    def state_dict(self) -> dict[str, Any]:
        """Return the current selection."""
        return {
            "copy": self._copy,
            "weight": self._weight,
            "best": self._best,
            "validated": self._validated,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._weight, self._best = state["weight"], state["best"]
        self._validated, self._copy = state["validated"], state["copy"]
