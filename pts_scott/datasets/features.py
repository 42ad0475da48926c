"""Features of series: of each step, known in advance or not, and of each series."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from pts_scott._utils.arguments import nearest
from pts_scott._utils.text import quote, shorten
from pts_scott.datasets.columns import ITEM_IDS, find_column
from pts_scott.errors import ArgumentError, DataError, FileLayoutError, ScottWarning


@dataclass(frozen=True, eq=False)
class Features:
    """Features of series.

    Parameters
    ----------
    known_names, past_names, real_names, category_names
        Names of the features: of each step, known in advance; of each step, known only
        when it has passed; of each series, numbers and categories.
    known
        For each series, an array of shape (features, steps), with as many steps beyond
        the target as are known.
    past
        For each series, an array of shape (features, steps).
    reals, categories
        Of shape (series, features); categories are numbered from 0.
    cardinalities
        How many categories each feature has.
    """

    known_names: tuple[str, ...] = ()
    past_names: tuple[str, ...] = ()
    real_names: tuple[str, ...] = ()
    category_names: tuple[str, ...] = ()
    known: tuple[np.ndarray, ...] = ()
    past: tuple[np.ndarray, ...] = ()
    reals: np.ndarray | None = None
    categories: np.ndarray | None = None
    cardinalities: tuple[int, ...] = ()

    def names(self) -> list[str]:
        """Return the names of all features."""
        names = self.known_names + self.past_names
        return [*names, *self.real_names, *self.category_names]

    def pick(self, rows: Sequence[int]) -> Features:
        """Return the features of some of the series."""
        rows = list(rows)
        return replace(
            self,
            known=tuple(self.known[row] for row in rows) if self.known else (),
            past=tuple(self.past[row] for row in rows) if self.past else (),
            reals=None if self.reals is None else self.reals[rows],
            categories=None if self.categories is None else self.categories[rows],
        )

    def cut(self, spans: Sequence[tuple[int, int]], to_end: bool) -> Features:
        """Return the features from step ``begin`` to ``end`` − 1 of each series.

        ``to_end`` keeps what is known beyond the target.
        """
        known = zip(self.known, spans, strict=True) if self.known else ()
        past = zip(self.past, spans, strict=True) if self.past else ()
        return replace(
            self,
            known=tuple(x[:, low : None if to_end else high] for x, (low, high) in known),
            past=tuple(x[:, low:high] for x, (low, high) in past),
        )

    def entry(self, row: int, item_id: str, steps: int, horizon: int) -> dict[str, Any]:
        """Return a series' features as fields of a GluonTS entry.

        Parameters
        ----------
        row, item_id
            The series.
        steps, horizon
            Steps of the target, and steps beyond it that have to be known.

        Raises
        ------
        DataError
            If the known features end before the horizon.
        """
        fields: dict[str, Any] = {}
        if self.known_names:
            known = self.known[row]
            if known.shape[1] < steps + horizon:
                raise DataError(
                    f"the known features of series {quote(item_id)} "
                    f"({shorten(list(self.known_names))}) reach {known.shape[1] - steps} "
                    f"steps beyond the target, but a forecast needs {horizon}; append "
                    "rows with their values, and without a target."
                )
            fields["feat_dynamic_real"] = known[:, : steps + horizon].astype(np.float32)
        if self.past_names:
            fields["past_feat_dynamic_real"] = self.past[row].astype(np.float32)
        if self.reals is not None:
            fields["feat_static_real"] = self.reals[row].astype(np.float32)
        if self.categories is not None:
            fields["feat_static_cat"] = self.categories[row]
        return fields

    def arguments(self, estimator: type) -> dict[str, Any]:
        """Return the arguments by which an estimator class learns of the features.

        Features that it has no argument for are not used; a warning names them.
        """
        parameters = inspect.signature(estimator).parameters
        # PyTorchTS' TFT names fields of entries instead.
        by_field = "dynamic_feature_dims" in parameters
        groups = self._fields() if by_field else self._sizes()
        found: dict[str, Any] = {}
        unused: list[str] = []
        for names, arguments in groups:
            own = {k: v for k, v in arguments.items() if k in parameters and names}
            for name, value in own.items():  # two groups may have entries in one dict
                found[name] = found[name] | value if name in found else value
            unused += names if names and not own else ()
        if unused:
            warnings.warn(
                f"{estimator.__name__} has no argument for {shorten(unused)}, and does "
                f"not use {'it' if len(unused) == 1 else 'them'}.",
                ScottWarning,
                stacklevel=3,
            )
        return found

    def _sizes(self) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
        """Return the names of each group of features, and arguments with its size."""
        return [
            (
                self.known_names,
                {
                    "num_feat_dynamic_real": len(self.known_names),
                    "dynamic_dims": [len(self.known_names)],
                    "use_feat_dynamic_real": True,
                },
            ),
            (self.past_names, {"past_dynamic_dims": [len(self.past_names)]}),
            (
                self.real_names,
                {
                    "num_feat_static_real": len(self.real_names),
                    "static_dims": [len(self.real_names)],
                    "use_feat_static_real": True,
                },
            ),
            (
                self.category_names,
                {
                    "num_feat_static_cat": len(self.category_names),
                    "cardinality": list(self.cardinalities),
                    "static_cardinalities": list(self.cardinalities),
                    "use_feat_static_cat": True,
                },
            ),
        ]

    def _fields(self) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
        """Return the names of each group of features, and arguments with its field."""
        known, past = "feat_dynamic_real", "past_feat_dynamic_real"
        categories: dict[str, Any] = {}
        if len(self.cardinalities) == 1:  # a field holds one category
            categories = {
                "static_cardinalities": {"feat_static_cat": self.cardinalities[0]}
            }
        return [
            (self.known_names, {"dynamic_feature_dims": {known: len(self.known_names)}}),
            (
                self.past_names,
                {
                    "dynamic_feature_dims": {past: len(self.past_names)},
                    "past_dynamic_features": [past],
                },
            ),
            (
                self.real_names,
                {"static_feature_dims": {"feat_static_real": len(self.real_names)}},
            ),
            (self.category_names, categories),
        ]


def check_features(
    features: Sequence[str], others: Sequence[str], known: list[str], table: str
) -> None:
    """Raise unless columns of features exist and are no others.

    Parameters
    ----------
    features, others
        Columns of features, and of timestamps, names and targets.
    known
        All columns.
    table
        Name of the table, for messages.
    """
    for name in features:
        if name not in known:
            raise FileLayoutError(
                f"the feature {name!r} is not a column of {table}. {nearest(name, known)}"
            )
        if name in others:
            raise ArgumentError(
                f"{name!r} is a feature, but also the column of timestamps, names or "
                "targets; a column is one of them."
            )


def check_complete(
    values: np.ndarray, names: Sequence[str], item_id: str, moment: Callable[[int], Any]
) -> None:
    """Raise if a feature of a series is missing at some step.

    Parameters
    ----------
    values
        Of shape (features, steps).
    names, item_id
        Of the features, and of the series.
    moment
        Returns when a step begins.
    """
    missing = np.isnan(values)
    if missing.any():
        feature, step = np.argwhere(missing)[0].tolist()
        raise DataError(
            f"{names[feature]!r} of series {quote(item_id)} is missing at "
            f"{moment(step)}; models need every value of a feature: fill it, e.g. with "
            "frame.groupby(item_id).ffill(), and add rows that are absent."
        )


def with_static(
    features: Features, table: Any, item_ids: Sequence[str], item_id: str | None = None
) -> Features:
    """Add the features of each series, from a table with one row per series.

    Parameters
    ----------
    features
        Those of each step.
    table
        A frame with the names of the series in a column or in the index; numbers become
        real features, text and categories numbered ones.
    item_ids
        Names of the series.
    item_id
        The column of the names, if the table has it; by default "item_id" or "unique_id".

    Raises
    ------
    ArgumentError, FileLayoutError
    """
    if not isinstance(table, pd.DataFrame):
        raise ArgumentError(f"static={quote(table)}: expected a DataFrame.")
    table = table.set_axis([str(name) for name in table.columns], axis=1)
    given = item_id if item_id in table.columns else None
    column = find_column("item_id", given, ITEM_IDS, list(table.columns), "static")
    if column is not None:
        table = table.set_index(column)
    table = table.set_axis(table.index.astype(str), axis=0)
    if table.index.has_duplicates:
        repeated = list(table.index[table.index.duplicated()].unique())
        raise FileLayoutError(f"static has several rows for {shorten(repeated)}.")
    absent = [name for name in item_ids if name not in table.index]
    if absent:
        raise FileLayoutError(
            f"static has no row for series {shorten(absent)}; every series needs one, "
            f"named in a column {item_id or ITEM_IDS[0]!r} or in the index."
        )
    table = table.loc[list(item_ids)]
    holes = list(table.columns[table.isna().any()])
    if holes:
        raise FileLayoutError(f"static has no value of {shorten(holes)} for some series.")
    reals = [c for c in table.columns if table[c].dtype.kind in "iuf"]
    others = [c for c in table.columns if c not in reals]
    coded = [pd.factorize(table[c].astype(str), sort=True) for c in others]
    return replace(
        features,
        real_names=tuple(reals),
        category_names=tuple(others),
        reals=table[reals].to_numpy(np.float64) if reals else None,
        categories=np.stack([codes for codes, _ in coded], axis=1) if coded else None,
        cardinalities=tuple(len(found) for _, found in coded),
    )
