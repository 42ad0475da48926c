"""Stratifier: the policy that says to which stratum a window belongs.

One policy is used in two ways. As a GluonTS ``Transformation`` after an instance
splitter it writes ``stratum`` into each instance; over a ``WindowIndex`` it gives
the same code for all windows at once. Two windows are in one stratum if and only
if their codes are equal.
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from gluonts.transform import MapTransformation

from pts_scott._utils.arguments import whole_number
from pts_scott._utils.text import shorten
from pts_scott.data.window_index import WindowIndex, require_windows
from pts_scott.errors import (
    ArgumentError,
    DataError,
    EmptyStratumError,
    TooManyStrataError,
)

if TYPE_CHECKING:
    from pts_scott.strata.partition import Strata

STRATUM = "stratum"


@dataclass(frozen=True)
class Codes:
    """Codes of all windows, kept as a sum of parts so that they stay small.

    A window's code is ``moments[row] + series[i] + windows[number]`` (wrapping
    around at 64 bits), where a part that is None counts as 0. A policy that looks
    at time and series only needs memory for steps plus series, not for windows.
    """

    moments: np.ndarray | None = None
    series: np.ndarray | None = None
    windows: np.ndarray | None = None

    def expand(self, index: WindowIndex) -> np.ndarray:
        """The code of every window of the index."""
        numbers = np.arange(len(index), dtype=np.int64)
        return self.at(numbers, *index.rows(numbers))

    def at(self, numbers: np.ndarray, series: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The codes of some windows, with their series and rows of the timeline."""
        total = np.zeros(len(numbers), dtype=np.int64)
        if self.moments is not None:
            total += self.moments[rows]
        if self.series is not None:
            total += self.series[series]
        if self.windows is not None:
            total += self.windows[numbers]
        return total

    def occurring(self, index: WindowIndex) -> np.ndarray:
        """Codes that some window has, without making a list of all windows' if possible.

        Only for the codes of a single policy, which have one part.
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


class Stratifier(MapTransformation):
    """Base of all policies, and the place to make them.

    Examples
    --------
    >>> Stratifier.calendar("weekday", "season")
    Stratifier.calendar('weekday', 'season')
    >>> Stratifier.ranges(4) * Stratifier.series()
    Stratifier.ranges(4) * Stratifier.series()

    Tag the instances of a GluonTS pipeline:

    >>> chain = splitter + Stratifier.calendar("weekday")    # doctest: +SKIP
    """

    #: Number of strata that the policy announces; None for "whatever occurs".
    count: int | None = None

    # -- making policies ------------------------------------------------------------

    @staticmethod
    def calendar(*parts: str) -> Stratifier:
        """Strata by parts of the forecast start's date, hashed as a tuple.

        Parameters
        ----------
        *parts
            Of "hour", "weekday", "weekend", "day" (of the month), "week" (of the
            year), "month", "quarter", "season" and "year". A season is a block of
            three months counted through time: two years have eight.
        """
        from pts_scott.strata.policies import Calendar

        if len(parts) == 1 and not isinstance(parts[0], str):
            return Calendar(tuple(parts[0]))  # a list of parts is understood, too
        return Calendar(parts)

    @staticmethod
    def periodic(period: int, unit: int = 1, freq: str | None = None) -> Stratifier:
        """Strata by ``(t0 // unit) mod period``, t0 in steps since 1970.

        Parameters
        ----------
        period
            Number of strata.
        unit
            Steps that stay together, e.g. 24 to count days in an hourly series.
        freq
            Needed only to tag instances whose start is a Timestamp without fitting.
        """
        from pts_scott.strata.policies import Periodic

        return Periodic(period, unit, freq)

    @staticmethod
    def ranges(count: int) -> Stratifier:
        """Strata by cutting the span of forecast starts into equal ranges of time."""
        from pts_scott.strata.policies import Ranges

        return Ranges(count)

    @staticmethod
    def series() -> Stratifier:
        """One stratum for each series, known by its ``item_id``.

        Entries with the same ``item_id`` share a stratum.
        """
        from pts_scott.strata.policies import BySeries

        return BySeries()

    @staticmethod
    def random(count: int, seed: int = 0) -> Stratifier:
        """Strata by a hash of the window that means nothing: SCSG's policy."""
        from pts_scott.strata.policies import RandomHash

        return RandomHash(count, seed)

    @staticmethod
    def finest() -> Stratifier:
        """A stratum for each window: SVRG's policy."""
        from pts_scott.strata.policies import Finest

        return Finest()

    @staticmethod
    def kmeans(
        count: int,
        features: Sequence[str] | Callable[[np.ndarray], np.ndarray] = (
            "spectrum",
            "level",
            "spread",
            "zeros",
        ),
        seed: int = 0,
    ) -> Stratifier:
        """Strata by k-means on cheap features of the window's context.

        Parameters
        ----------
        count
            Number of clusters.
        features
            Names of "spectrum", "level", "spread" and "zeros", or a function from
            contexts of shape (windows, steps) to features (windows, features).
        seed
            Seed of the clustering.
        """
        from pts_scott.strata.kmeans import KMeans

        return KMeans(count, features, seed)

    @staticmethod
    def custom(
        function: Callable[[str, pd.Timestamp, Mapping[str, Any]], Hashable],
    ) -> Stratifier:
        """Strata by a function of one's own.

        Parameters
        ----------
        function
            Called with item id, forecast start (a Timestamp) and the instance
            (``past_target``, ``future_target``); two windows are in one stratum if
            it returns the same for both: a number, a string, a date, or a tuple of them.
        """
        from pts_scott.strata.policies import Custom

        return Custom(function)

    @staticmethod
    def parse(text: str) -> Stratifier:
        """The policy that a text names, as configs do: ``"ranges(4) * series()"``."""
        from pts_scott.strata.policy_text import parse_policy

        return parse_policy(text)

    def __mul__(self, other: Stratifier) -> Stratifier:
        """The product of two policies: windows share a stratum if they do in both."""
        if not isinstance(other, Stratifier):
            return NotImplemented
        from pts_scott.strata.policies import Product

        return Product([*self.factors(), *other.factors()])

    # -- what a policy does ---------------------------------------------------------

    def fit(self, windows: WindowIndex) -> Stratifier:
        """The policy with everything that it has to learn from the windows."""
        return self

    @abc.abstractmethod
    def codes(self, windows: WindowIndex) -> Codes:
        """The codes of all windows of an index."""

    @abc.abstractmethod
    def code(self, instance: Mapping[str, Any]) -> int:
        """The code of one instance, as an instance splitter makes it."""

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        """What a stratum is, for a person, told from one of its windows."""
        return f"code {code}"

    def factors(self) -> list[Stratifier]:
        """The policies whose product this one is."""
        return [self]

    def map_transform(self, data: dict[str, Any], is_train: bool) -> dict[str, Any]:
        """Write the code of an instance into its field ``stratum``."""
        data[STRATUM] = self.code(data)
        return data

    def stratify(self, windows: WindowIndex) -> Strata:
        """The partition of the windows into strata.

        Raises
        ------
        TooManyStrataError, EmptyStratumError, FrequencyError
        """
        from pts_scott.strata.partition import Strata

        return Strata.build(self, require_windows(windows))

    def describe(self, windows: WindowIndex) -> pd.DataFrame:
        """A table of the strata: label, windows and weight of each."""
        return self.stratify(windows).table()

    def check_count(self, windows: WindowIndex) -> None:
        """Refuse to announce more strata than there are windows."""
        if self.count is not None and self.count > len(windows):
            raise TooManyStrataError(
                f"{self} asks for {self.count} strata, but there are only "
                f"{len(windows)} windows; ask for fewer strata."
            )

    def check_occupied(self, codes: np.ndarray) -> None:
        """Refuse an announced stratum that no window falls into."""
        if self.count is None:
            return
        empty = np.flatnonzero(np.bincount(codes, minlength=self.count) == 0).tolist()
        if empty:
            raise EmptyStratumError(
                f"{self} announces {self.count} strata, but no window falls into "
                f"number {shorten(empty)}; ask for fewer strata, or for ones that "
                "suit stride and length of the series."
            )

    def check_sizes(self, sizes: np.ndarray) -> None:
        """Refuse strata of sizes that the policy cannot mean."""

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Constructor arguments, from which GluonTS serialises the policy."""
        return (), self._arguments()

    @abc.abstractmethod
    def _arguments(self) -> dict[str, Any]: ...


def combine(factors: Sequence[Codes]) -> Codes:
    """The codes of a product of policies, from those of its factors.

    A single policy keeps its codes; those of several are scrambled, each in its own
    way, and summed, so that parts that look at time stay apart from the others.
    """
    if len(factors) == 1:
        return factors[0]
    total = Codes()
    for place, codes in enumerate(factors):
        parts = (codes.moments, codes.series, codes.windows)
        total += Codes(*(None if p is None else scramble(p, place) for p in parts))
    return total


def item_id_of(instance: Mapping[str, Any]) -> str:
    """The name of an instance's series."""
    if "item_id" not in instance:
        raise DataError(
            "an instance has no 'item_id', by which this policy tells the series apart; "
            "give each entry of the dataset one."
        )
    return str(instance["item_id"])


def positive_count(name: str, value: Any) -> int:
    """A number of strata: at least two, or there is nothing to stratify."""
    try:
        return whole_number(name, value, minimum=2)
    except ArgumentError:
        raise ArgumentError(
            f"{name}={value!r}: expected a whole number of strata of at least 2."
        ) from None


def stable_hash(label: Hashable) -> int:
    """A 64-bit hash that is the same in every process."""
    digest = hashlib.blake2b(repr(_plain(label)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _plain(label: Any) -> Any:
    """One spelling for labels that Python holds equal: 1, 1.0, True and numpy's 1."""
    if isinstance(label, tuple):
        return tuple(_plain(part) for part in label)
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, int | float) and label == label // 1:
        return int(label)
    return label


def scramble(codes: np.ndarray, salt: int = 0) -> np.ndarray:
    """SplitMix64: spread integers over 64 bits, one to one for a given salt."""
    with np.errstate(over="ignore"):
        z = codes.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15 * (salt + 1) % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))).astype(np.int64)
