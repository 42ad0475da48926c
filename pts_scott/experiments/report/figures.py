"""Figures of a benchmark: loss curves, and the gradient variance of the samplers.

Every function returns a new ``matplotlib.figure.Figure`` and does not use ``pyplot``, so
its global state and the backend of the session stay as they are.
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

from pts_scott.experiments.report.curves import (
    loss_axis,
    mean_curve,
    needs_log_cost_axis,
)
from pts_scott.experiments.results import PAPER_OPTIMIZERS, OptimizerKind, sort_optimizers

# From the Okabe-Ito palette, whose colours remain distinct for colour-blind readers.
UPDATE_RULE_COLOURS = {"SGD": "#0072B2", "Adam": "#D55E00", "Adagrad": "#009E73"}
UNSTRATIFIED_COLOUR = "#000000"
OTHER_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9", "#999999")
METHOD_LINE_STYLES: dict[str, Any] = {
    "scott": "-",
    "plain": (0, (4, 1.5)),
    "scsg": (0, (1, 1)),
    "stratified": (0, (6, 1.5, 1, 1.5)),
}
AXIS_LABELS = {
    "step": "steps",
    "gradients": "gradients computed",
    "seconds": "training time (s)",
}
SAMPLER_NAMES = {"scott": "SCott", "scsg": "SCSG", "svrg": "SVRG"}


def training_figure(
    curves: pd.DataFrame, loss: str = "loss", notes: Mapping[str, str] | None = None
) -> Figure:
    """Draw the training loss against steps, gradients and seconds.

    Parameters
    ----------
    curves
        Curves of one setting, as returned by ``read_curves``.
    loss
        The name of the loss, e.g. "NLL".
    notes
        Notes on optimizers for the legend, by name, e.g. "1 of 5 diverged".
    """
    axes = tuple(AXIS_LABELS)
    return _loss_figure(curves, "train_loss", axes, f"training {loss}", notes)


def held_out_figure(
    curves: pd.DataFrame, loss: str = "loss", notes: Mapping[str, str] | None = None
) -> Figure:
    """Draw the test loss against seconds; arguments as for ``training_figure``."""
    return _loss_figure(curves, "test_loss", ("seconds",), f"test {loss}", notes)


def variance_figure(variance: pd.DataFrame) -> Figure:
    """Draw the gradient variance of each sampler during training.

    Parameters
    ----------
    variance
        Columns ``seconds``, ``sampler``, ``stratifier``, ``strata``, ``variance`` and
        ``standard_error``; a sampler with a ``note`` gets an asterisk. The colour shows
        the stratifier, the line style the sampler.
    """
    figure, (axes,) = _panels(1)
    palette = itertools.cycle((*UPDATE_RULE_COLOURS.values(), *OTHER_COLOURS))
    colours: dict[str, str] = {"": UNSTRATIFIED_COLOUR}
    samplers = variance.fillna({"stratifier": "", "strata": 0}).groupby(
        ["sampler", "stratifier", "strata"], sort=False
    )
    for (sampler, stratifier, strata), rows in samplers:
        if stratifier not in colours:
            colours[stratifier] = next(palette)
        has_note = "note" in rows and bool(rows["note"].fillna("").ne("").any())
        rows = rows[rows["variance"] > 0].sort_values("seconds")
        label = sampler_label({"sampler": sampler, "stratifier": stratifier})
        if strata > 1:
            label += f" ({strata:.0f} strata)"
        _draw(
            axes,
            *rows[["seconds", "variance", "standard_error"]].to_numpy(float).T,
            color=colours[stratifier],
            linestyle=METHOD_LINE_STYLES.get(sampler, "-"),
            marker=".",
            label=_escape_math(label + " *" * has_note),
        )
    axes.set_yscale("log")
    axes.set_xlabel(AXIS_LABELS["seconds"])
    axes.set_ylabel("gradient variance")
    _legend_below(figure, axes)
    return figure


def sampler_label(row: Mapping[str, Any]) -> str:
    """Return the displayed name of a sampler and its stratifier, if it has one."""
    label = SAMPLER_NAMES.get(row["sampler"], str(row["sampler"]))
    stratifier = row["stratifier"]
    named = isinstance(stratifier, str) and stratifier
    return f"{label}, {stratifier}" if named else label


def cut_off_curves(figure: Figure) -> dict[str, float]:
    """Return the highest value of each curve that leaves the axes, by its label."""
    highest: dict[str, float] = {}
    for axes in figure.axes:
        top = axes.get_ylim()[1]
        for line in axes.lines:
            values = np.asarray(line.get_ydata(), dtype=float)
            if len(values) and values.max() > top:
                label = str(line.get_label()).replace(r"\$", "$")
                highest[label] = max(highest.get(label, -np.inf), float(values.max()))
    return highest


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of the path's suffix, and create its folder."""
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
    optimizers = sort_optimizers(curves["optimizer"])
    means = {
        (optimizer, x): mean_curve(curves[curves["optimizer"] == optimizer], x, y)
        for optimizer in optimizers
        for x in columns
    }
    logarithmic, bottom, top = loss_axis(list(means.values()))
    figure, panels = _panels(len(columns))
    for axes, x in zip(panels, columns):
        log_cost = needs_log_cost_axis(
            [(means[name, x]["x"], means[name, "seconds"]["x"]) for name in optimizers]
        )
        for number, optimizer in enumerate(optimizers):
            mean = means[optimizer, x]
            if log_cost:
                mean = mean[mean["x"] > 0]  # a log axis has no zero
            note = f" ({notes[optimizer]})" if notes.get(optimizer) else ""
            _draw(
                axes,
                mean["x"].to_numpy(),
                mean["mean"].to_numpy(),
                # No band where the curve is cut off: it would cover the whole panel.
                mean["std"].where(mean["mean"] <= top).to_numpy(),
                label=_escape_math(optimizer + note),
                **_style(optimizer, number),
            )
        axes.set_xlabel(AXIS_LABELS[x])
        if log_cost:
            axes.set_xscale("log")
        else:
            axes.ticklabel_format(axis="x", scilimits=(-3, 5), useMathText=True)
    panels[0].set_ylabel(_escape_math(label))
    if logarithmic:
        panels[0].set_yscale("log")
    if bottom is not None:
        panels[0].set_ylim(bottom, top)
    _legend_below(figure, panels[0])
    return figure


