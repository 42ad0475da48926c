"""The policy of the paper's synthetic data."""

from __future__ import annotations

from pts_scott.datasets.synthetic import ORDERS, PATTERN_LENGTH
from pts_scott.strata.policies import BySeries, Periodic
from pts_scott.strata.policy import Policy


def synthetic_stratifier() -> Policy:
    """Return the paper's policy: strata by series and predicted pattern, 16 in all."""
    return Periodic(len(ORDERS), unit=PATTERN_LENGTH) * BySeries()
