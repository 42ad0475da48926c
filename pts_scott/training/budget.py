"""Budgets, clock and history of a training run: what was spent, counted as spent."""

from __future__ import annotations

import math
import time
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

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
    "skipped",
    "compile_seconds",
)


COUNTS = (*COLUMNS[:5], "skipped")


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

    def __init__(self, seconds: float = 0.0) -> None:
        self._before = seconds
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


class History:
    """One row for each outer loop, kept as columns of plain numbers."""

    def __init__(self) -> None:
        self._columns: dict[str, Any] = {
            name: array("q" if name in COUNTS else "d") for name in COLUMNS[:-1]
        }
        #: Seconds that compilation took; they are not in ``seconds``.
        self.compile_seconds = 0.0

    def __len__(self) -> int:
        return len(self._columns["step"])

    def add(self, **row: float) -> None:
        """Add the row of one outer loop; its validation loss may follow."""
        for name, column in self._columns.items():
            column.append(row.get(name, 0 if name in COUNTS else math.nan))

    def extend(self, **row: float) -> None:
        """Add to the latest row what was spent without making a step."""
        if len(self):
            for name, value in row.items():
                self._columns[name][-1] = value

    def state_dict(self) -> dict[str, Any]:
        """The columns as tensors."""
        kinds = {"q": torch.int64, "d": torch.float64}
        return {
            "compile_seconds": self.compile_seconds,
            "columns": {
                name: torch.tensor(column, dtype=kinds[column.typecode])
                for name, column in self._columns.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after these rows."""
        self.compile_seconds = state["compile_seconds"]
        for name, values in state["columns"].items():
            column = array(self._columns[name].typecode)
            column.frombytes(values.numpy().tobytes())
            self._columns[name] = column

    def frame(self) -> pd.DataFrame:
        """The rows as a table, with the columns in their documented order."""
        table = {k: np.array(column) for k, column in self._columns.items()}
        return pd.DataFrame(table).assign(compile_seconds=self.compile_seconds)
