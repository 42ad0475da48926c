"""Moments, steps and sizes as text, for reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd


def format_moment(moment: pd.Timestamp) -> str:
    """Return a moment as text without trailing zeros of its time of day."""
    return str(moment).removesuffix(" 00:00:00").removesuffix(":00")


def format_steps(number: int) -> str:
    """Return a number of steps as text."""
    return "1 step" if number == 1 else f"{number:,} steps"


def format_size(targets: Sequence[np.ndarray]) -> str:
    """Return the number of series and of their steps as text."""
    lengths = [len(target) for target in targets]
    low, high = min(lengths, default=0), max(lengths, default=0)
    steps = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{len(targets)} series of {steps} steps"
