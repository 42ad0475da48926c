"""Axes of the figures: panels in a neutral colour, and ticks that are plain numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from pts_scott.experiments.report.curves import LossAxis

INK = "#24292f"  # the page replaces it by the colour of its text, light or dark
GREY = "#808890"  # readable on both
FEW_DECADES = 0.8  # of a log axis, from which on its ticks are at 1, 2 and 5
MANY_DECADES = 2.3  # of a log axis, from which on only powers of ten have labels


def style_axes(axes: Any) -> None:
    """Draw frame, ticks and grid in neutral colours, without the upper right corner."""
    axes.grid(color=GREY, alpha=0.25, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    axes.patch.set_visible(False)
    axes.tick_params(colors=INK, which="both", labelsize=9)
    for side, spine in axes.spines.items():
        spine.set_color(GREY)
        spine.set_visible(side in ("left", "bottom"))


def set_ticks(axis: Axis, limits: tuple[float, float], counts: bool = False) -> None:
    """Give an axis ticks at few round numbers: at 1, 2 and 5 if it is logarithmic.

    Parameters
    ----------
    axis
        An x or y axis whose scale is set.
    limits
        Its limits.
    counts
        Whether thousands and millions are abbreviated.
    """
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    if axis.get_scale() == "log":
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
        low, high = limits
        decades = math.log10(high / low) if low > 0 else math.inf
        if decades > FEW_DECADES:  # on a shorter axis, there would be one or two
            subs = (1.0,) if decades > MANY_DECADES else (1.0, 2.0, 5.0)
            axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    write = format_count if counts else format_value
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))


def set_loss_axis(axes: Any, limits: LossAxis) -> None:
    """Apply the scale and the limits of a loss axis, and set its ticks."""
    if limits.logarithmic:
        axes.set_yscale("log")
    if limits.bottom is not None:
        axes.set_ylim(limits.bottom, limits.top)
    set_ticks(axes.yaxis, axes.get_ylim())


def legend_beside(axes: Any) -> None:
    """Add a legend on the right, in the order in which the lines end."""

    def final(line: Any) -> float:
        values = line.get_ydata()
        return -values[-1] if len(values) else -np.inf

    lines = sorted(axes.lines, key=final)
    if lines:
        axes.legend(
            lines,
            [line.get_label() for line in lines],
            loc="center left",
            bbox_to_anchor=(1.02, 0.5),
            borderaxespad=0.0,
            frameon=False,
            fontsize=9,
            handlelength=2.6,
            labelcolor=INK,
        )


def format_value(value: float) -> str:
    """Format a tick of a loss axis: 0.02, 5, 20000, −3.5; powers of ten far from 1."""
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e−").replace("-", "−")
    return f"{value:.10g}".replace("-", "−")


def format_count(value: float) -> str:
    """Format a tick of a cost axis: 200, 5k, 1.5M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.10g}{name}"
    return format_value(value)
