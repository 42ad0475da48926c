"""Evenly spaced numbers, exact or random, used wherever a subset is selected."""

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
    if count <= size:
        return torch.arange(count)
    return torch.linspace(0, count - 1, size, dtype=torch.float64).long().unique()


def spaced_draws(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw ``size`` of the numbers 0 to ``count`` − 1, one from each of equal parts.

    They are in ascending order, and every number is equally likely. On the CPU.
    """
    inside = torch.rand(size, generator=generator, dtype=torch.float64)
    parts = torch.arange(size, dtype=torch.float64) + inside
    return (parts * (count / size)).long().clamp(max=count - 1)
