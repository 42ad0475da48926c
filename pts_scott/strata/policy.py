"""Policy, the base class of all stratification policies, and the product of policies.

One policy is used in two ways. As a GluonTS ``Transformation`` after an instance
splitter it writes ``stratum`` into each instance; over a ``WindowIndex`` it computes
the same codes for all windows at once.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from gluonts.transform import MapTransformation

from pts_scott._utils.arguments import whole_number
from pts_scott._utils.text import shorten
from pts_scott.data.window_index import WindowIndex, require_windows
from pts_scott.errors import ArgumentError, EmptyStratumError, TooManyStrataError
from pts_scott.strata.codes import Codes, combine, scramble
from pts_scott.strata.partition import Strata

STRATUM = "stratum"


class Policy(MapTransformation):
    """Base class of all policies: which stratum a window belongs to.

    `Stratifier` makes them. A product of policies, ``a * b``, puts two windows into the
    same stratum if both factors do. After an instance splitter of GluonTS, a policy is a
    ``Transformation`` that writes ``stratum`` into each instance.
    """

    #: Number of strata that the policy declares; None if it depends on the windows.
    count: int | None = None
    #: Whether the policy has yet to be fitted to gradients of a model.
    needs_gradients: bool = False

    def fit(self, windows: WindowIndex) -> Policy:
        """Return the policy with everything it learns from the windows.

        Parameters
        ----------
        windows
            The windows, e.g. of ``estimator.create_windows(dataset)``.
        """
        return self

    def fit_gradients(
        self, windows: WindowIndex, numbers: np.ndarray, sketches: np.ndarray
    ) -> Policy:
        """Return the policy with everything it learns from windows and gradients.

        Parameters
        ----------
        windows
            The index.
        numbers
            Windows whose gradient was measured.
        sketches
            Projections of these gradients, of shape (windows, dimensions).
        """
        return self.fit(windows)

    def learned_state(self) -> list[dict[str, Any]]:
        """Return what was learned from gradients, as plain values, for each factor."""
        return []

    def with_learned(self, state: list[dict[str, Any]]) -> Policy:
        """Return the policy with what `learned_state` returned."""
        return self

    @abc.abstractmethod
    def codes(self, windows: WindowIndex) -> Codes:
        """Return the codes of all windows of an index.

        Parameters
        ----------
        windows
            The index.
        """

    def codes_at(self, windows: WindowIndex, numbers: np.ndarray) -> np.ndarray:
        """Return the codes of some windows of an index."""
        return self.codes(windows).at(numbers, *windows.rows(numbers))

    @abc.abstractmethod
    def code(self, instance: Mapping[str, Any]) -> int:
        """Return the code of one instance, as produced by an instance splitter.

        Parameters
        ----------
        instance
            The instance, with ``item_id`` and ``forecast_start``.
        """

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        """Return a readable label of a stratum, given one of its windows.

        Parameters
        ----------
        item_id, moment
            Series and forecast start of the window.
        code
            Its code.
        """
        return f"code {code}"

    def factors(self) -> list[Policy]:
        """Return the policies whose product this one is."""
        return [self]

    def __mul__(self, other: Policy) -> Policy:
        """Return the product: windows share a stratum if they do in both policies."""
        if not isinstance(other, Policy):
            return NotImplemented
        return Product([*self.factors(), *other.factors()])

    def map_transform(self, data: dict[str, Any], is_train: bool) -> dict[str, Any]:
        """Write the code of an instance into its field ``stratum``."""
        data[STRATUM] = self.code(data)
        return data

    def stratify(self, windows: WindowIndex) -> Strata:
        """Return the partition of the windows into strata.

        Parameters
        ----------
        windows
            The windows, e.g. of ``estimator.create_windows(dataset)``.

        Returns
        -------
        Strata
            The strata, with their weights and labels.

        Raises
        ------
        TooManyStrataError
            If the policy asks for more strata than there are windows.
        EmptyStratumError
            If no window falls into a stratum that the policy declares.
        FrequencyError
            If the policy does not suit the frequency, e.g. hours of daily series.
        """
        return Strata.build(self, require_windows(windows))

    def describe(self, windows: WindowIndex) -> pd.DataFrame:
        """Return a table with the label, windows and weight of each stratum.

        Parameters
        ----------
        windows
            As for `stratify`.
        """
        return self.stratify(windows).table()

    def check_count(self, windows: WindowIndex) -> None:
        """Raise if the policy declares more strata than there are windows."""
        if self.count is not None and self.count > len(windows):
            raise TooManyStrataError(
                f"{self} asks for {self.count} strata, but there are only "
                f"{len(windows)} windows; ask for fewer strata."
            )

    def check_occupied(self, codes: np.ndarray) -> None:
        """Raise if no window falls into a declared stratum."""
        if self.count is None:
            return
        empty = np.flatnonzero(np.bincount(codes, minlength=self.count) == 0).tolist()
        if empty:
            raise EmptyStratumError(
                f"{self} declares {self.count} strata, but no window falls into "
                f"number {shorten(empty)}; ask for fewer strata, or for strata that "
                "suit the stride and the length of the series."
            )

    def check_sizes(self, sizes: np.ndarray) -> None:
        """Raise if the policy does not allow strata of these sizes."""

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the constructor arguments, from which GluonTS serialises the policy."""
        return (), self._arguments()

    @abc.abstractmethod
    def _arguments(self) -> dict[str, Any]: ...


class Product(Policy):
    """Policy under which windows share a stratum if they do under every factor."""

    def __init__(self, factors: Sequence[Policy]) -> None:
        self._factors = list(factors)

    def factors(self) -> list[Policy]:
        return self._factors

    def fit(self, windows: WindowIndex) -> Policy:
        return Product([factor.fit(windows) for factor in self._factors])

    @property
    def needs_gradients(self) -> bool:  # type: ignore[override]
        """Whether a factor has yet to be fitted to gradients of a model."""
        return any(factor.needs_gradients for factor in self._factors)

    def fit_gradients(
        self, windows: WindowIndex, numbers: np.ndarray, sketches: np.ndarray
    ) -> Policy:
        fitted = (f.fit_gradients(windows, numbers, sketches) for f in self._factors)
        return Product(list(fitted))

    def learned_state(self) -> list[dict[str, Any]]:
        return [state for factor in self._factors for state in factor.learned_state()]

    def with_learned(self, state: list[dict[str, Any]]) -> Policy:
        rest = iter(state)
        factors = []
        for factor in self._factors:
            own = list(itertools.islice(rest, len(factor.learned_state())))
            factors.append(factor.with_learned(own))
        return Product(factors)

    def codes(self, windows: WindowIndex) -> Codes:
        return combine([factor.codes(windows) for factor in self._factors])

    def codes_at(self, windows: WindowIndex, numbers: np.ndarray) -> np.ndarray:
        parts = [Codes(windows=f.codes_at(windows, numbers)) for f in self._factors]
        codes = combine(parts).windows
        assert codes is not None
        return codes

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


def strata_count(name: str, value: Any) -> int:
    """Return ``value`` if it is a number of strata: a whole number of at least 2."""
    try:
        return whole_number(name, value, minimum=2)
    except ArgumentError:
        raise ArgumentError(
            f"{name}={value!r}: expected a whole number of strata of at least 2."
        ) from None
