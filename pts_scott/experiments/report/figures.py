"""Figures of a benchmark: loss curves, time to a loss, and the variance of samplers.

Every function returns a new ``matplotlib.figure.Figure`` and does not use ``pyplot``, so
its global state and the backend of the session stay as they are.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from pts_scott.experiments.report.axes import (
    GREY,
    INK,
    legend_beside,
    set_loss_axis,
    set_ticks,
    style_axes,
)
from pts_scott.experiments.report.curves import (
    loss_axis,
    mean_curve,
    needs_log_cost_axis,
)
from pts_scott.experiments.report.line_styles import (
    BLUE,
    SIZE_LOOKS,
    is_prominent,
    optimizer_styles,
    sampler_styles,
)
from pts_scott.experiments.report.reach import median_share
from pts_scott.experiments.results import (
    PAPER_OPTIMIZERS,
    RULE_NAMES,
    OptimizerKind,
    sort_optimizers,
)

AXIS_LABELS = {
    "step": "steps",
    "gradients": "gradients computed",
    "seconds": "training time (s)",
}
SAMPLER_NAMES = {"scott": "SCott", "scsg": "SCSG", "svrg": "SVRG"}
DRAWN_POINTS = 64  # at most, of each line
MOST_BANDS = 5  # of more lines in a panel, only the prominent ones have a band
FAMILY_GAP = 0.6  # of a row, between optimizers of different update rules
TEXT: dict[str, Any] = {"color": INK, "fontsize": 10}


def training_figure(
    curves: pd.DataFrame, loss: str = "loss", notes: Mapping[str, str] | None = None
) -> Figure:
    """Draw the training loss against steps, gradients and seconds.

    Each update rule has a row of panels, so that every line is beside those that it is
    compared with. The colour shows the method, and the plain optimizer is dashed. The
    legend lists the lines from the highest final loss to the lowest.

    Parameters
    ----------
    curves
        Curves of one setting, as returned by ``read_curves``.
    loss
        The name of the loss, e.g. "NLL".
    notes
        Notes on optimizers for the legend, by name, e.g. "1 of 5 diverged".
    """
    return _loss_figure(curves, "train_loss", f"training {loss}", notes or {})


def held_out_figure(
    curves: pd.DataFrame, loss: str = "loss", notes: Mapping[str, str] | None = None
) -> Figure:
    """Draw the test loss; otherwise as ``training_figure``."""
    return _loss_figure(curves, "test_loss", f"test {loss}", notes or {})


def reach_figure(reach: pd.DataFrame) -> Figure:
    """Draw which share of its plain partner's time and gradients each optimizer needs.

    Parameters
    ----------
    reach
        Rows of one loss, as returned by ``compute_reach``. There is a dot per setting,
        and a bar at the median over the settings, where "not reached" is infinite. Each
        batch size has a colour, and settings that did not reach the loss are counted.
    """
    reach = reach[reach["target"].notna()]
    rules = dict(zip(reach["optimizer"], reach["rule"]))
    names = sort_optimizers(reach["optimizer"], rules)
    plain = set(reach.loc[reach["optimizer"] == reach["baseline"], "optimizer"])
    labels = [f"{name} itself" if name in plain else name for name in names]
    places = _family_places([rules[name] for name in names])
    sizes = dict(zip(sorted(set(reach["batch_size"])), itertools.cycle(SIZE_LOOKS)))
    columns = {"seconds_share": "training time", "gradients_share": "gradients"}
    figure = _figure(10.0, 1.3 + (0.2 + 0.12 * len(sizes)) * (1 + max(places, default=0)))
    panels = figure.subplots(1, len(columns), sharey=True)
    for axes, (column, label) in zip(panels, columns.items(), strict=True):
        style_axes(axes)
        shares = reach[column].dropna()
        shares = shares[shares > 0]
        low, high = min(0.5, *shares, 1.0), max(2.0, *shares, 1.0)
        step = (high / low) ** 0.17
        unreached = high * step  # the lane of those that did not reach it
        lane = high * step**0.5, high * step**1.5
        axes.set_xscale("log")
        axes.set_xlim(low / 1.15, lane[1])
        axes.axvline(1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 1.5)))
        axes.axvspan(*lane, color=GREY, alpha=0.12, linewidth=0)
        height = 0.8 / len(sizes)  # of the part of a row that a batch size has
        for place, name in zip(places, names, strict=True):
            for part, (size, look) in enumerate(sizes.items()):
                rows = (reach["optimizer"] == name) & (reach["batch_size"] == size)
                own = reach.loc[rows, column].clip(lower=low)
                middle = place - 0.4 + height * (part + 0.5)
                _draw_shares(axes, own, middle, 0.4 * height, unreached, look)
        set_ticks(axes.xaxis, (low, high))
        inside = [t for t in axes.xaxis.get_majorticklocs() if low / 1.1 <= t <= high]
        axes.set_xticks(
            [*inside, unreached], [*(f"{100 * t:g} %" for t in inside), "not\nreached"]
        )
        axes.set_xlabel(f"share of the plain optimizer's {label}", **TEXT)
    panels[0].set_yticks(places, [*map(_escape_math, labels)])
    panels[0].set_ylim(max(places, default=0.0) + 0.7, -0.7)
    if len(sizes) > 1:
        for size, (colour, marker) in sizes.items():
            panels[0].scatter([], [], color=colour, marker=marker, label=f"M = {size}")
        figure.legend(
            loc="outside upper right", ncols=len(sizes), frameon=False, labelcolor=INK
        )
    return figure


def _family_places(rules: Sequence[str]) -> list[float]:
    """Return where rows are drawn: one below the other, with a gap between families."""
    steps = [1.0 + FAMILY_GAP * (a != b) for a, b in itertools.pairwise(rules)]
    return [*itertools.accumulate([0.0, *steps])][: len(rules)]


def _draw_shares(
    axes: Axes,
    shares: pd.Series,
    place: float,
    reach: float,
    unreached: float,
    look: tuple[str, str],
) -> None:
    """Draw dots up to ``reach`` around ``place``, their median, and who is unreached."""
    colour, marker = look
    several = len(shares) > 1
    spread = np.linspace(-0.6 * reach, 0.6 * reach, len(shares)) if several else 0.0
    axes.scatter(
        shares.fillna(unreached),
        np.broadcast_to(place + spread, len(shares)),
        color=colour,
        marker=marker,
        s=28,
        alpha=0.75,
        linewidths=0,
        zorder=3,
    )
    if several:
        bar = 2 * [min(median_share(shares), unreached)]
        axes.plot(bar, [place - reach, place + reach], color=colour, lw=2.5, zorder=4)
    if count := int(shares.isna().sum()):
        axes.annotate(
            str(count),
            (unreached, place),
            xytext=(12, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            color=colour,
            fontsize=8,
        )


def variance_figure(variance: pd.DataFrame) -> Figure:
    """Draw the gradient variance of each sampler during training.

    Parameters
    ----------
    variance
        Columns ``seconds``, ``sampler``, ``stratifier``, ``strata``, ``variance`` and
        ``standard_error``; a sampler with a ``note`` gets an asterisk. The colour shows
        the stratifier, the line style the sampler.
    """
    samplers = variance.fillna({"stratifier": "", "strata": 0}).groupby(
        ["sampler", "stratifier", "strata"], sort=False
    )
    styles = sampler_styles([(key[0], key[1]) for key, _ in samplers])
    figure = _figure(7.5, 3.4 + 0.2 * len(styles))
    axes = figure.subplots()
    style_axes(axes)
    for ((sampler, stratifier, strata), rows), style in zip(samplers, styles):
        has_note = "note" in rows and bool(rows["note"].fillna("").ne("").any())
        rows = rows[rows["variance"] > 0].sort_values("seconds")
        label = sampler_label({"sampler": sampler, "stratifier": stratifier})
        if strata > 1:
            label += f" ({strata:.0f} strata)"
        _draw(
            axes,
            *rows[["seconds", "variance", "standard_error"]].to_numpy(float).T,
            marker=".",
            label=_escape_math(label + " *" * has_note),
            **style,
        )
    axes.set_yscale("log")
    set_ticks(axes.yaxis, axes.get_ylim())
    set_ticks(axes.xaxis, axes.get_xlim())
    axes.set_xlabel(AXIS_LABELS["seconds"], **TEXT)
    axes.set_ylabel("gradient variance", **TEXT)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        place = {"loc": "outside lower left", "handlelength": 3.2, "labelcolor": INK}
        figure.legend(handles, labels, frameon=False, fontsize=9, **place)
    return figure


def sampler_label(row: Mapping[str, Any]) -> str:
    """Return the displayed name of a sampler and its stratifier, if it has one."""
    label = SAMPLER_NAMES.get(row["sampler"], str(row["sampler"]))
    stratifier = row["stratifier"]
    named = isinstance(stratifier, str) and stratifier
    return f"{label}, {stratifier}" if named else label


def cut_off_curves(figure: Figure) -> dict[str, float]:
    """Return the highest value of each curve that leaves the axes, by its label.

    A curve that only starts above them, and enters, is not one of these.
    """
    highest: dict[str, float] = {}
    for axes in figure.axes:
        top = axes.get_ylim()[1]
        for line in axes.lines:
            values = np.asarray(line.get_ydata(), dtype=float)
            inside = values <= top
            values = values[inside.argmax() if inside.any() else 0 :]
            if len(values) and values.max() > top:
                label = str(line.get_label()).replace(r"\$", "$")
                highest[label] = max(highest.get(label, -np.inf), float(values.max()))
    return highest


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of the path's suffix, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def figure_svg(figure: Figure, name: str) -> str:
    """Return a figure as an SVG element whose text has the colour of the page's text.

    Parameters
    ----------
    figure
        The figure.
    name
        A name that no other figure of the page has: ids within the SVG depend on it.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": name}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = text.replace(BLUE.lower(), "var(--blue)")  # lighter on a dark page
    text = re.sub(r"<!--.*?-->\n?|<metadata>.*?</metadata>\n?", "", text, flags=re.DOTALL)
    # Thousandths of a point are invisible, and most of the file.
    return re.sub(r' d="[^"]*"', lambda d: re.sub(r"(\.\d\d)\d+", r"\1", d[0]), text)


