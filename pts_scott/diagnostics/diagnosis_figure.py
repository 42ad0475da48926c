"""The figure of a diagnosis.

It does not use ``pyplot``, so the global state of matplotlib stays as it is.
"""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from pts_scott.diagnostics.allocation_variance import RelativeVariance

if TYPE_CHECKING:
    from pts_scott.diagnostics.diagnosis import Diagnosis, Point

# From the Okabe-Ito palette, whose colours remain distinct for colour-blind readers.
PROPORTIONAL, SPREAD, CONTROL = "#E69F00", "#0072B2", "#999999"
GAIN = "#009E73"
RIGHT_END = 1.35  # of the axis; a larger variance is written at its edge
CONTROL_VARIATE = "control variate (SCott)"


def diagnosis_figure(diagnosis: Diagnosis) -> Figure:
    """Draw the variance of each candidate, one panel per point of training."""
    points = diagnosis.points
    labels = list(dict.fromkeys(f.label for p in points for f in p.findings))
    rows = {label: row for row, label in enumerate([*labels, CONTROL_VARIATE])}
    figure = Figure(
        figsize=(3.4 * len(points) + 2.6, 0.42 * len(rows) + 2.9),
        layout=ConstrainedLayoutEngine(wspace=0.03),
    )
    panels = np.atleast_1d(figure.subplots(1, len(points), sharex=True, sharey=True))
    for axes, point in zip(panels, points, strict=True):
        _draw_panel(axes, point, rows)
    names = [label.replace("$", r"\$") for label in rows]
    counts = {f.label: f.strata for p in points for f in p.findings}
    texts = [
        f"{name}  ({counts[label]})" if label in counts else name
        for name, label in zip(names, rows, strict=True)
    ]
    panels[0].set_yticks(list(rows.values()), texts)
    panels[0].set_ylabel("strata (their number)")
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    panels[0].set_xlim(0, RIGHT_END)
    handles, legend = panels[-1].get_legend_handles_labels()
    figure.legend(
        handles, legend, loc="outside lower center", ncols=len(legend), frameon=False
    )
    title = (
        f"Gradient variance of a mini-batch of {diagnosis.batch_size} windows, relative "
        "to a uniform one: less is better"
    )
    advice = textwrap.fill(diagnosis.advice, int(14 * figure.get_figwidth()))
    text = f"{title}\n\n{advice}\n".replace("$", r"\$")
    figure.suptitle(text, fontsize="medium")
    return figure


def _draw_panel(axes: Any, point: Point, rows: dict[str, int]) -> None:
    axes.axvspan(0, 1, color=GAIN, alpha=0.07, linewidth=0)
    axes.axvline(1, color="black", linewidth=1.2, label="uniform mini-batch")
    names = "proportional allocation", "spread allocation"
    for finding in point.findings:
        row = rows[finding.label]
        _draw(axes, finding.proportional, row - 0.13, PROPORTIONAL, "o", names[0])
        _draw(axes, finding.spread, row + 0.13, SPREAD, "D", names[1])
    row = rows[CONTROL_VARIATE]
    if point.control_variate is None:
        axes.text(0.03, row, "no snapshot yet", va="center", fontsize="small", alpha=0.6)
    else:
        _draw(axes, point.control_variate, row, CONTROL, "s", "control variate")
    title = "at the start" if point.step == 0 else f"after {point.step:,} steps"
    axes.set_title(f"{title}\nnoise scale {point.noise}", fontsize="medium")
    axes.set_xlabel("relative variance ± 2 standard errors", fontsize="small")
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize="small")


def _draw(
    axes: Any, variance: RelativeVariance, row: float, colour: str, marker: str, name: str
) -> None:
    """Draw a variance with two standard errors, or write it if it is off the axis."""
    # One entry of the legend for each allocation.
    known = axes.get_legend_handles_labels()[1]
    label = None if name in known else name
    if math.isnan(variance.value):
        return
    style = {"color": colour, "marker": marker, "markersize": 6, "linestyle": "none"}
    if variance.value <= RIGHT_END - 0.02:
        error = 2 * variance.standard_error
        axes.errorbar(
            variance.value, row, xerr=error, label=label, elinewidth=1.5, **style
        )
        return
    style = {**style, "marker": ">", "clip_on": False}
    axes.plot(RIGHT_END - 0.03, row, label=label, **style)
    text = f"{variance.value:.2g}"
    axes.text(RIGHT_END - 0.07, row, text, va="center", ha="right", fontsize="small")
