"""Budgets, clock and history of a training run: what was spent, counted as spent."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

COLUMNS = (
    "step",
    "outer",
    "epoch",
    "gradients",
    "anchors",
    "seconds",
    "train_loss",
    "val_loss",
    "update_norm",
    "compile_seconds",
)


@dataclass(frozen=True)
class Budget:
    """What training may use; it ends with the first part that is used up.

    Parameters
    ----------
    steps
        Steps in all; None for no limit.
    seconds
        Seconds of training, evaluation not counted; None for no limit.
    gradients
        Gradients computed; None for no limit. It is never exceeded.
    """

    steps: int | None
    seconds: float | None
    gradients: int | None

    def allows(self, steps: int, seconds: float, gradients: int, cost: int) -> bool:
        """Whether a further step of ``cost`` gradients may be made."""
        return (
            (self.steps is None or steps < self.steps)
            and (self.seconds is None or seconds < self.seconds)
            and (self.gradients is None or gradients + cost <= self.gradients)
        )

    def spent(self, steps: int, seconds: float, gradients: int) -> float:
        """The share of the budget that is used up, between 0 and 1."""
        parts = (
            (steps, self.steps),
            (seconds, self.seconds),
            (gradients, self.gradients),
        )
        shares = [used / limit for used, limit in parts if limit is not None]
        return min(1.0, max(shares, default=0.0))


class Stopwatch:
    """Wall-clock seconds of training; it stands still during evaluation."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = None

    def start(self) -> None:
        """Go on counting."""
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Stand still."""
        self._before, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """Seconds counted so far."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._before + running


@dataclass
class History:
    """One row for each outer loop."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    #: Seconds that compilation took; they are not in ``seconds``.
    compile_seconds: float = 0.0

    def add(self, **row: Any) -> None:
        """Add the row of one outer loop; its validation loss may follow."""
        self.rows.append({"val_loss": float("nan"), **row})

    def extend(self, **row: Any) -> None:
        """Add to the latest row what was spent without making a step."""
        if self.rows:
            self.rows[-1].update(row)

    def set_val_loss(self, value: float) -> None:
        """Write a validation loss beside the outer loop that it follows."""
        if self.rows:
            self.rows[-1]["val_loss"] = value

    def frame(self) -> pd.DataFrame:
        """The rows as a table, with the columns in their documented order."""
        table = pd.DataFrame(self.rows, columns=list(COLUMNS))
        return table.assign(compile_seconds=self.compile_seconds)