def _loss_figure(
    curves: pd.DataFrame, y: str, label: str, notes: Mapping[str, str]
) -> Figure:
    kinds = _kinds(curves)
    names = sort_optimizers(curves["optimizer"], {n: k.rule for n, k in kinds.items()})
    rules = list(dict.fromkeys(kinds[name].rule for name in names))
    families = [[n for n in names if kinds[n].rule == rule] for rule in rules]
    heights = [max(2.7, 0.6 + 0.22 * len(family)) for family in families]
    figure = _figure(12.0, sum(heights) + 0.4)
    shape: dict[str, Any] = {"sharey": "row", "squeeze": False, "height_ratios": heights}
    rows = figure.subplots(len(families), len(AXIS_LABELS), **shape)
    for panels, rule, family in zip(rows, rules, families, strict=True):
        own = curves[curves["optimizer"].isin(family)]
        means = {
            (name, x): _thinned(mean_curve(own[own["optimizer"] == name], x, y))
            for name in family
            for x in AXIS_LABELS
        }
        styles = optimizer_styles({name: kinds[name].method for name in family})
        _draw_family(panels, family, means, styles, notes)
        panels[0].set_ylabel(_escape_math(label), **TEXT)
        if len(families) > 1:
            title = RULE_NAMES.get(rule, rule) or "others"
            panels[0].set_title(title, loc="left", color=INK, weight="bold")
    return figure


