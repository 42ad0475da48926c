"""Allocations: which share of the windows of a sample comes from which stratum.

A stratum of weight w_i whose share is a_i contributes a window with weight w_i/(n·a_i) to
a sample of n windows. The estimate is unbiased for any positive shares; they determine
its variance alone.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pts_scott._utils.arguments import one_of
from pts_scott._utils.text import quote
from pts_scott.errors import ArgumentError
from pts_scott.method.labels import values_by_label
from pts_scott.strata.partition import Partition

#: None: what the method's paper says; a name; or the share of each stratum by its label.
Allocation = str | Mapping[str, float] | None

ALLOCATIONS = ("proportional", "equal", "spread")
#: The part of a spread allocation that is proportional, so that no weight exceeds 10.
PROPORTIONAL_PART = 0.1


def check_allocation(allocation: Any) -> Allocation:
    """Return an allocation if it is one; labels are compared with the strata later.

    Raises
    ------
    ArgumentError
    """
    if allocation is None:
        return None
    if isinstance(allocation, str):
        return one_of("allocation", allocation, ALLOCATIONS)
    if not isinstance(allocation, Mapping) or not allocation:
        raise ArgumentError(
            f"allocation={allocation!r}: expected one of {', '.join(ALLOCATIONS)}, or "
            "the share of each stratum, e.g. {'Sat': 0.5, 'Sun': 0.5}."
        )
    shares: dict[str, float] = {}
    for label, share in allocation.items():
        number = isinstance(share, numbers.Real) and not isinstance(share, bool)
        if not number or not 0 < share < math.inf:
            raise ArgumentError(
                f"allocation: the share of {quote(label)} is {share!r}; expected a "
                "number above 0, or windows of that stratum would never be drawn."
            )
        shares[str(label)] = float(share)
    total = sum(shares.values())
    if not math.isclose(total, 1.0, abs_tol=1e-6):
        raise ArgumentError(
            f"allocation: the shares sum to {total:g}; they must sum to 1."
        )
    return shares


def shares_of(
    allocation: str | Mapping[str, float], strata: Partition, spread: Tensor | None = None
) -> Tensor:
    """Return the share a_i of each stratum, in float64.

    Parameters
    ----------
    allocation
        A name, or shares by label.
    strata
        The partition.
    spread
        σ_i, the spread of a window's gradient within each stratum. A spread allocation
        is proportional while it is unknown.

    Raises
    ------
    ArgumentError
        If a table names an unknown stratum, or omits one.
    """
    if not isinstance(allocation, str):
        return _shares_by_label(allocation, strata)
    if allocation == "equal":
        return torch.full_like(strata.weights, 1 / len(strata))
    if allocation == "spread" and spread is not None:
        return spread_shares(strata.weights, spread)
    return strata.weights


def spread_shares(weights: Tensor, spread: Tensor) -> Tensor:
    """Return Neyman's shares a_i ∝ w_i·σ_i, with a tenth in proportion to w_i.

    Parameters
    ----------
    weights, spread
        w_i and σ_i. If no stratum has any spread, shares are proportional.
    """
    wanted = weights * spread.to(weights)
    total = wanted.sum()
    if not total > 0:
        return weights
    return (1 - PROPORTIONAL_PART) * wanted / total + PROPORTIONAL_PART * weights


def _shares_by_label(table: Mapping[str, float], strata: Partition) -> Tensor:
    otherwise = "or its windows would never be drawn"
    values = values_by_label("allocation", "share", table, strata, otherwise)
    if len(table) < len(values):
        raise ArgumentError(
            f"allocation: several strata of {strata.stratifier} have the same label, so "
            "shares by label are ambiguous; use 'proportional', 'equal' or 'spread'."
        )
    return torch.tensor(values, dtype=torch.float64).to(strata.weights)
