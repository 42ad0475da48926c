"""Series as they were read, and where they came from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class RawSeries:
    """Series of one frequency, as read and not yet checked for constant values.

    Parameters
    ----------
    freq
        Frequency of the series, as a pandas alias.
    item_ids, starts, targets
        Name, first step and values of each series; NaN where a value is missing.
    unread
        Columns of the table that hold neither timestamps, names nor targets.
    remarks
        Sentences about what was done to read them.
    known, past
        For each series, features of its steps, of shape (features, steps): known in
        advance, and not.
    """

    freq: str
    item_ids: list[str]
    starts: list[pd.Timestamp]
    targets: list[np.ndarray]
    unread: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    known: list[np.ndarray] = field(default_factory=list)
    past: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True)
class Source:
    """Origin of the values, used to name a place in an error message.

    Parameters
    ----------
    name
        Of the file, or e.g. "the DataFrame".
    unit
        What a row is called: "row" or, in a text file, "line".
    first
        Number of the first row.
    """

    name: str
    unit: str = "row"
    first: int = 0

    def place(self, row: int) -> str:
        """Return the place of a row, e.g. ``line 4 of sales.csv``."""
        return f"{self.unit} {row + self.first} of {self.name}"