def _thinned(mean: pd.DataFrame) -> pd.DataFrame:
    """Return at most ``DRAWN_POINTS`` points of a mean curve, which has many per seed."""
    if len(mean) <= DRAWN_POINTS:
        return mean
    return mean.iloc[np.linspace(0, len(mean) - 1, DRAWN_POINTS).round().astype(int)]


def _draw_family(
    panels: Sequence[Any],
    names: list[str],
    means: Mapping[tuple[str, str], pd.DataFrame],
    styles: Mapping[str, Mapping[str, Any]],
    notes: Mapping[str, str],
) -> None:
    """Draw the panels of one update rule, and the legend beside them."""
    limits = loss_axis([means[key] for key in means])
    few = len(names) <= MOST_BANDS
    for axes, x in zip(panels, AXIS_LABELS):
        style_axes(axes)
        log_cost = needs_log_cost_axis(
            [(means[name, x]["x"], means[name, "seconds"]["x"]) for name in names]
        )
        for name in names:
            mean = means[name, x]
            if log_cost:
                mean = mean[mean["x"] > 0]  # a log axis has no zero
            note = f" ({notes[name]})" if notes.get(name) else ""
            # No band where the curve is cut off: it would cover the whole panel.
            has_band = (mean["mean"] <= limits.top) & (few or is_prominent(styles[name]))
            _draw(
                axes,
                mean["x"].to_numpy(),
                mean["mean"].to_numpy(),
                mean["std"].where(has_band).to_numpy(),
                label=_escape_math(name + note),
                **styles[name],
            )
        axes.set_xlabel(AXIS_LABELS[x], **TEXT)
        if log_cost:
            axes.set_xscale("log")
        set_ticks(axes.xaxis, axes.get_xlim(), counts=x != "seconds")
    set_loss_axis(panels[0], limits)
    legend_beside(panels[-1])


def _figure(width: float, height: float) -> Figure:
    engine = ConstrainedLayoutEngine(wspace=0.03, hspace=0.03)
    return Figure(figsize=(width, height), layout=engine)


def _kinds(curves: pd.DataFrame) -> dict[str, OptimizerKind]:
    """Return the update rule and the method of each optimizer."""
    known = {
        name: PAPER_OPTIMIZERS.get(name, OptimizerKind("", ""))
        for name in curves["optimizer"].unique()
    }
    if "rule" not in curves or "method" not in curves:
        return known
    recorded = curves.drop_duplicates("optimizer")[["optimizer", "rule", "method"]]
    return {
        name: OptimizerKind(rule or known[name].rule, method or known[name].method)
        for name, rule, method in recorded.itertuples(index=False)
    }


def _draw(
    axes: Any, x: np.ndarray, mean: np.ndarray, spread: np.ndarray, **style: Any
) -> None:
    """Draw a line and, where the spread is known, a band around it."""
    if len(x) == 1:
        style = {**style, "marker": "o"}
    axes.plot(x, mean, **style)
    if np.isfinite(spread).any():
        low, high = mean - spread, mean + spread
        if (mean > 0).all():  # keep the band drawable on a log axis
            low = np.maximum(low, mean / 100)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.1, linewidth=0)


def _escape_math(text: str) -> str:
    """Escape dollar signs, which would start a formula in matplotlib."""
    return text.replace("$", r"\$")
