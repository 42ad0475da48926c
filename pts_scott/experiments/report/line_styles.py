"""Colours and line styles of the figures: one look per method in all of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from pts_scott.experiments.report.axes import GREY, INK

# Most are from the Okabe-Ito palette, whose colours remain distinct for colour-blind
# readers; all are readable on white and on black.
BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PINK, PURPLE, BROWN = "#D55E00", "#CC79A7", "#8A70D6", "#A6761D"

DASHED, DOTTED, DASH_DOTTED = (0, (4, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5))

# The first optimizer of a method gets the first look, a second one the next.
LOOKS: Mapping[str, Sequence[tuple[str, Any]]] = {
    "plain": ((INK, DASHED), (GREY, DOTTED), (GREY, DASH_DOTTED)),
    "scott": ((BLUE, "-"), (SKY, "-")),
    "scsg": ((PINK, DASH_DOTTED),),
    "auto": ((VERMILION, "-"),),
    "stratified": ((GREEN, "-"), (ORANGE, "-"), (PURPLE, "-")),
    "mars": ((BROWN, DASH_DOTTED),),
}
OTHER_LOOKS = tuple(
    itertools.product((PINK, BROWN, SKY, PURPLE, GREY), (DOTTED, DASHED, DASH_DOTTED))
)
#: Colours and markers of batch sizes, in the figure that has dots of several.
SIZE_LOOKS = ((BLUE, "o"), (VERMILION, "D"), (GREEN, "s"), (PINK, "^"))
WIDTH = 1.5
HIGHLIGHTED = "auto"  # the default of the trainer has the thickest line

SAMPLER_LINES: Mapping[str, Any] = {
    "scsg": DOTTED,
    "stratified": DASH_DOTTED,
    "spread": DASHED,
}


def optimizer_styles(methods: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the line styles of the optimizers in one panel, given their methods."""
    left = {method: list(looks) for method, looks in LOOKS.items()}
    others = itertools.cycle(OTHER_LOOKS)
    styles = {}
    for name, method in methods.items():
        own = left.get(method)
        colour, line = own.pop(0) if own else next(others)
        width = 2.4 if method == HIGHLIGHTED else WIDTH
        styles[name] = {"color": colour, "linestyle": line, "linewidth": width}
    return styles


def is_prominent(style: Mapping[str, Any]) -> bool:
    """Return whether a line is the plain optimizer's or a highlighted one."""
    return bool(style["color"] == INK or style["linewidth"] > WIDTH)


def sampler_styles(samplers: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the line styles of samplers: the colour shows the stratifier ("": none)."""
    palette = itertools.cycle((BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, PURPLE, BROWN))
    colours = {"": INK}
    styles = []
    for sampler, stratifier in samplers:
        if stratifier not in colours:
            colours[stratifier] = next(palette)
        line = SAMPLER_LINES.get(sampler, "-")
        colour = colours[stratifier]
        styles.append({"color": colour, "linestyle": line, "linewidth": WIDTH})
    return styles
