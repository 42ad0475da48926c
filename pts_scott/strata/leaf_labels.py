"""Readable labels of a regression tree's leaves: the conditions that lead to each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pts_scott.strata.window_features import CALENDAR

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
FIRST = {"day": 1, "month": 1}  # numbered from 1 by people, from 0 by the features

LISTED = 3  # things that a label lists by name

Interval = tuple[float, float]  # above the first, and at most the second


def leaf_labels(
    nodes: np.ndarray,
    names: Sequence[str],
    listed: Mapping[str, tuple[Sequence[str], np.ndarray]] | None = None,
) -> dict[int, str]:
    """Return a label of each leaf, by its node.

    Parameters
    ----------
    nodes
        Rows of feature, threshold, node below and node above; the feature of a leaf is
        −1.
    names
        Names of the features.
    listed
        Names of things and their values, by feature: conditions list the things instead.
        Things with one name have one value, and are listed once.
    """
    listed = listed or {}
    labels: dict[int, str] = {}
    stack: list[tuple[int, dict[str, Interval]]] = [(0, {})]
    while stack:
        node, limits = stack.pop()
        feature, threshold, below, above = nodes[node]
        if feature < 0:
            parts = [
                _list(name, limits[name], *listed[name])
                if name in listed
                else _condition(name, limits[name])
                for name in names
                if name in limits
            ]
            labels[node] = "; ".join(parts) or "all windows"
            continue
        name = names[int(feature)]
        low, high = limits.get(name, (-math.inf, math.inf))
        stack.append((int(below), {**limits, name: (low, min(high, threshold))}))
        stack.append((int(above), {**limits, name: (max(low, threshold), high)}))
    return labels


def _list(
    name: str, interval: Interval, things: Sequence[str], values: np.ndarray
) -> str:
    """Return the things whose value lies in an interval."""
    low, high = interval
    # Thresholds are compared with values in single precision.
    single = values.astype(np.float32).astype(np.float64)
    inside = np.flatnonzero((low < single) & (single <= high))
    found = list(dict.fromkeys(things[place] for place in inside.tolist()))
    if len(found) <= LISTED:
        return f"{name} {', '.join(found)}"
    return f"{len(found)} {name} such as {', '.join(found[:LISTED])}"


def _condition(name: str, interval: Interval) -> str:
    low, high = interval
    if name in CALENDAR:
        return _calendar_condition(name, low, high)
    if name in ("level", "series level"):  # logarithms of 1 + the level
        low = low if math.isinf(low) else math.expm1(low)
        high = math.expm1(high)
    if name == "zeros":
        name = "share of zeros"
    unit = " spreads" if name in ("last value", "recent values") else ""
    if unit:
        return f"{name} {_range(low, high, signed=True)}{unit} from level"
    return f"{name} {_range(low, high)}"


def _range(low: float, high: float, signed: bool = False) -> str:
    form = "+.2g" if signed else ".3g"
    if math.isinf(low):
        return f"at most {high:{form}}"
    if math.isinf(high):
        return f"above {low:{form}}"
    return f"{low:{form}} to {high:{form}}"


def _calendar_condition(name: str, low: float, high: float) -> str:
    first = 0 if math.isinf(low) else math.floor(low) + 1
    last = None if math.isinf(high) else math.floor(high)
    if name == "weekday":
        last = 6 if last is None else last
        if (first, last) == (5, 6):
            return "weekend"
        if (first, last) == (0, 4):
            return "Mon to Fri"
        days = WEEKDAYS[first : last + 1]
        return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    shift = FIRST.get(name, 0)
    if last is None:
        return f"{name} from {first + shift}"
    if first == last:
        return f"{name} {first + shift}"
    return f"{name} {first + shift} to {last + shift}"
