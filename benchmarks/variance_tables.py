"""Tables of measured variances: of each sampler, and of what a control variate leaves."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from pts_scott.experiments.report import figures
from pts_scott.experiments.report.formatting import DASH, format_known, format_share
from pts_scott.experiments.report.tables import Row, Table

SPREAD_NAMES = "spread", "learned strata, spread"
ANCHOR = 1  # b of the comparison's "SCott", whose runs are measured


def sampler_table(variance: pd.DataFrame) -> Table:
    """Return the median variance of samplers along a run, relative to uniform."""
    later = variance[(variance["step"] > 0) & (variance["sampler"] != "uniform")]
    names = [
        SPREAD_NAMES["learned" in stratifier]
        if sampler == "spread"
        else figures.SAMPLER_NAMES.get(sampler, sampler)
        for sampler, stratifier in zip(later["sampler"], later["stratifier"])
    ]
    medians = later.assign(label=names).pivot_table(
        index="setting", columns="label", values="relative", aggfunc="median"
    )
    columns = [*dict.fromkeys(names)]
    rows = [
        Row.of(name, *(f"{v:.2f}" if pd.notna(v) else DASH for v in values))
        for name, *values in medians[columns].itertuples()
    ]
    return Table(["Setting", *columns], rows, labels=1)


def control_variate(variance: pd.DataFrame, sizes: Mapping[str, int]) -> pd.DataFrame:
    """Return what the variance of v(t,k) consists of, relative to a plain step.

    Parameters
    ----------
    variance
        The measurements, at the end of an inner loop.
    sizes
        M by setting.

    Returns
    -------
    pandas.DataFrame
        Indexed by setting, medians over the measurements: ``steps``, inner steps per
        anchor; ``left`` = τ²/σ², with τ² the variance of ∇f_ξ(θ) − ∇f_ξ(snapshot) for
        one window ξ; ``anchor``, the variance of the anchor in units of σ²/M.
    """
    measured = variance[variance["step"] > 0]
    keys = ["setting", "step"]
    plain = measured[measured["sampler"] == "uniform"].set_index(keys)["variance"]
    own = measured[measured["sampler"] == "scott"].set_index(keys)
    plain = plain.reindex(own.index)  # σ²/n
    # A step costs n = 2 × batch_size + Bb/K, and the mean of the K steps of a loop has
    # the variance of the anchor where that of one step has its K-th part.
    steps = own["strata"] * ANCHOR / (own["gradients"] - 2 * own["batch_size"])
    anchor = (own["loop_relative"] - own["relative"]) * plain / (steps - 1)
    left = (own["variance"] - anchor) * own["batch_size"]
    total = plain * own["gradients"]
    m = own.index.get_level_values("setting").map(sizes)
    found = pd.DataFrame(
        {"steps": steps, "left": left / total, "anchor": anchor * m / total}
    )
    return found.groupby("setting").median()


def control_variate_table(variance: pd.DataFrame, sizes: Mapping[str, int]) -> Table:
    """Return what the variance of v(t,k) consists of, relative to a plain step."""
    found, rows = control_variate(variance, sizes), []
    for setting, steps, left, anchor in found.itertuples():
        cells = (left, anchor, left + anchor)
        rows.append(
            Row.of(setting, format_known(steps, ".1f"), *map(format_share, cells))
        )
    header = ["Setting", "inner steps per anchor", "left by the control variate, τ²/σ²"]
    header += ["anchor, b = 1", "v(t,k) per step"]
    caption = (
        f"{DASH}: loops ended so early that the anchor's share of a step alone cost more "
        "than the step at whose cost the samplers are compared."
    )
    return Table(header, rows, caption if found.isna().any(axis=None) else "", labels=1)
