"""Tables of `equal_time.py`: losses at the library's time, and when they are reached."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
from tables import markdown

from pts_scott.experiments.report.curves import mean_curve, tail_mean
from pts_scott.experiments.report.formatting import format_mean
from pts_scott.experiments.report.reach import NOT_REACHED, first_reached
from pts_scott.experiments.results import LOSS_COLUMNS


@dataclass(frozen=True)
class Side:
    """How `ScottTrainer` trains."""

    method: str
    compile: bool | str = True
    compiled_before: bool = False


#: `ScottTrainer(epochs=None, time_budget=…)`, which decides itself whether to compile.
DEFAULTS = "defaults, time budget"
OWN_SIDES = {
    DEFAULTS: Side("auto", compile="auto"),
    "plain, compiled": Side("plain"),
    "auto, compiled": Side("auto"),
    "auto, compiled before": Side("auto", compiled_before=True),
}
TRAINED = "training seconds"
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
    compiling = curves["compile_seconds"].fillna(0.0)
    curves = curves.assign(**{TRAINED: curves["seconds"] - compiling})
    for name, whole in curves.groupby("setting", sort=False):
        library_seeds = whole[whole["side"] == goal_of].groupby("seed")
        total = library_seeds["seconds"].max().mean()
        for side, own in whole.groupby("side", sort=False):
            seeds = own.groupby("seed")
            compilation = seeds["compile_seconds"].max().fillna(0.0).mean()
            row: dict[str, Any] = {
                "setting": name,
                "side": side,
                "seeds": seeds.ngroups,
                "library, s": total,
                "compilation, s": compilation,
                # In as many seconds as the library took, compilation included.
                "steps": np.mean([_at(c, "step", total) for _, c in seeds]),
            }
            for loss, column in LOSS_COLUMNS.items():
                ends = [_at(c, column, total, TAIL) for _, c in seeds]
                deviation = np.std(ends, ddof=1) if len(ends) > 1 else math.nan
                row[f"{loss} loss"] = format_mean(np.mean(ends), deviation)
                goal = np.mean([_at(c, column, None, TAIL) for _, c in library_seeds])
                # Compilation ends at another time in each seed, so the mean curve is that
                # of the training time, and the mean compilation is added to it.
                trained = math.nan
                if np.isfinite(own[column]).all():
                    # The library's runs have equal steps, and end at different times.
                    x = TRAINED if side in OWN_SIDES else "step"
                    place = first_reached(mean_curve(own, x, column), goal)
                    trained = np.mean(
                        [np.interp(place, c[x], c[TRAINED]) for _, c in seeds]
                    )
                reached = trained + compilation
                row[f"{loss}, s"] = _seconds(reached)
                row[f"{loss}, factor"] = total / reached
                row[f"{loss}, compilation aside"] = total / trained
            rows.append(row)
    return rows


def _at(
    curve: pd.DataFrame, column: str, seconds: float | None, tail: float = 0.0
) -> float:
    """Return a column after some seconds, compilation included; None: at the end.

    The tail is a share of the training time, so it is never before training.
    """
    end = curve[TRAINED].iloc[-1]
    if seconds is not None:
        end = max(seconds - curve["compile_seconds"].fillna(0.0).max(), 0.0)
    return tail_mean(curve[[TRAINED, column]].to_numpy(float), end, tail)


def _seconds(value: float) -> str:
    return NOT_REACHED if math.isnan(value) else f"{value:.1f}"


def render(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the rows of `summarise` as Markdown, a table for each setting."""
    parts = []
    for name, group in groupby(rows, key=itemgetter("setting")):
        own = [dict(row) for row in group]
        for row in own:
            for loss in LOSS_COLUMNS:
                row[f"{loss}: reached"] = _reached(row, loss)
        title = f"**{name}**, {own[0]['library, s']:.0f} s, {own[0]['seeds']} seeds"
        parts.append(f"{title}\n\n{markdown(own, COLUMNS)}")
    return "\n\n".join(parts)


def _reached(row: Mapping[str, Any], loss: str) -> str:
    """Return when the library's loss was reached, and how much sooner that is."""
    if math.isnan(row[f"{loss}, factor"]):
        return NOT_REACHED
    text = f"{row[f'{loss}, s']} s, {row[f'{loss}, factor']:.1f} ×"
    if row["compilation, s"]:
        text += f" ({row[f'{loss}, compilation aside']:.1f} ×)"
    return text


COLUMNS = {
    "side": "{}",
    "steps": "{:,.0f}",
    "compilation, s": "{:.1f}",
    **{
        name: "{}"
        for loss in LOSS_COLUMNS
        for name in (f"{loss} loss", f"{loss}: reached")
    },
}
