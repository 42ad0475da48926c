"""The ``trainer`` argument of estimators."""

from __future__ import annotations

from typing import Any

from pts_scott.backends import backend
from pts_scott.errors import ArgumentError
from pts_scott.training.trainer import ScottTrainer


def trainer_or_default(trainer: Any) -> ScottTrainer:
    """Return the trainer, or one with default settings for None.

    Raises
    ------
    ArgumentError
        If it is neither None nor a `ScottTrainer`.
    """
    if trainer is None:
        return backend.ScottTrainer()
    if not isinstance(trainer, ScottTrainer):
        raise ArgumentError(
            f"trainer={trainer!r}: expected a ScottTrainer, e.g. "
            "trainer=ScottTrainer(method='scott')."
        )
    return trainer
