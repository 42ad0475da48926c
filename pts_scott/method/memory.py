"""What a step remembers of the step before it, for methods that build on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pts_scott.method.protocol import Step, Tensors

IMMEDIATE = ("cpu",)  # devices whose results are read without waiting


class Memory:
    """Tensors of the last step that was applied.

    They are proposed with a direction, when it is not known yet whether its step will be
    applied: a non-finite step is skipped, and must leave no trace here.
    """

    def __init__(self) -> None:
        #: What was remembered; empty before the first step.
        self.values: tuple[Tensors, ...] = ()
        self._proposed: tuple[Tensors, ...] = ()

    def propose(self, *values: Sequence[Tensor]) -> None:
        """Remember copies of these tensors, once their step has been applied."""
        self._proposed = tuple(
            tuple(x.detach().clone() for x in tensors) for tensors in values
        )

    def settle(self, step: Step) -> None:
        """Keep what was proposed for a step, unless it was skipped or cancelled."""
        proposed, self._proposed = self._proposed, ()
        if not proposed or step.cancelled:
            return
        # An overflow in mixed precision has a finite loss.
        applied = step.loss.isfinite() & step.squared_norm.isfinite()
        if applied.device.type in IMMEDIATE:
            self.values = proposed if applied else self.values
            return
        # Accelerators are not waited for; a faulty first step leaves a gradient of zero.
        before = self.values or tuple(map(_finite, proposed))
        pairs = zip(proposed, before, strict=True)
        self.values = tuple(_chosen(applied, *pair) for pair in pairs)

    def state_dict(self) -> dict[str, Any]:
        """Return what is remembered."""
        return {"values": [list(tensors) for tensors in self.values]}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue from a saved state."""
        self.values = tuple(
            tuple(x.to(device) for x in tensors) for tensors in state["values"]
        )


def _finite(tensors: Tensors) -> Tensors:
    return tuple(x.nan_to_num(0.0, 0.0, 0.0) for x in tensors)


def _chosen(condition: Tensor, one: Tensors, other: Tensors) -> Tensors:
    return tuple(torch.where(condition, x, y) for x, y in zip(one, other, strict=True))
