"""Format the numbers of a report."""

from __future__ import annotations

import math

DASH = "–"  # stands for an unknown number


def format_number(value: float) -> str:
    """Format a loss or a metric with as many decimals as its magnitude needs."""
    return _format_decimals(value, _decimals(value))


def format_mean(mean: float, std: float) -> str:
    """Format a mean with its standard deviation, if there is one."""
    decimals = _decimals(mean, std)
    text = _format_decimals(mean, decimals)
    if math.isfinite(std):
        text += f" ± {_format_decimals(std, decimals)}"
    return text


def format_seconds(value: float) -> str:
    """Format seconds with two decimals, or with one from ten seconds on."""
    return format_known(value, ".1f" if value >= 10 else ".2f")


def format_share(value: float) -> str:
    """Format a share in percent: 8.5 %, 62 %, 250 %; from ten times on, as a factor."""
    if value >= 10:
        return f"{value:.0f}\u00a0×" if math.isfinite(value) else "∞"
    if math.isnan(value):
        return DASH
    return f"{100 * value:{'.0f' if value >= 0.0995 else '.1f'}}\u00a0%"


def format_known(value: float, spec: str) -> str:
    """Format a number with the given format specification; NaN becomes a dash."""
    return DASH if math.isnan(value) else format(value, spec)


def _format_decimals(value: float, decimals: int | None) -> str:
    return format_known(value, ".3e" if decimals is None else f".{decimals}f")


def _decimals(value: float, spread: float = math.nan) -> int | None:
    """Return three decimals, or as many as give four digits; None: use an exponent.

    With a spread, return at least as many as show its first digit.
    """
    size = max(abs(value), spread if math.isfinite(spread) else 0.0)
    if not math.isfinite(size) or size >= 1e6 or 0 < size < 1e-4:
        return None
    decimals = 3
    if size and not 0.1 <= size < 10:
        decimals = max(3 - math.floor(math.log10(size)), 0)
    if spread > 0:
        decimals = max(decimals, math.ceil(-math.log10(spread)))
    return min(decimals, 7)
