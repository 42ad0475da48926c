"""The policies of ``Stratifier``: by calendar, period, range, series, hash, function."""

from __future__ import annotations

import datetime
import enum
import numbers
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from pandas.tseries.offsets import BaseOffset

from pts_scott._utils.arguments import nearest, whole_number
from pts_scott._utils.text import cause, quote
from pts_scott.data.offsets import moment_of, nanoseconds, ordinal_of, step_days
from pts_scott.data.window_index import WindowIndex
from pts_scott.errors import (
    ArgumentError,
    FrequencyError,
    NotFittedError,
    StratificationError,
)
from pts_scott.strata.stratifier import (
    Codes,
    Stratifier,
    combine,
    item_id_of,
    positive_count,
    scramble,
    stable_hash,
)

# For each calendar part: how to read it, how many values it may have, and the
# length of a step, in days, from which on it no longer tells windows apart.
CALENDAR_PARTS: dict[str, tuple[Callable[[pd.DatetimeIndex], Any], int, float]] = {
    "hour": (lambda m: m.hour, 24, 1),
    "weekday": (lambda m: m.weekday, 7, 7),
    "weekend": (lambda m: m.weekday >= 5, 2, 7),
    "day": (lambda m: m.day - 1, 31, 28),
    "week": (lambda m: m.isocalendar().week - 1, 53, 28),
    "month": (lambda m: m.month - 1, 12, 32),
    "quarter": (lambda m: m.quarter - 1, 4, 93),
    "season": (lambda m: (m.year * 12 + m.month - 1) // 3, 40_000, 93),
    "year": (lambda m: m.year, 10_000, float("inf")),
}


class Calendar(Stratifier):
    """Strata by a tuple of calendar parts of the forecast start."""

    def __init__(self, parts: Sequence[str]) -> None:
        parts = tuple(parts)
        if not parts:
            raise ArgumentError(
                "Stratifier.calendar() needs at least one part, e.g. "
                "Stratifier.calendar('weekday', 'season')."
            )
        for part in parts:
            if part not in CALENDAR_PARTS:
                hint = nearest(str(part), CALENDAR_PARTS)
                raise ArgumentError(f"{part!r} is not a calendar part. {hint}")
        if len(set(parts)) < len(parts):
            raise ArgumentError(f"a calendar part is given twice: {parts}.")
        self.parts = parts
        self._seen: dict[pd.Timestamp, int] = {}

    def codes(self, windows: WindowIndex) -> Codes:
        timeline = windows.series.timeline
        self._check_frequency(timeline.offset)
        return Codes(moments=self._hash(timeline.moments))

    def code(self, instance: Mapping[str, Any]) -> int:
        moment = moment_of(instance["forecast_start"])
        if moment not in self._seen:
            self._seen[moment] = int(self._hash(pd.DatetimeIndex([moment]))[0])
        return self._seen[moment]

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        return ", ".join(self._name(part, moment) for part in self.parts)

    def _hash(self, moments: pd.DatetimeIndex) -> np.ndarray:
        """The tuple of parts as one number, in mixed radix: no two tuples collide."""
        code = np.zeros(len(moments), dtype=np.int64)
        for part in self.parts:
            read, radix, _ = CALENDAR_PARTS[part]
            code = code * radix + np.asarray(read(moments), dtype=np.int64)
        return code

    def _check_frequency(self, offset: BaseOffset) -> None:
        days = step_days(offset)
        for part in self.parts:
            if days >= CALENDAR_PARTS[part][2]:
                usable = [
                    p for p, (_, _, limit) in CALENDAR_PARTS.items() if days < limit
                ]
                raise FrequencyError(
                    f"{self}: {part!r} does not tell apart steps of "
                    f"freq={offset.freqstr!r}; usable here: {', '.join(usable)}."
                )

    @staticmethod
    def _name(part: str, moment: pd.Timestamp) -> str:
        if part == "weekday":
            return moment.strftime("%a")
        if part == "season":
            return f"{moment.year}Q{moment.quarter}"
        read = CALENDAR_PARTS[part][0]
        value = int(np.asarray(read(pd.DatetimeIndex([moment])))[0])
        return f"{part} {value + (part in ('day', 'week', 'month', 'quarter'))}"

    def _arguments(self) -> dict[str, Any]:
        return {"parts": list(self.parts)}

    def __repr__(self) -> str:
        return f"Stratifier.calendar({', '.join(map(repr, self.parts))})"


class Periodic(Stratifier):
    """Strata by the phase of the forecast start in a period."""

    def __init__(self, period: int, unit: int = 1, freq: str | None = None) -> None:
        self.count = self.period = positive_count("period", period)
        self.unit = whole_number("unit", unit)
        self.freq = freq

    def fit(self, windows: WindowIndex) -> Stratifier:
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


class Ranges(Stratifier):
    """Strata by equal ranges of time between first and last forecast start."""

    def __init__(self, count: int, edges: Sequence[int] | None = None) -> None:
        self.count = positive_count("count", count)
        self.edges = None if edges is None else [int(edge) for edge in edges]

    def fit(self, windows: WindowIndex) -> Stratifier:
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
                f"{self} does not know its ranges yet: call "
                "stratifier = stratifier.fit(windows) first."
            )
        return np.searchsorted(self.edges, nanoseconds(moments), side="right")

    def _arguments(self) -> dict[str, Any]:
        return {"count": self.count, "edges": self.edges}

    def __repr__(self) -> str:
        return f"Stratifier.ranges({self.count})"


