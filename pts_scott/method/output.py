"""The parameters that training returns: the last, a sampled snapshot, or the best."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from pts_scott.engine.gradients import Losses, set_buffers
from pts_scott.errors import ScottWarning


class Kept:
    """The parameters that training returns: the last, a sampled snapshot, or the best."""

    def __init__(self, output: str, losses: Losses, generator: torch.Generator) -> None:
        self._output = output
        self._losses = losses
        self._generator = generator
        self._copy: dict[str, dict[str, Tensor]] | None = None
        self._weight = 0.0
        self._best = math.inf
        self._validated = False

    def see_snapshot(self, weight: float) -> None:
        """Keep θ(t,0) with probability ∝ α_t B, by a reservoir of one."""
        if self._output != "sampled":
            return
        self._weight += weight
        if torch.rand((), generator=self._generator).item() * self._weight < weight:
            self._keep()

    def see_validation(self, loss: float) -> None:
        """Keep the parameters if they are the best so far."""
        self._validated = True
        if self._output == "best" and loss < self._best:
            self._best = loss
            self._keep()

    def state_dict(self) -> dict[str, Any]:
        """What was kept so far."""
        return {
            "copy": self._copy,
            "weight": self._weight,
            "best": self._best,
            "validated": self._validated,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._weight, self._best = state["weight"], state["best"]
        self._validated, self._copy = state["validated"], state["copy"]

    def _keep(self) -> None:
        """Copy trained parameters and buffers, which belong together."""
        trained, buffers = self._losses.trainable(), self._losses.named_buffers()
        self._copy = {
            "parameters": {name: p.detach().clone() for name, p in trained.items()},
            "buffers": {name: buffer.clone() for name, buffer in buffers},
        }

    def restore(self) -> None:
        """Put the kept parameters into the network."""
        if self._output == "best" and self._validated and self._copy is None:
            warnings.warn(
                "no validation loss was finite, so output='best' returns the last "
                "parameters; look at the validation data.",
                ScottWarning,
                stacklevel=2,
            )
        if self._output == "best" and not self._validated:
            warnings.warn(
                "training ended before the first validation, so output='best' returns "
                "the last parameters; make epochs shorter or the budget larger.",
                ScottWarning,
                stacklevel=2,
            )
        if self._copy is not None:
            with torch.no_grad():
                for name, parameter in self._losses.trainable().items():
                    parameter.copy_(self._copy["parameters"][name])
            set_buffers(self._losses, self._copy["buffers"])
