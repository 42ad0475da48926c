"""Learned strata: leaves of a regression tree from features of a window to its gradient.

Windows in one leaf have similar gradients, or at least gradients of similar size. The
tree is fitted to sketches of gradients, which a trainer measures during training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pts_scott._utils.arguments import whole_number
from pts_scott.data.offsets import moment_of
from pts_scott.data.window_index import WindowIndex
from pts_scott.errors import NotFittedError, StratificationError
from pts_scott.strata.codes import Codes, item_id_of
from pts_scott.strata.leaf_labels import leaf_labels
from pts_scott.strata.policy import Policy, strata_count
from pts_scott.strata.series_table import SeriesTable
from pts_scott.strata.window_features import WindowFeatures, instance_features

LEAF_WINDOWS = 8  # measured windows that a leaf has at least
DIRECTIONS = 8  # principal directions of the sketches that the tree is fitted to
PSEUDO_WINDOWS = 4  # windows that the mean of all counts as in the size of a series
CHUNK = 2**18  # windows whose features are held at once: about 50 MB
#: Mean log-size of a series' measured gradients, a feature beside those of `SERIES`.
SIZE = "series"


class Learned(Policy):
    """Strata by the leaf of a regression tree.

    ``fit_gradients`` learns ``names``, ``nodes`` and ``series``.

    Parameters
    ----------
    strata
        The largest number of strata.
    seed
        Seed of the tree, where splits are equally good.
    names
        Names of the features.
    nodes
        One row per node: feature (−1 in a leaf), threshold, and the nodes below and
        above it.
    series
        Features of each series by ``item_id``: those of `SERIES`, and the mean log-size
        of its measured gradients.
    """

    def __init__(
        self,
        strata: int,
        seed: int = 0,
        names: Sequence[str] | None = None,
        nodes: Sequence[Sequence[float]] | np.ndarray | None = None,
        series: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.strata = strata_count("strata", strata)
        self.seed = whole_number("seed", seed, minimum=0)
        self.names = None if names is None else tuple(names)
        self.nodes = None if nodes is None else np.asarray(nodes, dtype=np.float64)
        self.series = None if series is None else SeriesTable.of(series)
        self._features: tuple[WindowIndex, WindowFeatures] | None = None
        self._sizes: tuple[WindowIndex, np.ndarray] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what is copied and pickled: not what was prepared of an index."""
        state = {k: v for k, v in self.__dict__.items() if k != "_leaf_labels"}
        return {**state, "_features": None, "_sizes": None}

    @property
    def needs_gradients(self) -> bool:  # type: ignore[override]
        """Whether the policy has yet to be fitted to gradients of a model."""
        return self.nodes is None

    def features_of(self, windows: WindowIndex) -> WindowFeatures:
        """Return the features of an index, which are prepared once."""
        if self._features is None or self._features[0] is not windows:
            self._features = windows, WindowFeatures(windows)
        return self._features[1]

    def fit(self, windows: WindowIndex) -> Policy:
        self._require_nodes()
        return self

    def fit_gradients(
        self, windows: WindowIndex, numbers: np.ndarray, sketches: np.ndarray
    ) -> Policy:
        if not self.needs_gradients:
            return self
        make_tree = tree_class()
        features = self.features_of(windows)
        members, _ = windows.rows(numbers)
        # Series of one name are one series here: instances know no more than the name.
        same = features.namesakes
        sizes = _series_sizes(sketches, same[members], len(same))[same]
        leaves = min(self.strata, max(2, len(numbers) // LEAF_WINDOWS))
        tree = make_tree(
            max_leaf_nodes=leaves,
            min_samples_leaf=min(LEAF_WINDOWS, max(1, len(numbers) // 2)),
            random_state=self.seed % 2**32,
        )
        inputs = np.column_stack([features.at(numbers), sizes[members]])
        tree.fit(inputs.astype(np.float32), _principal(sketches))
        t = tree.tree_
        columns = t.feature, t.threshold, t.children_left, t.children_right
        nodes = np.stack(columns, axis=1).astype(np.float64)
        nodes[t.children_left < 0, 0] = -1
        names = (*features.names, SIZE)
        rows = np.column_stack([features.series, sizes])
        series = SeriesTable(windows.series.item_ids, rows)
        fitted = Learned(self.strata, self.seed, names, nodes, series)
        fitted._features, fitted._sizes = self._features, (windows, sizes)
        return fitted

    def learned_state(self) -> list[dict[str, Any]]:
        series = None if self.series is None else self.series.state_dict()
        return [{**self._plain_arguments(), "series": series}]

    def with_learned(self, state: list[dict[str, Any]]) -> Policy:
        if not self.needs_gradients:
            return self
        (arguments,) = state
        table = arguments["series"]
        series = None if table is None else SeriesTable.from_state(table)
        fitted = Learned(**{**arguments, "series": series})
        fitted._features = self._features
        return fitted

    def codes(self, windows: WindowIndex) -> Codes:
        return Codes(windows=self._codes(windows, range(len(windows))))

    def codes_at(self, windows: WindowIndex, numbers: np.ndarray) -> np.ndarray:
        return self._codes(windows, numbers)

    def _codes(self, windows: WindowIndex, numbers: np.ndarray | range) -> np.ndarray:
        """Return the codes of some windows; a range is not expanded as a whole."""
        nodes = self._require_nodes()
        features = self.features_of(windows)
        if (*features.names, SIZE) != self.names:
            raise StratificationError(
                f"{self} was fitted to windows with the features "
                f"{', '.join(self.names or ())}; these have {', '.join(features.names)}."
            )
        sizes = self._sizes_of(windows)
        codes = np.empty(len(numbers), dtype=np.int16 if len(nodes) < 2**15 else np.int64)
        for begin in range(0, len(numbers), CHUNK):
            part = np.asarray(numbers[begin : begin + CHUNK], dtype=np.int64)
            members, _ = windows.rows(part)
            rows = np.column_stack([features.at(part), sizes[members]])
            codes[begin : begin + CHUNK] = self._leaves(rows.astype(np.float32))
        return codes

    def _sizes_of(self, windows: WindowIndex) -> np.ndarray:
        """Return the feature ``SIZE`` of each series of an index."""
        if self._sizes is None or self._sizes[0] is not windows:
            self._sizes = windows, self._series_rows(windows.series.item_ids)[:, -1]
        return self._sizes[1]

    def _series_rows(self, item_ids: tuple[str, ...]) -> np.ndarray:
        assert self.series is not None
        try:
            return self.series.rows_of(item_ids)
        except KeyError as error:
            raise StratificationError(
                f"{self} uses features of the series, and knows no series "
                f"{error.args[0]!r}: use it with the series that it was fitted to."
            ) from None

    def code(self, instance: Mapping[str, Any]) -> int:
        self._require_nodes()
        *series, size = self._series_rows((item_id_of(instance),))[0]
        moment = moment_of(instance["forecast_start"])
        assert self.names is not None
        known = instance_features(instance, moment, np.array(series), self.names[:-1])
        row = np.append(known, np.float32(size))
        return int(self._leaves(row[None])[0])

    def label(self, item_id: str, moment: pd.Timestamp, code: int) -> str:
        return self._leaf_labels[code]

    def leaf_labels(self) -> dict[int, str]:
        """Return what the windows of each leaf have in common, by code."""
        return dict(self._leaf_labels)

    @cached_property
    def _leaf_labels(self) -> dict[int, str]:
        nodes = self._require_nodes()
        assert self.names is not None
        assert self.series is not None
        return leaf_labels(nodes, self.names, {SIZE: self.series.column(-1)})

    def _leaves(self, features: np.ndarray) -> np.ndarray:
        """Return the leaf of each row of features."""
        nodes = self._require_nodes()
        own = np.arange(len(nodes))
        is_leaf = nodes[:, 0] < 0
        feature = np.where(is_leaf, 0, nodes[:, 0]).astype(np.int64)
        threshold = nodes[:, 1]
        below, above = (  # a leaf leads to itself
            np.where(is_leaf, own, nodes[:, side]).astype(np.int64) for side in (2, 3)
        )
        values, width = features.reshape(-1), features.shape[1]
        first = np.arange(len(features), dtype=np.int64) * width
        place = np.zeros(len(features), dtype=np.int64)
        while not is_leaf[place].all():
            low = values[first + feature[place]] <= threshold[place]
            place = np.where(low, below[place], above[place])
        return place

    def _require_nodes(self) -> np.ndarray:
        if self.nodes is None:
            raise NotFittedError(
                f"{self} has no strata yet: they are found from gradients during "
                "training, by method='auto' or method='stratified'; afterwards, "
                "trainer.strata.stratifier is the fitted policy."
            )
        return self.nodes

    def _arguments(self) -> dict[str, Any]:
        series = None if self.series is None else dict(self.series)
        return {**self._plain_arguments(), "series": series}

    def _plain_arguments(self) -> dict[str, Any]:
        """Return all arguments but the series."""
        return {
            "strata": self.strata,
            "seed": self.seed,
            "names": None if self.names is None else list(self.names),
            "nodes": None if self.nodes is None else self.nodes.tolist(),
        }

    def __repr__(self) -> str:
        return f"Stratifier.learned({self.strata})"


def tree_class() -> Any:
    """Return scikit-learn's regression tree, whose first import takes a while."""
    from sklearn.tree import DecisionTreeRegressor

    return DecisionTreeRegressor


def _series_sizes(sketches: np.ndarray, members: np.ndarray, count: int) -> np.ndarray:
    """Return the mean log-size of each series' gradients, shrunk towards that of all."""
    squares = np.square(sketches).sum(axis=1)
    sizes = 0.5 * np.log(np.maximum(squares, np.finfo(np.float64).tiny))
    counts = np.bincount(members, minlength=count)
    totals = np.bincount(members, weights=sizes, minlength=count)
    return (totals + PSEUDO_WINDOWS * sizes.mean()) / (counts + PSEUDO_WINDOWS)


def _principal(sketches: np.ndarray) -> np.ndarray:
    """Return sketches along their principal directions, which carry most of them."""
    scale = np.abs(sketches).max() or 1.0
    scaled = sketches / scale
    _, _, directions = np.linalg.svd(scaled - scaled.mean(axis=0), full_matrices=False)
    return scaled @ directions[:DIRECTIONS].T
