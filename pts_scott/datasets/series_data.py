"""Series in memory: what ``load`` returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from gluonts.dataset.common import ListDataset

from pts_scott._utils.arguments import real_number, whole_number
from pts_scott.data.timeline import Timeline
from pts_scott.datasets.data_report import DataReport, build_report
from pts_scott.datasets.features import Features
from pts_scott.datasets.formatting import format_size
from pts_scott.datasets.frequency import gluonts_frequency
from pts_scott.datasets.raw_series import RawSeries
from pts_scott.datasets.time_split import TimeSplit, split_by_time


@dataclass(frozen=True, eq=False, repr=False)
class SeriesData:
    """Series in memory, all of one frequency: what `load` returns.

    Parameters
    ----------
    name
        Of the data, in reports and results.
    freq
        Frequency of the series, as a pandas alias.
    item_ids
        Name of each series.
    starts
        First step of each series.
    targets
        Values of each series; NaN where one is missing.
    dropped
        Names of the constant series that were dropped.
    note
        Remark about the origin of the data, shown in the report.
    features
        Features of the series; None if there are none.
    """

    name: str
    freq: str
    item_ids: tuple[str, ...]
    starts: tuple[pd.Timestamp, ...]
    targets: tuple[np.ndarray, ...]
    dropped: tuple[str, ...] = ()
    note: str = ""
    features: Features | None = None

    @classmethod
    def from_raw(
        cls,
        name: str,
        raw: RawSeries,
        note: str = "",
        features: Features | None = None,
    ) -> SeriesData:
        """Give series that were read a name."""
        return cls(
            name,
            raw.freq,
            tuple(raw.item_ids),
            tuple(raw.starts),
            tuple(raw.targets),
            note=note,
            features=features,
        )

    def __len__(self) -> int:
        """Return the number of series."""
        return len(self.targets)

    def __repr__(self) -> str:
        size = format_size(self.targets)
        return f"SeriesData({self.name!r}, freq={self.freq!r}, {size})"

    def entries(self, horizon: int = 0) -> list[dict[str, Any]]:
        """Return the series as GluonTS entries, with Timestamps as starts.

        Parameters
        ----------
        horizon
            Steps after the target for which features have to be known: 0 for training,
            the prediction length for forecasts.

        Returns
        -------
        list of dict
            One entry per series, with ``item_id``, ``start``, ``target`` and features.
        """
        entries: list[dict[str, Any]] = [
            {"item_id": item_id, "start": start, "target": target}
            for item_id, start, target in zip(self.item_ids, self.starts, self.targets)
        ]
        if self.features is not None:
            for row, entry in enumerate(entries):
                steps, name = len(entry["target"]), entry["item_id"]
                entry |= self.features.entry(row, name, steps, horizon)
        return entries

    def dataset(self, horizon: int = 0) -> Any:
        """Return the series as a GluonTS dataset, for estimators and predictors.

        Parameters
        ----------
        horizon
            See `entries`: for a forecast with known features, the prediction length.

        Returns
        -------
        ListDataset
            The entries in GluonTS' own class.
        """
        return ListDataset(self.entries(horizon), freq=gluonts_frequency(self.freq))

    def estimator_arguments(self, estimator: type) -> dict[str, Any]:
        """Return the arguments by which an estimator class learns of the features.

        Parameters
        ----------
        estimator
            An estimator class of either library, e.g. ``DeepAREstimator``.

        Returns
        -------
        dict
            E.g. ``{"num_feat_dynamic_real": 1}``. A warning names the features that the
            estimator cannot use.
        """
        return {} if self.features is None else self.features.arguments(estimator)

    def pick(self, rows: Sequence[int]) -> SeriesData:
        """Return some of the series.

        Parameters
        ----------
        rows
            Their positions.
        """
        return replace(
            self,
            item_ids=tuple(self.item_ids[row] for row in rows),
            starts=tuple(self.starts[row] for row in rows),
            targets=tuple(self.targets[row] for row in rows),
            features=None if self.features is None else self.features.pick(rows),
        )

    def timeline(self) -> Timeline:
        """Return the moments of all steps."""
        return Timeline.build(self.starts, [len(t) for t in self.targets], self.freq)

    def span(self) -> tuple[pd.Timestamp, pd.Timestamp]:
        """Return the first and the last moment of all series."""
        moments = self.timeline().moments
        return moments.min(), moments.max()

    def report(self) -> DataReport:
        """Count the missing values and the zeros; ``print`` the result."""
        return build_report(self)

    def split(
        self,
        context_length: int,
        prediction_length: int,
        train: float = 0.8,
        tune: float = 0.1,
    ) -> TimeSplit:
        """Split by time: training, test and tuning ranges, the same for all series.

        Parameters
        ----------
        context_length, prediction_length
            Of the windows; every part must have at least one.
        train
            Share of all steps, from the first on, used for training.
        tune
            Share of the training range, at its end, on which tuning evaluates.

        Returns
        -------
        TimeSplit
            Its parts ``train``, ``test``, ``fit``, ``tuning`` and ``backtest`` are
            `SeriesData`.

        Raises
        ------
        SplitError
            If a part has no window.
        """
        return split_by_time(
            self,
            whole_number("context_length", context_length),
            whole_number("prediction_length", prediction_length),
            real_number("train", train, 0, 1, exclusive=True),
            real_number("tune", tune, 0, 1, exclusive=True),
        )
