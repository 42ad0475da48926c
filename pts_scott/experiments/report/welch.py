"""Welch's test of whether two sets of seeds have the same mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import scipy.stats

SIGNIFICANCE_LEVEL = 0.05
UNDECIDED = "undecided"
VERDICTS = ("better", "tied", "worse")  # what a challenger may be; lower is better


@dataclass(frozen=True)
class Sample:
    """The finished seeds of an optimizer: their number, mean and standard deviation."""

    mean: float
    std: float
    count: int
    diverged: int = 0
    failed: int = 0
    outcome: str = ""  # in words, if not all seeds finished

    @classmethod
    def of(cls, row: Mapping[str, Any], column: str) -> Sample:
        """Return the sample of a column in a row of ``summarize_runs``."""
        return cls(
            mean=row[f"{column}_mean"],
            std=row[f"{column}_std"],
            count=int(row["finished"]),
            diverged=int(row["diverged"]),
            failed=int(row["failed"]),
            outcome=row["outcome"],
        )

    @property
    def squared_error(self) -> float:
        """Square of the standard error of the mean."""
        return self.std**2 / max(self.count, 1)


@dataclass(frozen=True)
class Difference:
    """The difference of two means, challenger − baseline, and Welch's test of it.

    The difference is also expressed in its standard error, √(s₁²/n₁ + s₂²/n₂). Two means
    are tied unless the p-value is below ``SIGNIFICANCE_LEVEL``.
    """

    challenger: Sample
    baseline: Sample

    @property
    def value(self) -> float:
        """The difference of the means."""
        return self.challenger.mean - self.baseline.mean

    @property
    def standard_error(self) -> float:
        """Standard error of the difference; NaN if one of them has a single seed."""
        return math.sqrt(self.challenger.squared_error + self.baseline.squared_error)

    @property
    def errors(self) -> float:
        """The difference divided by its standard error."""
        if self.standard_error > 0 or math.isnan(self.standard_error):
            return self.value / self.standard_error
        return math.copysign(math.inf, self.value) if self.value else 0.0

    @property
    def p_value(self) -> float:
        """The p-value of the two-sided test; 0 or 1 if the seeds do not vary."""
        errors = self.errors
        if math.isinf(errors) or errors == 0:
            return 0.0 if errors else 1.0
        if math.isnan(errors):
            return math.nan
        samples = (self.challenger, self.baseline)
        denominator = sum(
            s.squared_error**2 / (s.count - 1) for s in samples if s.squared_error > 0
        )
        degrees_of_freedom = self.standard_error**4 / denominator
        return float(2 * scipy.stats.t.sf(abs(errors), degrees_of_freedom))

    @property
    def distinguished(self) -> bool:
        """Whether all seeds finished and the test distinguishes their means."""
        complete = not (self.challenger.outcome or self.baseline.outcome)
        return complete and self.p_value < SIGNIFICANCE_LEVEL

    @property
    def verdict(self) -> str:
        """What the challenger is; one that diverged in any seed loses."""
        a, b = self.challenger, self.baseline
        if a.failed or b.failed or (a.diverged and b.diverged):
            return UNDECIDED
        if a.diverged or b.diverged:
            return "worse" if a.diverged else "better"
        if math.isnan(self.errors):
            return UNDECIDED
        if self.p_value >= SIGNIFICANCE_LEVEL:
            return "tied"
        return "better" if self.errors < 0 else "worse"
