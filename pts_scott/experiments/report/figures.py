"""Pictures of a benchmark: losses along training, and the variance of the samplers.

Every function returns a ``matplotlib.figure.Figure`` of its own; ``pyplot``, its global
state and the backend that a session has chosen are left alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from pts_scott.experiments.results import OPTIMIZERS, in_order

# Of the palette by Okabe and Ito, whose colours the colour-blind can tell apart.
COLOURS = {"SGD": "#0072B2", "Adam": "#D55E00", "Adagrad": "#009E73"}
UNSTRATIFIED = "#000000"
OTHER_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9", "#999999")
LINE_STYLES: dict[str, Any] = {
    "scott": "-",
    "plain": (0, (4, 1.5)),
    "scsg": (0, (1, 1)),
    "stratified": (0, (6, 1.5, 1, 1.5)),
}
AXES = {
    "step": "steps",
    "gradients": "gradients computed",
    "seconds": "seconds of training",
}

SAMPLERS = {"scott": "SCott", "scsg": "SCSG", "svrg": "SVRG"}

LOG_FROM = 10.0  # a positive loss gets a logarithmic axis if it falls by this factor
LOG_COST_FROM = 5.0  # and steps or gradients, if a second's differ by this factor
ROOM_ABOVE = 4.0  # how far the picture goes above the median, in (median − minimum)
ROOM_FOR_ENDS = 12.0  # ... if a curve ends up there
ROOM_FOR_STARTS = 1.3  # how much higher the picture may get so that a curve is whole


def mean_curve(curves: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """The mean and the standard deviation over the seeds of one optimizer.

    The curves of the seeds are interpolated onto all points of any of them, as far as
    every seed has finite values: where a seed diverges, the mean ends.

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
        broken = ~np.isfinite(points).all(axis=1)
        seeds.append(points[: broken.argmax() if broken.any() else len(points)])
    if not seeds or any(len(points) == 0 for points in seeds):
        return pd.DataFrame({"x": [], "mean": [], "std": []}, dtype=float)
    first = max(points[0, 0] for points in seeds)
    last = min(points[-1, 0] for points in seeds)
    knots = np.unique(np.concatenate([points[:, 0] for points in seeds]))
    grid = knots[(knots >= first) & (knots <= last)]
    values = np.stack([np.interp(grid, points[:, 0], points[:, 1]) for points in seeds])
    std = values.std(axis=0, ddof=1) if len(seeds) > 1 else np.full(len(grid), np.nan)
    return pd.DataFrame({"x": grid, "mean": values.mean(axis=0), "std": std})


def training_figure(
    curves: pd.DataFrame, loss: str = "loss", notes: Mapping[str, str] | None = None
) -> Figure:
    """Training loss against steps, gradients and seconds.

    Parameters
    ----------
    curves
        Curves of one setting, as ``read_curves`` gives them.
    loss
        The name of the loss, e.g. "NLL".
    notes
        What the legend says about an optimizer beside its name, e.g. "1 of 5 diverged".
    """
    return _loss_figure(curves, "train_loss", tuple(AXES), f"training {loss}", notes)


def held_out_figure(
    curves: pd.DataFrame, loss: str = "loss", notes: Mapping[str, str] | None = None
) -> Figure:
    """Test loss against seconds; the arguments are those of ``training_figure``."""
    return _loss_figure(curves, "test_loss", ("seconds",), f"test {loss}", notes)


def variance_figure(variance: pd.DataFrame) -> Figure:
    """Variance of each gradient sampler along training.

    Parameters
    ----------
    variance
        Columns ``seconds``, ``sampler``, ``stratifier``, ``strata``, ``variance`` and
        ``standard_error``; a sampler with a ``note`` has an asterisk. A colour is a
        stratifier, a style of line a sampler.
    """
    figure, (axes,) = _panels(1)
    palette = itertools.cycle((*COLOURS.values(), *OTHER_COLOURS))
    colours: dict[str, str] = {"": UNSTRATIFIED}
    samplers = variance.fillna({"stratifier": "", "strata": 0}).groupby(
        ["sampler", "stratifier", "strata"], sort=False
    )
    for (sampler, stratifier, strata), rows in samplers:
        if stratifier not in colours:
            colours[stratifier] = next(palette)
        noted = "note" in rows and bool(rows["note"].fillna("").ne("").any())
        rows = rows[rows["variance"] > 0].sort_values("seconds")
        label = sampler_label({"sampler": sampler, "stratifier": stratifier})
        if strata > 1:
            label += f" ({strata:.0f} strata)"
        _draw(
            axes,
            *rows[["seconds", "variance", "standard_error"]].to_numpy(float).T,
            color=colours[stratifier],
            linestyle=LINE_STYLES.get(sampler, "-"),
            marker=".",
            label=_plain(label + " *" * noted),
        )
    axes.set_yscale("log")
    axes.set_xlabel(AXES["seconds"])
    axes.set_ylabel("variance of the gradient")
    _legend_below(figure, axes)
    return figure


def sampler_label(row: Mapping[str, Any]) -> str:
    """A sampler and its stratifier, for a person."""
    label = SAMPLERS.get(row["sampler"], str(row["sampler"]))
    stratifier = row["stratifier"]
    named = isinstance(stratifier, str) and stratifier
    return f"{label}, {stratifier}" if named else label


def cut_off(figure: Figure) -> dict[str, float]:
    """The curves that leave the picture, and the highest value of each.

    Returns
    -------
    dict
        By the label of the curve; empty if every curve lies within the axes.
    """
    highest: dict[str, float] = {}
    for axes in figure.axes:
        top = axes.get_ylim()[1]
        for line in axes.lines:
            values = np.asarray(line.get_ydata(), dtype=float)
            if len(values) and values.max() > top:
                label = str(line.get_label()).replace(r"\$", "$")
                highest[label] = max(highest.get(label, -np.inf), float(values.max()))
    return highest


