"""How soon an optimizer reaches the final loss of the plain optimizer.

The target is the last point of the plain optimizer's mean curve over the seeds, or the
mean of its last part. Another optimizer has reached it at the first point from which its
mean curve is at or below it and stays there on average, so that a lucky measurement does
not count; a curve that falls meets it on the line between two measurements. The share is
the cost up to there, relative to all that the plain optimizer spent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from pts_scott.experiments.report.curves import mean_curve, tail_mean
from pts_scott.experiments.report.families import plain_partner
from pts_scott.experiments.results import LOSS_COLUMNS

NOT_REACHED = "not reached"
COSTS = {"seconds": "seconds", "gradients": "gradients", "steps": "step"}  # by name
COLUMNS = (
    *("setting", "batch_size", "loss", "optimizer", "rule", "baseline", "target"),
    *(f"{cost}{part}" for part in ("", "_share") for cost in COSTS),
    "note",
)


def compute_reach(
    summary: pd.DataFrame, curves: pd.DataFrame, tail: float = 0.0
) -> pd.DataFrame:
    """Return what each optimizer needs to reach its plain partner's final loss.

    Parameters
    ----------
    summary
        As returned by ``summarize_runs``.
    curves
        As returned by ``read_curves``.
    tail
        The target is the mean over the last share of the plain optimizer's curve.

    Returns
    -------
    pandas.DataFrame
        Columns ``setting``, its ``batch_size``, ``loss`` ("training" or "test"),
        ``optimizer``, its update ``rule``, ``baseline`` (its plain partner; a plain
        optimizer's own row says how early it had reached its final loss), ``target``,
        the ``seconds``, ``gradients`` and ``steps`` needed, each also as a share of those
        that the baseline spent, and ``note``. The costs are NaN where the note says "not
        reached" or that a seed did not finish; so is the target if it is the baseline's
        that did not.
    """
    rows = []
    for setting, cells in summary.groupby("setting", sort=False):
        cells = cells.set_index("optimizer")
        size = cells["batch_size"].iloc[0]
        own = curves[curves["setting"] == setting]
        means = {
            (name, x, column): mean_curve(own[own["optimizer"] == name], x, column)
            for name in cells.index
            for x in COSTS.values()
            for column in LOSS_COLUMNS.values()
        }
        for optimizer in cells.index:
            baseline = plain_partner(cells, optimizer)
            if baseline is None:
                continue
            key = {
                "optimizer": optimizer,
                "rule": cells.loc[optimizer, "rule"],
                "baseline": baseline,
            }
            for loss, column in LOSS_COLUMNS.items():
                found = _reach(means, optimizer, baseline, column, tail)
                outcomes = [cells.loc[name, "outcome"] for name in (optimizer, baseline)]
                if outcomes[1]:
                    found = {"note": f"{baseline}: {outcomes[1]}"}
                elif outcomes[0]:
                    target = found.get("target", math.nan)
                    found = {"target": target, "note": f"{optimizer}: {outcomes[0]}"}
                place = {"setting": setting, "batch_size": size, "loss": loss}
                rows.append({**place, **key, **found})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def median_share(shares: pd.Series) -> float:
    """Return the median of shares, the higher of two; not reached (NaN) is infinite."""
    ordered = np.sort(shares.fillna(np.inf).to_numpy(float))
    return float(ordered[len(ordered) // 2]) if len(ordered) else math.nan


def _reach(
    means: Mapping[tuple[str, str, str], pd.DataFrame],
    optimizer: str,
    baseline: str,
    column: str,
    tail: float,
) -> dict[str, Any]:
    """Return the target and the costs of one optimizer, as parts of a row."""
    found: dict[str, Any] = {"note": ""}
    for cost, x in COSTS.items():
        plain, mean = (means[name, x, column] for name in (baseline, optimizer))
        if plain.empty or mean.empty:
            return {"note": f"{baseline if plain.empty else optimizer}: no curve"}
        spent = plain["x"].iloc[-1]
        target = tail_mean(plain[["x", "mean"]].to_numpy(), spent, tail)
        target = found.setdefault("target", target)
        found[cost] = first_reached(mean, target)
        if math.isnan(found[cost]):
            return {"target": found["target"], "note": NOT_REACHED}
        found[f"{cost}_share"] = found[cost] / spent if spent > 0 else math.nan
    return found


def first_reached(mean: pd.DataFrame, target: float) -> float:
    """Return the first x from which a mean curve is at or below a target on average.

    Parameters
    ----------
    mean
        As returned by ``mean_curve``.
    target
        The loss to be reached.

    Returns
    -------
    float
        NaN if the target is not reached.
    """
    x, values = mean["x"].to_numpy(), mean["mean"].to_numpy()
    counts = np.arange(len(values), 0, -1)
    averages = np.cumsum(values[::-1])[::-1] / counts  # of each point and all later ones
    rounding = 1e-9 * abs(target)
    reached = (values <= target) & (averages <= target + rounding)
    if not reached.any():
        return math.nan
    n = int(reached.argmax())
    if n == 0 or values[n - 1] <= target:
        return float(x[n])
    share = (values[n - 1] - target) / (values[n - 1] - values[n])
    return float(x[n - 1] + share * (x[n] - x[n - 1]))
