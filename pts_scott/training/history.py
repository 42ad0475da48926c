"""The history of a run: one row per outer loop."""

from __future__ import annotations

import math
from array import array
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
    "probe_gradients",
    "probe_seconds",
    "sampler",
    "compile_seconds",
)
COUNTS = (*COLUMNS[:5], "skipped", "probe_gradients", "sampler")


class History:
    """One row per outer loop, stored as columns of plain numbers."""

    def __init__(self) -> None:
        self._columns: dict[str, Any] = {
            name: array("q" if name in COUNTS else "d") for name in COLUMNS[:-1]
        }
        #: Seconds that compilation took; they are not in ``seconds``.
        self.compile_seconds = 0.0
        #: Names of the samplers; rows hold their index, and 0 is an unknown one.
        self._samplers = [""]

    def __len__(self) -> int:
        return len(self._columns["step"])

    def add(self, **row: float) -> None:
        """Add the row of one outer loop; its validation loss may follow."""
        for name, column in self._columns.items():
            column.append(row.get(name, 0 if name in COUNTS else math.nan))

    def sampler(self, name: str) -> int:
        """Return the number of a sampler in the rows."""
        if name not in self._samplers:
            self._samplers.append(name)
        return self._samplers.index(name)

    def extend(self, **row: float) -> None:
        """Update values of the latest row."""
        if len(self):
            for name, value in row.items():
                self._columns[name][-1] = value

    def frame(self) -> pd.DataFrame:
        """Return the rows as a table, with the columns in their documented order."""
        table = {k: np.array(column) for k, column in self._columns.items()}
        names = np.array(self._samplers, dtype=object)
        table["sampler"] = names[table["sampler"]]
        return pd.DataFrame(table).assign(compile_seconds=self.compile_seconds)

    def state_dict(self) -> dict[str, Any]:
        """Return the columns as tensors."""
        kinds = {"q": torch.int64, "d": torch.float64}
        return {
            "compile_seconds": self.compile_seconds,
            "samplers": list(self._samplers),
            "columns": {
                name: torch.tensor(column, dtype=kinds[column.typecode])
                for name, column in self._columns.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore saved rows."""
        self.compile_seconds = state["compile_seconds"]
        self._samplers = list(state["samplers"])
        for name, values in state["columns"].items():
            column = array(self._columns[name].typecode)
            column.frombytes(values.numpy().tobytes())
            self._columns[name] = column
