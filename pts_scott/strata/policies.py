"""Policies by period, time range, series, random hash, single window or function."""

from __future__ import annotations

import datetime
import enum
import numbers
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from pts_scott._utils.arguments import whole_number
from pts_scott._utils.text import cause, quote, shorten
from pts_scott.data.given_features import feature_arrays, window_features
from pts_scott.data.offsets import moment_of, nanoseconds, ordinal_of
from pts_scott.data.window_index import WindowIndex
from pts_scott.errors import (
    ArgumentError,
    NotFittedError,
    ScottWarning,
    StratificationError,
)
from pts_scott.strata.codes import Codes, item_id_of, scramble, stable_hash
from pts_scott.strata.partition import Strata
from pts_scott.strata.policy import Policy, strata_count
from pts_scott.strata.sorted_windows import WholeOrder

LabelFunction = Callable[[str, pd.Timestamp, Mapping[str, Any]], Hashable]


class Single(Policy):
    """All windows in one stratum: uniform sampling."""

    def codes(self, windows: WindowIndex) -> Codes:
        return Codes(series=np.zeros(len(windows.series.item_ids), dtype=np.int64))

    def code(self, instance: Mapping[str, Any]) -> int:
        return 0

    def stratify(self, windows: WindowIndex) -> Strata:
        sizes = torch.tensor([len(windows)], device=windows.device)
        parts = [self.codes(windows)]
        return Strata(self, np.zeros(1, np.int64), sizes, WholeOrder(), parts, windows)

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        return "all windows"

    def _arguments(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return "all windows"


class Periodic(Policy):
    """Strata by the phase of the forecast start within a period."""

    def __init__(self, period: int, unit: int = 1, freq: str | None = None) -> None:
        self.count = self.period = strata_count("period", period)
        self.unit = whole_number("unit", unit)
        self.freq = freq

    def fit(self, windows: WindowIndex) -> Policy:
        freq = windows.series.timeline.offset.freqstr
        return Periodic(self.period, self.unit, freq)

    def codes(self, windows: WindowIndex) -> Codes:
        return Codes(moments=self._phase(windows.series.timeline.require_ordinals()))

    def code(self, instance: Mapping[str, Any]) -> int:
        ordinal = ordinal_of(instance["forecast_start"], self.freq)
        return int(self._phase(np.array([ordinal]))[0])

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        return f"phase {code}"

    def _phase(self, ordinals: np.ndarray) -> np.ndarray:
        return ordinals // self.unit % self.period

    def _arguments(self) -> dict[str, Any]:
        return {"period": self.period, "unit": self.unit, "freq": self.freq}

    def __repr__(self) -> str:
        unit = "" if self.unit == 1 else f", unit={self.unit}"
        return f"Stratifier.periodic({self.period}{unit})"


class Ranges(Policy):
    """Strata by equal ranges of time between the first and last forecast start."""

    def __init__(self, count: int, edges: Sequence[int] | None = None) -> None:
        self.count = strata_count("count", count)
        self.edges = None if edges is None else [int(edge) for edge in edges]

    def fit(self, windows: WindowIndex) -> Policy:
        if self.edges is not None:
            return self
        # The first and the last window of each series span its forecast starts.
        ends = windows.counts.cpu().numpy().cumsum()
        outer = np.concatenate([[0], ends[:-1], ends - 1])
        moments = nanoseconds(windows.series.timeline.moments[windows.rows(outer)[1]])
        low, high = int(moments.min()), int(moments.max()) + 1
        assert self.count is not None
        edges = [low + (high - low) * k // self.count for k in range(1, self.count)]
        return Ranges(self.count, edges)

    def codes(self, windows: WindowIndex) -> Codes:
        return Codes(moments=self._range(windows.series.timeline.moments))

    def code(self, instance: Mapping[str, Any]) -> int:
        moment = moment_of(instance["forecast_start"])
        return int(self._range(pd.DatetimeIndex([moment]))[0])

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        return f"range {code}"

    def _range(self, moments: pd.DatetimeIndex) -> np.ndarray:
        if self.edges is None:
            raise NotFittedError(
                f"{self} has no ranges yet: call "
                "stratifier = stratifier.fit(windows) first."
            )
        return np.searchsorted(self.edges, nanoseconds(moments), side="right")

    def _arguments(self) -> dict[str, Any]:
        return {"count": self.count, "edges": self.edges}

    def __repr__(self) -> str:
        return f"Stratifier.ranges({self.count})"


class BySeries(Policy):
    """One stratum per series."""

    def codes(self, windows: WindowIndex) -> Codes:
        return Codes(series=_item_id_hashes(windows))

    def code(self, instance: Mapping[str, Any]) -> int:
        return stable_hash(item_id_of(instance))

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        return f"series {item_id}"

    def _arguments(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return "Stratifier.series()"


def _item_id_hashes(windows: WindowIndex) -> np.ndarray:
    """Return the hash of each series' ``item_id``."""
    names = windows.series.item_ids
    return np.fromiter(map(stable_hash, names), dtype=np.int64, count=len(names))


class Finest(Policy):
    """One stratum per window, identified by a hash of series and forecast start."""

    salt = 1

    def codes(self, windows: WindowIndex) -> Codes:
        series, rows = windows.rows(np.arange(len(windows), dtype=np.int64))
        hashes = _item_id_hashes(windows)
        moments = nanoseconds(windows.series.timeline.moments)
        return Codes(windows=self._hash(hashes[series], moments[rows]))

    def code(self, instance: Mapping[str, Any]) -> int:
        moment = nanoseconds(pd.DatetimeIndex([moment_of(instance["forecast_start"])]))
        series = np.array([stable_hash(item_id_of(instance))])
        return int(self._hash(series, moment)[0])

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        return f"{item_id} at {moment}"

    def check_sizes(self, sizes: np.ndarray) -> None:
        if sizes.max() > 1:
            raise StratificationError(
                f"{self} needs windows that differ in item_id or forecast start, but "
                f"{int(sizes.max())} are the same; give each series its own item_id."
            )

    def _hash(self, series: np.ndarray, moments: np.ndarray) -> np.ndarray:
        return scramble(scramble(moments, self.salt) + series, self.salt)

    def _arguments(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return "Stratifier.finest()"


class RandomHash(Finest):
    """Strata by a hash of the window, modulo the number of strata."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count = strata_count("count", count)
        self.seed = whole_number("seed", seed, minimum=0)
        self.salt = self.seed + 2

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        return f"hash {code}"

    def check_sizes(self, sizes: np.ndarray) -> None:
        """Accept strata of any size."""

    def check_occupied(self, codes: np.ndarray) -> None:
        """Accept empty strata: a hash may miss one."""

    def _hash(self, series: np.ndarray, moments: np.ndarray) -> np.ndarray:
        hashes = super()._hash(series, moments).astype(np.uint64)
        count = np.full(1, self.count, dtype=np.uint64)
        return np.mod(hashes, count).astype(np.int64)

    def _arguments(self) -> dict[str, Any]:
        return {"count": self.count, "seed": self.seed}

    def __repr__(self) -> str:
        return f"Stratifier.random({self.count})"


class Custom(Policy):
    """Strata by a user's function, called once per window."""

    def __init__(self, function: LabelFunction) -> None:
        if not callable(function):
            raise ArgumentError(
                f"Stratifier.custom({function!r}): expected a function of item id, "
                "forecast start and instance."
            )
        self.function = function
        self._labels: dict[int, str] = {}  # what it returned, by code

    def codes(self, windows: WindowIndex) -> Codes:
        if windows.series.unread:
            warnings.warn(
                f"{self} does not see {shorten(windows.series.unread)}: features of a "
                "mapped Arrow file are not read. Pass list(dataset) to read it into "
                "memory.",
                ScottWarning,
                stacklevel=2,
            )
        hashes = np.empty(len(windows), dtype=np.int64)
        for number, instance in enumerate(_instances(windows)):
            hashes[number] = self.code(instance)
        return Codes(windows=hashes)

    def code(self, instance: Mapping[str, Any]) -> int:
        label = self._call(instance)
        code = stable_hash(label)
        if code not in self._labels:
            self._labels[code] = str(label)
        return code

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        return self._labels.get(code, f"like {item_id} at {moment}")

    def _call(self, instance: Mapping[str, Any]) -> Hashable:
        item_id, moment = item_id_of(instance), moment_of(instance["forecast_start"])
        try:
            label = self.function(item_id, moment, instance)
            hash(label)
            if not _is_stable(label):
                raise ValueError(f"it returned {quote(label)}")
        except Exception as error:
            raise StratificationError(
                f"{self} failed on the window of series {quote(item_id)} at {moment}: "
                f"{cause(error)}. It must return a number, a string, a date or a tuple "
                "of them."
            ) from error
        return label

    def _arguments(self) -> dict[str, Any]:
        return {"function": self.function}

    def __repr__(self) -> str:
        return f"Stratifier.custom({getattr(self.function, '__name__', 'function')})"


STABLE_TYPES = (
    str,
    bytes,
    numbers.Number,
    np.generic,
    enum.Enum,
    datetime.date,
    datetime.time,
    pd.Period,
)


def _is_stable(label: Any) -> bool:
    """Return whether a label is the same in every process and, unlike NaN, equals itself.

    The representation of other objects depends on their address or order in memory.
    """
    if isinstance(label, tuple):
        return all(map(_is_stable, label))
    return isinstance(label, STABLE_TYPES) and bool(label == label)


def _instances(windows: WindowIndex, chunk: int = 4096) -> Iterable[dict[str, Any]]:
    """Yield every window as the instance that a splitter would produce."""
    store, moments = windows.series, windows.series.timeline.moments
    read, given = -1, {}  # the features of one series, which all its windows share
    for begin in range(0, len(windows), chunk):
        numbers = np.arange(begin, min(begin + chunk, len(windows)), dtype=np.int64)
        batch = windows.gather(torch.from_numpy(numbers).to(windows.device))
        # Copies: some are expanded views, and the function may write into them.
        arrays = {name: values.cpu().numpy().copy() for name, values in batch.items()}
        for place, (series, row) in enumerate(zip(*windows.rows(numbers), strict=True)):
            item_id = store.item_ids[series]
            if store.features and series != read:
                read, given = series, feature_arrays(store.features[series], item_id)
            start = int(row - store.timeline.origins[series])
            yield {
                "item_id": item_id,
                "forecast_start": moments[row],
                **{name: values[place] for name, values in arrays.items()},
                **window_features(given, item_id, *windows.steps_of(start)),
            }
