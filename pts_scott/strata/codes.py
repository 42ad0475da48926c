"""Stratum codes: the integer per window that defines its stratum, and stable hashes.

Two windows are in the same stratum if and only if their codes are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pts_scott.data.window_index import WindowIndex
from pts_scott.errors import DataError


@dataclass(frozen=True)
class Codes:
    """Codes of all windows, stored as a sum of parts to save memory.

    The code of a window is ``moments[row] + series[i] + windows[number]`` (wrapping
    around at 64 bits), where a part that is None counts as 0. A policy that depends on
    time and series only needs memory for steps plus series, not for windows.
    """

    moments: np.ndarray | None = None
    series: np.ndarray | None = None
    windows: np.ndarray | None = None

    def expand(
        self, index: WindowIndex, begin: int = 0, end: int | None = None
    ) -> np.ndarray:
        """Return the codes of windows ``begin`` to ``end`` − 1, by default of all."""
        numbers = np.arange(begin, len(index) if end is None else end, dtype=np.int64)
        return self.at(numbers, *index.rows(numbers))

    def at(self, numbers: np.ndarray, series: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the codes of windows, given their series and timeline rows."""
        total = np.zeros(len(numbers), dtype=np.int64)
        if self.moments is not None:
            total += self.moments[rows]
        if self.series is not None:
            total += self.series[series]
        if self.windows is not None:
            total += self.windows[numbers]
        return total

    def occurring(self, index: WindowIndex) -> np.ndarray:
        """Return the codes that occur, without listing all windows where possible.

        Valid only for the codes of a single policy, which have one part.
        """
        if self.moments is not None:
            return self.moments[index.starts()]
        return self.windows if self.series is None else self.series  # type: ignore[return-value]

    def __add__(self, other: Codes) -> Codes:
        return Codes(
            _add(self.moments, other.moments),
            _add(self.series, other.series),
            _add(self.windows, other.windows),
        )


def _add(left: np.ndarray | None, right: np.ndarray | None) -> np.ndarray | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right


def combine(factors: Sequence[Codes]) -> Codes:
    """Return the codes of a product of policies, given the codes of its factors.

    A single policy keeps its codes. The codes of several are scrambled, each with its
    own salt, and added part by part, so the time part stays separate from the others.
    """
    if len(factors) == 1:
        return factors[0]
    total = Codes()
    for place, codes in enumerate(factors):
        parts = (codes.moments, codes.series, codes.windows)
        total += Codes(*(None if p is None else scramble(p, place) for p in parts))
    return total


def item_id_of(instance: Mapping[str, Any]) -> str:
    """Return the ``item_id`` of an instance's series."""
    if "item_id" not in instance:
        raise DataError(
            "an instance has no 'item_id', which this policy needs to identify series; "
            "give each entry of the dataset an 'item_id'."
        )
    return str(instance["item_id"])


def stable_hash(label: Hashable) -> int:
    """Return a 64-bit hash that is the same in every process."""
    digest = hashlib.blake2b(repr(_plain(label)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _plain(label: Any) -> Any:
    """Return one representation for labels equal in Python: 1, 1.0, True, NumPy's 1."""
    if isinstance(label, tuple):
        return tuple(_plain(part) for part in label)
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, int | float) and label == label // 1:
        return int(label)
    return label


def scramble(codes: np.ndarray, salt: int = 0) -> np.ndarray:
    """Distribute integers over 64 bits by SplitMix64, one to one for a given salt."""
    with np.errstate(over="ignore"):
        z = codes.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15 * (salt + 1) % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))).astype(np.int64)
