"""Stratifier: the public class that creates stratification policies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pts_scott.strata.calendar import Calendar
from pts_scott.strata.kmeans import KMeans
from pts_scott.strata.learned import Learned
from pts_scott.strata.policies import (
    BySeries,
    Custom,
    Finest,
    Periodic,
    RandomHash,
    Ranges,
)
from pts_scott.strata.policy import Policy
from pts_scott.strata.policy_text import parse_policy


class Stratifier(Policy):
    """Makes policies that divide windows into strata; subclass it to write your own.

    Examples
    --------
    >>> Stratifier.calendar("weekday", "season")
    Stratifier.calendar('weekday', 'season')
    >>> Stratifier.ranges(4) * Stratifier.series()
    Stratifier.ranges(4) * Stratifier.series()

    Tag the instances of a GluonTS pipeline:

    >>> chain = splitter + Stratifier.calendar("weekday")    # doctest: +SKIP
    """

    @classmethod
    def __subclasshook__(cls, subclass: type) -> bool:
        # Users expect what the factories return to be Stratifiers, but a policy that
        # the factories import cannot inherit from their class.
        if cls is Stratifier and Policy in subclass.__mro__:  # issubclass would recurse
            return True
        return NotImplemented

    @staticmethod
    def calendar(*parts: str) -> Policy:
        """Stratify by parts of the forecast start's date, hashed as a tuple.

        Parameters
        ----------
        *parts
            Any of "hour", "weekday", "weekend", "day" (of the month), "week" (of the
            year), "month", "quarter", "season" and "year". A season is a block of
            three months counted through time: two years have eight.
        """
        if len(parts) == 1 and not isinstance(parts[0], str):
            return Calendar(tuple(parts[0]))  # a list of parts is accepted, too
        return Calendar(parts)

    @staticmethod
    def periodic(period: int, unit: int = 1, freq: str | None = None) -> Policy:
        """Stratify by ``(t0 // unit) mod period``, with t0 in steps since 1970.

        Parameters
        ----------
        period
            Number of strata.
        unit
            Number of consecutive steps that stay together, e.g. 24 to count days in an
            hourly series.
        freq
            Needed only to tag instances whose start is a Timestamp without fitting.
        """
        return Periodic(period, unit, freq)

    @staticmethod
    def ranges(count: int) -> Policy:
        """Stratify by dividing the span of forecast starts into equal ranges of time.

        Parameters
        ----------
        count
            Number of ranges.
        """
        return Ranges(count)

    @staticmethod
    def series() -> Policy:
        """Use one stratum per series, identified by its ``item_id``.

        Entries with the same ``item_id`` share a stratum.
        """
        return BySeries()

    @staticmethod
    def random(count: int, seed: int = 0) -> Policy:
        """Stratify by an arbitrary hash of the window: SCSG's policy.

        Parameters
        ----------
        count
            Number of strata.
        seed
            Another seed gives another hash.
        """
        return RandomHash(count, seed)

    @staticmethod
    def finest() -> Policy:
        """Use one stratum per window: SVRG's policy."""
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
    ) -> Policy:
        """Stratify by k-means on cheap features of the window's context.

        Parameters
        ----------
        count
            Number of clusters.
        features
            Any of "spectrum", "level", "spread" and "zeros", or a function from
            contexts of shape (windows, steps) to features (windows, features).
        seed
            Seed of the clustering.
        """
        return KMeans(count, features, seed)

    @staticmethod
    def learned(strata: int = 32, seed: int = 0) -> Policy:
        """Stratify by strata that are found from gradients of the model.

        They are the leaves of a regression tree from features of a window (its level,
        spread, last values, zeros, series and calendar) to its gradient, and are found
        anew at each measurement during training.

        Parameters
        ----------
        strata
            The largest number of strata.
        seed
            Seed of the tree.
        """
        return Learned(strata, seed)

    @staticmethod
    def custom(
        function: Callable[[str, pd.Timestamp, Mapping[str, Any]], Hashable],
    ) -> Policy:
        """Stratify by a user-defined function.

        Parameters
        ----------
        function
            Called with item id, forecast start (a Timestamp) and the instance: its
            ``past_target`` and ``future_target``, and the features of its series as the
            dataset gives them, such as ``past_feat_dynamic_real`` and
            ``future_feat_dynamic_real``, of shape (steps, features), or
            ``feat_static_cat``. Two windows are in the same stratum if it returns equal
            values for both: a number, a string, a date, or a tuple of them.

        Examples
        --------
        Windows whose forecast range has a holiday, the first known feature:

        >>> Stratifier.custom(
        ...     lambda item_id, start, window: bool(
        ...         window["future_feat_dynamic_real"][:, 0].any()
        ...     )
        ... )
        Stratifier.custom(<lambda>)
        """
        return Custom(function)

    @staticmethod
    def parse(text: str) -> Policy:
        """Return the policy that a text describes, as in configs.

        Parameters
        ----------
        text
            Any product of the policies above except `custom`.

        Examples
        --------
        >>> Stratifier.parse("ranges(4) * series()")
        Stratifier.ranges(4) * Stratifier.series()
        """
        return parse_policy(text, _TEXT_FACTORIES)


# A function cannot be written in a text, so "custom" is not among them.
_TEXT_FACTORIES: dict[str, Callable[..., Policy]] = {
    name: getattr(Stratifier, name)
    for name in (
        "calendar",
        "periodic",
        "ranges",
        "series",
        "random",
        "finest",
        "kmeans",
        "learned",
    )
}