def save(figure: Figure, path: Path) -> Path:
    """Write a figure, by the ending of the path; folders are made as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _loss_figure(
    curves: pd.DataFrame,
    y: str,
    columns: Sequence[str],
    label: str,
    notes: Mapping[str, str] | None,
) -> Figure:
    notes = notes or {}
    optimizers = in_order(curves["optimizer"])
    means = {
        (optimizer, x): mean_curve(curves[curves["optimizer"] == optimizer], x, y)
        for optimizer in optimizers
        for x in columns
    }
    logarithmic, bottom, top = _limits(list(means.values()))
    figure, panels = _panels(len(columns))
    for axes, x in zip(panels, columns):
        far_apart = _far_apart(
            [(means[name, x]["x"], means[name, "seconds"]["x"]) for name in optimizers]
        )
        for number, optimizer in enumerate(optimizers):
            mean = means[optimizer, x]
            if far_apart:
                mean = mean[mean["x"] > 0]  # the start has no place on such an axis
            note = f" ({notes[optimizer]})" if notes.get(optimizer) else ""
            _draw(
                axes,
                mean["x"].to_numpy(),
                mean["mean"].to_numpy(),
                # No band around what is cut off: it would cover the whole picture.
                mean["std"].where(mean["mean"] <= top).to_numpy(),
                label=_plain(optimizer + note),
                **_style(optimizer, number),
            )
        axes.set_xlabel(AXES[x])
        if far_apart:
            axes.set_xscale("log")
        else:
            axes.ticklabel_format(axis="x", scilimits=(-3, 5), useMathText=True)
    panels[0].set_ylabel(_plain(label))
    if logarithmic:
        panels[0].set_yscale("log")
    if bottom is not None:
        panels[0].set_ylim(bottom, top)
    _legend_below(figure, panels[0])
    return figure


def _panels(count: int) -> tuple[Figure, np.ndarray]:
    """A figure with panels beside each other that share the axis of the loss."""
    width = 4.0 * count if count > 1 else 6.0
    figure = Figure(figsize=(width, 4.6), layout=ConstrainedLayoutEngine(wspace=0.04))
    panels = np.atleast_1d(figure.subplots(1, count, sharey=True))
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.margins(x=0.02)
    return figure, panels


def _style(optimizer: str, number: int) -> dict[str, Any]:
    base, method = OPTIMIZERS.get(optimizer, ("", "scott"))
    other = OTHER_COLOURS[number % len(OTHER_COLOURS)]
    return {"color": COLOURS.get(base, other), "linestyle": LINE_STYLES[method]}


def _draw(
    axes: Any, x: np.ndarray, mean: np.ndarray, spread: np.ndarray, **style: Any
) -> None:
    """A line and, where the spread is known, a band around it."""
    if len(x) == 1:
        style = {**style, "marker": "o"}
    axes.plot(x, mean, linewidth=1.6, **style)
    if np.isfinite(spread).any():
        low, high = mean - spread, mean + spread
        if (mean > 0).all():  # so that the band also has a place on a logarithmic axis
            low = np.maximum(low, mean / 100)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)


def _limits(means: Sequence[pd.DataFrame]) -> tuple[bool, float | None, float]:
    """Whether the scale is logarithmic, and the limits of the loss.

    They show where the curves end, not where they start. A curve that blows up leaves
    the picture at its upper edge; ``cut_off`` tells which.
    """
    curves = [mean["mean"].to_numpy() for mean in means if len(mean) > 1]
    if not curves:
        return False, None, np.inf
    settled = np.concatenate([curve[1:] for curve in curves])
    start = np.median([curve[0] for curve in curves])
    lowest = settled.min()
    logarithmic = bool(lowest > 0 and max(np.median(settled), start) > LOG_FROM * lowest)
    if logarithmic:
        curves, settled = [np.log(curve) for curve in curves], np.log(settled)
    low, middle = settled.min(), np.median(settled)
    room = max(middle - low, 1e-3 * max(abs(middle), 1e-9))
    ends = np.array([curve[-1] for curve in curves])
    ends = ends[ends <= middle + ROOM_FOR_ENDS * room]
    top = np.append(ends, middle + ROOM_ABOVE * room).max()
    highest = np.array([curve.max() for curve in curves])
    if (highest <= top).all():
        top = highest.max()
    else:
        whole = highest[highest <= low + ROOM_FOR_STARTS * (top - low)]
        top = np.append(whole, top).max()
    margin = 0.06 * max(top - low, room)
    limits = np.array([low - margin, top + margin])
    bottom, top = np.exp(limits) if logarithmic else limits
    return logarithmic, float(bottom), float(top)


def _far_apart(costs: Sequence[tuple[pd.Series, pd.Series]]) -> bool:
    """Whether a linear axis would squeeze some of the curves into a corner.

    By what each spends in a second, so that a curve that ends early changes nothing.
    """
    rates = [cost.max() / seconds.max() for cost, seconds in costs if len(seconds) > 1]
    return bool(rates) and max(rates) > LOG_COST_FROM * min(rates)


def _legend_below(figure: Figure, axes: Any) -> None:
    """A legend beneath the panels, where it covers no curve."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    characters = 13 * figure.get_figwidth()  # of a line of the legend
    columns = int(characters // (max(map(len, labels)) + 8))
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(max(columns, 1), len(labels), 5),
        frameon=False,
        handlelength=3.5,
    )


def _plain(text: str) -> str:
    """Text of the user's, in which a dollar sign starts no formula."""
    return text.replace("$", r"\$")
