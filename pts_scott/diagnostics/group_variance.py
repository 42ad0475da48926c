"""Variances within groups of gradients that arrive in parts, and estimates from them.

Gradients are compared with the mean of their group before a norm is taken, so that no
large sums cancel, and only the mean of the current group is kept: memory does not grow
with the number of windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pts_scott.method.protocol import Tensors

GROUP = 64  # windows per group; each group yields one estimate of a variance


def split_sample(count: int) -> tuple[int, int]:
    """Return the number of groups, and windows per group, of ``count`` windows."""
    groups = max(2, count // GROUP) if count >= 4 else 1
    return groups, count // groups


class GroupSquares:
    """Squared distances from the mean of their group, for rows that arrive in parts.

    Groups are consecutive, and a part may end inside a group.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self._group = _Group()
        #: The sum of squared distances of each complete group.
        self.squares: list[Tensor] = []

    def add(self, rows: Tensors) -> None:
        """Add the next rows: tensors of shape (R, …)."""
        begin, end = 0, len(rows[0])
        while begin < end:
            size = self._sizes[len(self.squares)]
            stop = min(end, begin + size - self._group.count)
            self._group.add([t[begin:stop] for t in rows])
            begin = stop
            if self._group.count == size:
                self.squares.append(self._group.squares)
                self._group = _Group()


class _Group:
    """Mean, and sum of squared distances from it, of rows that arrive in parts.

    Parts are merged by the update of Chan, Golub and LeVeque, which does not subtract
    large numbers from each other, so the mean may have the precision of the gradients.
    Sums are in float64.
    """

    def __init__(self) -> None:
        self.count = 0
        self.squares = torch.zeros((), dtype=torch.float64)
        self._mean: list[Tensor] = []

    def add(self, rows: list[Tensor]) -> None:
        """Add some rows: tensors of shape (R, …)."""
        size, before = len(rows[0]), self.count
        self.count += size
        if size > 1:
            mean = [t.mean(dim=0) for t in rows]
            distances = (t - m for t, m in zip(rows, mean, strict=True))
            self.squares = self.squares + _squared_norm(distances)
        else:
            mean = [t[0].clone() for t in rows]
        if not before:
            self._mean = mean
            return
        torch._foreach_sub_(mean, self._mean)  # its distance from the mean so far
        self.squares = self.squares + _squared_norm(mean) * (before * size / self.count)
        torch._foreach_add_(self._mean, mean, alpha=size / self.count)


def _squared_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return ‖g‖² over all tensors, summed in float64."""
    norms = torch.stack([t.norm() for t in tensors])
    return norms.cpu().double().square().sum()  # MPS has no double precision


@dataclass(frozen=True)
class Estimate:
    """An estimated number and the square of its standard error."""

    value: float
    squared_error: float

    @property
    def standard_error(self) -> float:
        """The standard error of ``value``."""
        return math.sqrt(self.squared_error)

    def __add__(self, other: Estimate) -> Estimate:
        """Return the sum of two estimates from independent draws."""
        return Estimate(
            self.value + other.value, self.squared_error + other.squared_error
        )


def sum_of_group_means(values: Tensor, *, exact: bool) -> Estimate:
    """Return the sum over strata of the mean over independent groups.

    Parameters
    ----------
    values
        One number per stratum and group, of shape (strata, groups).
    exact
        Whether the numbers have no sampling error.
    """
    value = float(values.mean(dim=1).sum())
    if exact:
        return Estimate(value, 0.0 * value)  # NaN stays NaN
    groups = values.shape[1]
    if groups == 1:
        return Estimate(value, math.nan)
    return Estimate(value, float(values.var(dim=1).sum()) / groups)
