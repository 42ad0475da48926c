"""Captions of the figures, in sentences."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from pts_scott.experiments.report.figures import MOST_BANDS, sampler_label


def loss_caption(loss: str, part: str, windows: int | None) -> str:
    """Return the caption of the loss curves on training or test windows."""
    return (
        f"The {loss or 'loss'} on {f'up to {windows} ' if windows else ''}{part} windows "
        "against steps, computed gradients and training time, with one row of panels per "
        "update rule. Lines are means over the seeds, bands one standard deviation to "
        f"each side; of more than {MOST_BANDS} lines, only the plain optimizer's and the "
        "thick ones have one. The plain optimizer is the dashed line without a colour. "
        "The legend lists the lines as they end, the lowest last. A curve ends where the "
        "first of its seeds ends."
    )


def reach_caption(loss: str) -> str:
    """Return the caption of the figure of shares."""
    return (
        "How much of the plain optimizer's training time and gradients each optimizer "
        f"needs to reach the plain optimizer's final {loss} loss. Each dot is a setting, "
        "each colour a batch size, and the bar is at the median. Dots on the left of the "
        "dashed line got there with less; those in the grey lane, whose number is beside "
        "them, did not get there."
    )


def variance_caption(variance: pd.DataFrame) -> str:
    """Return the caption of the variance of the samplers, with its notes."""
    caption = (
        "The variance of the gradient of one step under each sampler during training, at "
        "equal cost. Bands are ± one standard error."
    )
    if "loop_relative" in variance:
        at_end = variance["seconds"] == variance["seconds"].max()
        last = variance[at_end].dropna(subset=["loop_relative"])
        ratios = [
            f"{sampler_label(row)} {row['loop_relative']:.2g}"
            for _, row in last[last["sampler"] != "uniform"].iterrows()
        ]
        if ratios:
            caption += (
                " The error of an anchor is shared by all steps that use it and does not "
                "average out: the variance of the mean over these steps, at the end of "
                f"the run and relative to uniform sampling, is {', '.join(ratios)}."
            )
    if "note" in variance:
        caption += "".join(f" * {note}." for note in variance["note"].dropna().unique())
    return caption


def cut_off_sentence(highest: Mapping[str, float]) -> str:
    """Return a sentence about curves that leave the axes; empty if there are none."""
    curves = "; ".join(f"{name}, up to {top:.3g}" for name, top in highest.items())
    return f" Cut off at the upper edge: {curves}." if curves else ""
