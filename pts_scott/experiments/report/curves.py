"""Average loss curves over seeds, and choose the axes that show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from pts_scott.experiments.results import LOSS_COLUMNS

TAIL_POINTS = 32  # at which the last part of a curve is averaged
LOG_LOSS_FACTOR = 10.0  # a positive loss that falls by this factor gets a log axis
LOG_COST_FACTOR = 5.0  # so do steps or gradients whose rates differ by this factor
# How far the loss axis reaches above the median, in units of (median − minimum):
MEDIAN_HEADROOM = 4.0  # in any case
FINAL_LOSS_HEADROOM = 12.0  # to include the final loss of a curve
WHOLE_CURVE_FACTOR = 1.3  # how much longer the axis may get to show a whole curve


class LossAxis(NamedTuple):
    """The scale and the limits of a loss axis; ``bottom`` None: matplotlib's own."""

    logarithmic: bool
    bottom: float | None
    top: float


def mean_curve(curves: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Return the mean and standard deviation over the seeds of one optimizer.

    The curves are interpolated to the union of their points, as far as every seed has
    finite values: where a seed diverges, the mean ends.

    Parameters
    ----------
    curves
        Curves of one setting and one optimizer, with a column ``seed``.
    x, y
        The columns to draw.

    Returns
    -------
    pandas.DataFrame
        Columns ``x``, ``mean`` and ``std`` (NaN for one seed).
    """
    seeds = []
    for _, curve in curves.groupby("seed"):
        points = curve[[x, y]].to_numpy(float)
        points = points[np.unique(points[:, 0], return_index=True)[1]]
        nonfinite = ~np.isfinite(points).all(axis=1)
        seeds.append(points[: nonfinite.argmax() if nonfinite.any() else len(points)])
    if not seeds or any(len(points) == 0 for points in seeds):
        return pd.DataFrame({"x": [], "mean": [], "std": []}, dtype=float)
    first = max(points[0, 0] for points in seeds)
    last = min(points[-1, 0] for points in seeds)
    knots = np.unique(np.concatenate([points[:, 0] for points in seeds]))
    grid = knots[(knots >= first) & (knots <= last)]
    values = np.stack([np.interp(grid, points[:, 0], points[:, 1]) for points in seeds])
    std = values.std(axis=0, ddof=1) if len(seeds) > 1 else np.full(len(grid), np.nan)
    return pd.DataFrame({"x": grid, "mean": values.mean(axis=0), "std": std})


def tail_mean(points: np.ndarray, end: float, tail: float) -> float:
    """Return the mean of a curve over the last share of the way to some x.

    Parameters
    ----------
    points
        x and y of the curve, of shape (points, 2).
    end
        The x.
    tail
        The share; 0 for the value at that x.
    """
    at = np.linspace((1 - tail) * end, end, TAIL_POINTS)
    return float(np.interp(at, *points.T).mean())


def settled_losses(runs: pd.DataFrame, curves: pd.DataFrame, tail: float) -> pd.DataFrame:
    """Return runs with the mean loss over the last share of their time.

    With constant step sizes and small M the loss of the last step depends on the steps
    just before it. This is what it is on average.

    Parameters
    ----------
    runs, curves
        As returned by ``read_runs`` and ``read_curves``.
    tail
        The share.
    """
    key = ["setting", "optimizer", "seed"]
    found = {
        name: [
            tail_mean(curve[["seconds", column]].to_numpy(float), end, tail)
            for column in LOSS_COLUMNS.values()
        ]
        for name, curve in curves.groupby(key, sort=False)
        for end in [curve["seconds"].iloc[-1]]
    }
    unknown = [np.nan] * len(LOSS_COLUMNS)
    rows = [
        found.get(name, unknown) if status == "finished" else unknown
        for *name_, status in runs[[*key, "status"]].itertuples(index=False)
        for name in [tuple(name_)]
    ]
    losses = pd.DataFrame(rows, index=runs.index, columns=[*LOSS_COLUMNS.values()])
    return runs.assign(**{column: losses[column] for column in losses})


def loss_axis(means: Sequence[pd.DataFrame]) -> LossAxis:
    """Choose the loss axis for the given mean curves.

    The limits show where the curves end rather than where they start. A curve that blows
    up is cut off at the upper edge.
    """
    curves = [mean["mean"].to_numpy() for mean in means if len(mean) > 1]
    if not curves:
        return LossAxis(False, None, np.inf)
    after_start = np.concatenate([curve[1:] for curve in curves])
    start = np.median([curve[0] for curve in curves])
    lowest = after_start.min()
    highest_level = max(np.median(after_start), start)
    logarithmic = bool(lowest > 0 and highest_level > LOG_LOSS_FACTOR * lowest)
    if logarithmic:
        curves, after_start = [np.log(curve) for curve in curves], np.log(after_start)
    low, median = after_start.min(), np.median(after_start)
    unit = max(median - low, 1e-3 * max(abs(median), 1e-9))
    ends = np.array([curve[-1] for curve in curves])
    ends = ends[ends <= median + FINAL_LOSS_HEADROOM * unit]
    top = np.append(ends, median + MEDIAN_HEADROOM * unit).max()
    highest = np.array([curve.max() for curve in curves])
    if (highest <= top).all():
        top = highest.max()
    else:
        nearly_whole = highest[highest <= low + WHOLE_CURVE_FACTOR * (top - low)]
        top = np.append(nearly_whole, top).max()
    margin = 0.06 * max(top - low, unit)
    limits = np.array([low - margin, top + margin])
    bottom, top = np.exp(limits) if logarithmic else limits
    return LossAxis(logarithmic, float(bottom), float(top))


def needs_log_cost_axis(costs: Sequence[tuple[pd.Series, pd.Series]]) -> bool:
    """Return whether a linear axis would squeeze some of the curves into a corner.

    Decided by the cost per second of each curve, so that a curve that ends early has no
    influence. ``costs`` holds the costs and the seconds of each curve.
    """
    rates = [cost.max() / seconds.max() for cost, seconds in costs if len(seconds) > 1]
    return bool(rates) and max(rates) > LOG_COST_FACTOR * min(rates)


def average_measurements(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the mean curves: the n-th measurements of the finished seeds, averaged.

    Parameters
    ----------
    curves
        As returned by ``read_curves``.

    Returns
    -------
    pandas.DataFrame
        Columns ``setting``, ``optimizer``, ``measurement``, ``seeds``, the mean costs
        ``step``, ``gradients`` and ``seconds``, and mean and standard deviation of both
        losses, as far as all finished seeds were measured.
    """
    finished = curves[curves["status"] == "finished"]
    keys = ["setting", "optimizer"]
    numbered = finished.assign(measurement=finished.groupby([*keys, "seed"]).cumcount())
    points = numbered.groupby([*keys, "measurement"], sort=False)
    losses = list(LOSS_COLUMNS.values())
    table = points.agg(
        seeds=("seed", "size"),
        **{cost: (cost, "mean") for cost in ("step", "gradients", "seconds")},
        **{f"{y}_{part}": (y, part) for y in losses for part in ("mean", "std")},
    ).reset_index()
    complete = table["seeds"] == table.groupby(keys)["seeds"].transform("max")
    return table[complete].reset_index(drop=True)