def _panels(count: int) -> tuple[Figure, np.ndarray]:
    """Return a figure with a row of panels that share their loss axis."""
    width = 4.0 * count if count > 1 else 6.0
    figure = Figure(figsize=(width, 4.6), layout=ConstrainedLayoutEngine(wspace=0.04))
    panels = np.atleast_1d(figure.subplots(1, count, sharey=True))
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.margins(x=0.02)
    return figure, panels


def _style(optimizer: str, number: int) -> dict[str, Any]:
    kind = PAPER_OPTIMIZERS.get(optimizer, OptimizerKind("", "scott"))
    other = OTHER_COLOURS[number % len(OTHER_COLOURS)]
    return {
        "color": UPDATE_RULE_COLOURS.get(kind.update_rule, other),
        "linestyle": METHOD_LINE_STYLES[kind.method],
    }


def _draw(
    axes: Any, x: np.ndarray, mean: np.ndarray, spread: np.ndarray, **style: Any
) -> None:
    """Draw a line and, where the spread is known, a band around it."""
    if len(x) == 1:
        style = {**style, "marker": "o"}
    axes.plot(x, mean, linewidth=1.6, **style)
    if np.isfinite(spread).any():
        low, high = mean - spread, mean + spread
        if (mean > 0).all():  # keep the band drawable on a log axis
            low = np.maximum(low, mean / 100)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)


def _legend_below(figure: Figure, axes: Any) -> None:
    """Add a legend below the panels, where it covers no curve."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    characters = 13 * figure.get_figwidth()  # that fit in one line of the legend
    columns = int(characters // (max(map(len, labels)) + 8))
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(max(columns, 1), len(labels), 5),
        frameon=False,
        handlelength=3.5,
    )


def _escape_math(text: str) -> str:
    """Escape dollar signs, which would start a formula in matplotlib."""
    return text.replace("$", r"\$")
