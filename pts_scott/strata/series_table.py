"""Numbers of many series by name, in one array.

A dictionary with one list per series would take twenty times the memory, and seconds to
create, if there are hundreds of thousands of series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch


class SeriesTable(Mapping[str, list[float]]):
    """A read-only mapping from the ``item_id`` of a series to its numbers.

    Parameters
    ----------
    item_ids
        Names of the series. Of several series with one name, the last one counts.
    rows
        Their numbers, of shape (series, columns), in float64.
    """

    def __init__(self, item_ids: Sequence[str], rows: np.ndarray) -> None:
        self._item_ids, self._rows = tuple(item_ids), rows

    @classmethod
    def of(cls, series: Mapping[str, Sequence[float]]) -> SeriesTable:
        """Return a table of any mapping."""
        if isinstance(series, SeriesTable):
            return series
        return cls(tuple(series), np.array(list(series.values()), dtype=np.float64))

    def __getitem__(self, item_id: str) -> list[float]:
        return self._rows[self._places[item_id]].tolist()  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {item_id: place for place, item_id in enumerate(self._item_ids)}

    def column(self, place: int) -> tuple[tuple[str, ...], np.ndarray]:
        """Return the names of all series, and one of their numbers."""
        return self._item_ids, self._rows[:, place]

    def rows_of(self, item_ids: tuple[str, ...]) -> np.ndarray:
        """Return the numbers of some series; raise a KeyError with an unknown name."""
        if item_ids == self._item_ids:
            return self._rows
        return self._rows[[self._places[item_id] for item_id in item_ids]]

    def __getstate__(self) -> dict[str, Any]:
        """Return what is copied and pickled: not the places, which are derived."""
        return {"_item_ids": self._item_ids, "_rows": self._rows}

    def state_dict(self) -> dict[str, Any]:
        """Return the table as plain values, for checkpoints."""
        return {"item_ids": self._item_ids, "rows": torch.from_numpy(self._rows)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SeriesTable:
        """Return the table of a `state_dict`."""
        return cls(state["item_ids"], state["rows"].numpy())
