"""Were runs long enough, and undisturbed: how much of the fall came late, steps made."""

from __future__ import annotations

import pandas as pd

from pts_scott.experiments.report.curves import tail_mean
from pts_scott.experiments.report.formatting import (
    format_mean,
    format_number,
    format_share,
)
from pts_scott.experiments.report.tables import Row, Table

#: Optimizers with uniform mini-batches and the setting's M.
PLAIN = ("SGD", "Adam", "Adagrad")
#: What counts as the last part of a run, as at its end.
LATE = 1 / 3
#: Share of the steps of the optimizer's median run below which a run was disturbed.
DISTURBED = 0.8


def measure_fall(
    summary: pd.DataFrame, curves: pd.DataFrame, tail: float
) -> pd.DataFrame:
    """Return how the training loss of each setting's best plain optimizer fell.

    Parameters
    ----------
    summary, curves
        As returned by ``summarize_runs`` and ``read_curves``.
    tail
        The share of a run over which the loss at its end is a mean.

    Returns
    -------
    pandas.DataFrame
        One row per setting: the ``optimizer`` with the lowest loss at the end, its
        ``steps``, its mean losses at the ``start``, ``before`` the last third and at the
        ``end`` with their standard deviation ``std``, and the ``late`` share of the fall.
    """
    rows = []
    plain = summary[summary["optimizer"].isin(PLAIN) & (summary["outcome"] == "")]
    for setting, cells in plain.groupby("setting", sort=True):
        best = cells.loc[cells["train_loss_mean"].idxmin()]
        own = curves[
            (curves["setting"] == setting) & (curves["optimizer"] == best["optimizer"])
        ]
        seeds = []
        for _, curve in own.groupby("seed"):
            points = curve[["seconds", "train_loss"]].to_numpy(float)
            end = points[-1, 0]
            seeds.append((points[0, 1], tail_mean(points, (1 - LATE) * end, tail)))
        start, before = pd.DataFrame(seeds).mean()
        end = best["train_loss_mean"]
        rows.append(
            {
                "setting": setting,
                "optimizer": best["optimizer"],
                "steps": best["steps"],
                "start": start,
                "before": before,
                "end": end,
                "std": best["train_loss_std"],
                "late": (before - end) / (start - end),
            }
        )
    return pd.DataFrame(rows)


def fall_sentence(falls: pd.DataFrame) -> str:
    """Return in a sentence how much of the fall came in the last third of runs."""
    low, middle, high = map(format_share, falls["late"].quantile([0.0, 0.5, 1.0]))
    last = falls.loc[falls["late"].idxmax(), "setting"]
    return (
        "Of all that the training loss of the best plain optimizer fell during a run, "
        f"{middle} fell in the last third (median; {low} to {high}, the most in "
        f"`{last}`)."
    )


def disturbed_sentence(runs: pd.DataFrame) -> str:
    """Return in a sentence how many runs made far fewer steps than others, and where."""
    runs = runs[runs["status"] == "finished"]
    usual = runs.groupby(["setting", "optimizer"])["steps"].transform("median")
    share = runs["steps"] / usual
    slow = share[share < DISTURBED]
    bound = f"{format_share(DISTURBED)} of the steps of their optimizer's median run"
    if slow.empty:
        return f"No run made less than {bound}."
    counts = runs.loc[slow.index, "setting"].value_counts().sort_index()
    names = ", ".join(f"`{name}` ({count})" for name, count in counts.items())
    return (
        f"{len(slow)} of {len(runs):,} runs made less than {bound}, the fewest "
        f"{format_share(slow.min())}, probably because something else used the core: "
        f"{names}."
    )


def fall_table(falls: pd.DataFrame) -> Table:
    """Return the losses behind the sentence, setting by setting."""
    rows = [
        Row.of(
            row["setting"],
            row["optimizer"],
            f"{row['steps']:,.0f}",
            *(format_number(row[name]) for name in ("start", "before")),
            format_mean(row["end"], row["std"]),
            format_share(row["late"]),
        )
        for row in falls.to_dict("records")
    ]
    header = ["Setting", "Best plain optimizer", "Steps", "start", "after two thirds"]
    caption = (
        "Training loss of the plain optimizer (SGD, Adam or Adagrad, uniform "
        "mini-batches of M windows) that ended lowest, means over the seeds; the "
        "standard deviation at the end; and how much of the fall from start to end came "
        "in the last third."
    )
    return Table([*header, "end", "in the last third"], rows, caption)
