"""Evenly spaced numbers, used wherever this package selects a subset."""

from __future__ import annotations

import torch
from torch import Tensor


def evenly_spaced(count: int, size: int) -> Tensor:
    """Return at most ``size`` of the numbers 0 to ``count`` − 1, both ends included.

    Parameters
    ----------
    count
        How many numbers there are to choose from.
    size
        How many to choose; if there are no more than that, all are returned.
    """
    return torch.linspace(0, count - 1, size, dtype=torch.float64).long().unique()