def _name_hashes(windows: WindowIndex) -> np.ndarray:
    """A hash for each series."""
    names = windows.series.item_ids
    return np.fromiter(map(stable_hash, names), dtype=np.int64, count=len(names))


class BySeries(Stratifier):
    """One stratum for each series."""

    def codes(self, windows: WindowIndex) -> Codes:
        return Codes(series=_name_hashes(windows))

    def code(self, instance: Mapping[str, Any]) -> int:
        return stable_hash(item_id_of(instance))

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        return f"series {item_id}"

    def _arguments(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return "Stratifier.series()"


class Finest(Stratifier):
    """One stratum for each window, known by a hash of series and moment."""

    salt = 1

    def codes(self, windows: WindowIndex) -> Codes:
        series, rows = windows.rows(np.arange(len(windows), dtype=np.int64))
        hashes = _name_hashes(windows)
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
    """Strata by a hash of the window, modulo their number."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count = positive_count("count", count)
        self.seed = whole_number("seed", seed, minimum=0)
        self.salt = self.seed + 2

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        return f"hash {code}"

    def check_sizes(self, sizes: np.ndarray) -> None:
        """Accept any sizes: a hash promises none."""

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


class Custom(Stratifier):
    """Strata by a user's function, called once for each window."""

    def __init__(
        self, function: Callable[[str, pd.Timestamp, Mapping[str, Any]], Hashable]
    ) -> None:
        if not callable(function):
            raise ArgumentError(
                f"Stratifier.custom({function!r}): expected a function of item id, "
                "forecast start and instance."
            )
        self.function = function

    def codes(self, windows: WindowIndex) -> Codes:
        hashes = np.empty(len(windows), dtype=np.int64)
        for number, instance in enumerate(_instances(windows)):
            hashes[number] = self.code(instance)
        return Codes(windows=hashes)

    def code(self, instance: Mapping[str, Any]) -> int:
        return stable_hash(self._call(instance))

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        return f"like {item_id} at {moment}"

    def _call(self, instance: Mapping[str, Any]) -> Hashable:
        item_id, moment = item_id_of(instance), moment_of(instance["forecast_start"])
        try:
            label = self.function(item_id, moment, instance)
            hash(label)
            if not _is_label(label):
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


LABELS = (
    str,
    bytes,
    numbers.Number,
    np.generic,
    enum.Enum,
    datetime.date,
    datetime.time,
    pd.Period,
)


def _is_label(value: Any) -> bool:
    """Whether a value is the same in every process, and equal to itself, as NaN is not.

    Other objects are known by their address or their order in memory.
    """
    if isinstance(value, tuple):
        return all(map(_is_label, value))
    return isinstance(value, LABELS) and bool(value == value)


def _instances(windows: WindowIndex, chunk: int = 4096) -> Iterable[dict[str, Any]]:
    """Every window as the instance that a splitter would make of it."""
    moments = windows.series.timeline.moments
    for begin in range(0, len(windows), chunk):
        numbers = np.arange(begin, min(begin + chunk, len(windows)), dtype=np.int64)
        batch = windows.gather(torch.from_numpy(numbers).to(windows.device))
        # Copies: some are views of one number, and the function may write into them.
        arrays = {name: values.cpu().numpy().copy() for name, values in batch.items()}
        for place, (series, row) in enumerate(zip(*windows.rows(numbers), strict=True)):
            yield {
                "item_id": windows.series.item_ids[series],
                "forecast_start": moments[row],
                **{name: values[place] for name, values in arrays.items()},
            }


class Product(Stratifier):
    """Windows share a stratum if they do under every factor."""

    def __init__(self, factors: Sequence[Stratifier]) -> None:
        self._factors = list(factors)

    def factors(self) -> list[Stratifier]:
        return self._factors

    def fit(self, windows: WindowIndex) -> Stratifier:
        return Product([factor.fit(windows) for factor in self._factors])

    def codes(self, windows: WindowIndex) -> Codes:
        return combine([factor.codes(windows) for factor in self._factors])

    def code(self, instance: Mapping[str, Any]) -> int:
        total = np.zeros(1, dtype=np.int64)
        for place, factor in enumerate(self._factors):
            total += scramble(np.array([factor.code(instance)]), place)
        return int(total[0])

    def check_count(self, windows: WindowIndex) -> None:
        for factor in self._factors:
            factor.check_count(windows)

    def _arguments(self) -> dict[str, Any]:
        return {"factors": self._factors}

    def __repr__(self) -> str:
        return " * ".join(map(repr, self._factors))
