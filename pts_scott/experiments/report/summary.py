"""Summarize the seeds of each setting and optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from pts_scott.experiments.results import (
    COST_COLUMNS,
    LOSS_COLUMNS,
    METRICS,
    STATUSES,
    sort_optimizers,
)

MEASURES = (*LOSS_COLUMNS.values(), *METRICS)


def summarize_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Summarize the runs over the seeds.

    Parameters
    ----------
    runs
        As returned by ``read_runs``.

    Returns
    -------
    pandas.DataFrame
        One row per setting and optimizer, by update rule: the number of ``seeds`` and
        how many of them ``finished``, ``diverged`` and ``failed``; ``outcome``, the same
        in words, empty if all finished; and over the finished seeds the mean and standard
        deviation (n − 1) of the losses and metrics, and the means of the costs.
    """
    shared = [
        *("setting", "model", "dataset", "loss", "batch_size", "optimizer", "method"),
        *("rule", "windows_per_step", "replacement"),
    ]
    rows = []
    for _, of_setting in runs.groupby("setting", sort=False):
        rules = dict(zip(of_setting["optimizer"], of_setting["rule"]))
        for optimizer in sort_optimizers(of_setting["optimizer"], rules):
            seeds = of_setting[of_setting["optimizer"] == optimizer]
            row = {key: seeds[key].iloc[0] for key in [*shared, "learning_rate", "gamma"]}
            row["seeds"] = len(seeds)
            row.update(
                {status: int((seeds["status"] == status).sum()) for status in STATUSES}
            )
            row["outcome"] = _describe_outcome(row)
            finished = seeds[seeds["status"] == "finished"]
            for column in MEASURES:
                row[f"{column}_mean"] = finished[column].mean(skipna=False)
                row[f"{column}_std"] = finished[column].std(ddof=1, skipna=False)
            row.update({key: finished[key].mean() for key in COST_COLUMNS})
            rows.append(row)
    measures = [f"{c}_{part}" for c in MEASURES for part in ("mean", "std")]
    counts = ["learning_rate", "gamma", "seeds", *STATUSES, "outcome"]
    columns = [*shared, *counts, *measures, *COST_COLUMNS]
    return pd.DataFrame(rows, columns=columns)


def lowest_rows(cells: pd.DataFrame, column: str) -> list[Any]:
    """Return the index labels where the column is lowest and all seeds finished."""
    values = cells.loc[cells["outcome"] == "", column]
    values = values[np.isfinite(values.astype(float))]
    return list(values.index[values == values.min()])


def _describe_outcome(row: Mapping[str, Any]) -> str:
    """Return how many seeds did not finish ("2 of 5 diverged"); empty if all did."""
    counts = [(row[status], status) for status in ("diverged", "failed")]
    return ", ".join(f"{n} of {row['seeds']} {status}" for n, status in counts if n)
