"""The gradient noise scale, and how sure it is."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from pts_scott.diagnostics.allocation_variance import mean_square, uniform_variance

#: Standard errors between an estimate and the ends of its range.
WIDTH = 2.0
#: Relative variance of ‖sketch‖² for a gradient of rank one, times the dimensions.
PROJECTION_VARIANCE = 8.0


class NoiseScale(NamedTuple):
    """σ²/‖μ‖²: the batch size at which the noise is as large as the mean gradient.

    With batches much smaller than this, twice the batch needs half the steps; with much
    larger ones the noise no longer matters (McCandlish et al., 2018).

    Parameters
    ----------
    value
        The estimate; infinite where the mean gradient cannot be told from zero, and NaN
        where all gradients are zero.
    low, high
        Its range, two standard errors of ‖μ‖² to either side.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, sketches: Tensor) -> NoiseScale:
        """Return the noise scale, from the gradients of windows drawn uniformly.

        Parameters
        ----------
        sketches
            One sketch per row: (windows, dimensions).
        """
        variance, mean = uniform_variance(sketches), mean_square(sketches)
        if not variance > 0 and not mean > 0:
            return cls(math.nan, math.nan, math.nan)
        error = WIDTH * mean_square_error(sketches)
        return cls(*(_ratio(variance, m) for m in (mean, mean + error, mean - error)))

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "unknown"
        low = rounded(self.low)
        if math.isinf(self.high):
            return f"above {low}"
        return f"{rounded(self.value)} ({low} to {rounded(self.high)})"


def mean_square_error(sketches: Tensor) -> float:
    """Return the standard error of ‖μ‖²: of the drawn windows, and of the sketches."""
    count, dimensions = sketches.shape
    others = sketches.sum(dim=0) - sketches
    products = (sketches * others).sum(dim=1) / (count - 1)
    squares = float((products - products.mean()).square().sum())
    drawn = 4 * (count - 1) / (count * max(count - 2, 1) ** 2) * squares  # jackknife
    projected = PROJECTION_VARIANCE / dimensions * mean_square(sketches) ** 2
    return math.sqrt(drawn + projected)


def _ratio(variance: float, mean: float) -> float:
    return variance / mean if mean > 0 else math.inf


def rounded(value: float) -> str:
    """Return a number with two significant digits."""
    if not value > 0:
        return "0"
    digits = 1 - math.floor(math.log10(value) + 1e-12)
    return f"{round(value, digits):,.{max(digits, 0)}f}"
