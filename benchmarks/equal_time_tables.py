"""Tables of `equal_time.py`: losses at the library's time, and when they are reached."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from pts_scott.experiments.report.curves import mean_curve, tail_mean
from pts_scott.experiments.report.formatting import format_mean
from pts_scott.experiments.report.reach import first_reached
from pts_scott.experiments.results import LOSS_COLUMNS

NEVER = "not reached"
TAIL = 1 / 6  # a loss "at the end" is the mean over this last share


def summarise(curves: pd.DataFrame, goal_of: str) -> list[dict[str, Any]]:
    """Return a row per setting and side: losses at equal time, and times to the goal.

    A loss is reached by the rule of docs/results.md: at the first point from which the
    mean curve over the seeds is at or below the goal, and stays there on average.

    Parameters
    ----------
    curves
        The losses along every run, as `equal_time.py` stores them.
    goal_of
        The side whose loss at the end is the goal.
    """
    rows = []
    for name, whole in curves.groupby("setting", sort=False):
        library = whole[whole["side"] == goal_of]
        total = library.groupby("seed")["seconds"].max().mean()
        for side, own in whole.groupby("side", sort=False):
            seeds = own.groupby("seed")
            compilation = seeds["compile_seconds"].max().fillna(0.0).mean()
            row: dict[str, Any] = {
                "setting": name,
                "side": side,
                "seeds": seeds.ngroups,
                "library, s": total,
                "compilation, s": compilation,
                "steps": seeds["step"].max().mean(),
            }
            for loss, column in LOSS_COLUMNS.items():
                # At the end of the seconds that the library took, compilation included.
                ends = [
                    tail_mean(c[["seconds", column]].to_numpy(float), total, TAIL)
                    for _, c in seeds
                ]
                deviation = np.std(ends, ddof=1) if len(ends) > 1 else math.nan
                row[f"{loss} loss"] = format_mean(np.mean(ends), deviation)
                theirs = mean_curve(library, "seconds", column)[["x", "mean"]].to_numpy()
                goal = tail_mean(theirs, theirs[-1, 0], TAIL)
                reached = first_reached(mean_curve(own, "seconds", column), goal)
                row[f"{loss}, s"] = _seconds(reached)
                row[f"{loss}, factor"] = total / reached
                trained = reached - compilation
                row[f"{loss}, compilation aside"] = total / trained
            rows.append(row)
    return rows


def _seconds(value: float) -> str:
    return NEVER if math.isnan(value) else f"{value:.1f}"


COLUMNS = {
    "setting": "{}",
    "side": "{}",
    "steps": "{:,.0f}",
    "compilation, s": "{:.1f}",
    **{
        name: form
        for loss in LOSS_COLUMNS
        for name, form in (
            (f"{loss} loss", "{}"),
            (f"{loss}, s", "{}"),
            (f"{loss}, factor", "{:.1f} ×"),
            (f"{loss}, compilation aside", "{:.1f} ×"),
        )
    },
}
