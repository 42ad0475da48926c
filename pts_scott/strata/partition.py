"""Strata: the partition of the windows, its weights, and stratified draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pts_scott._utils.rng import draw_integers
from pts_scott._utils.text import quote
from pts_scott.data.window_index import WindowIndex
from pts_scott.strata.codes import Codes, combine
from pts_scott.strata.sorted_windows import ListOrder, WindowOrder, sort_windows

if TYPE_CHECKING:
    from pts_scott.strata.policy import Policy


class Partition(Protocol):
    """What samplers need to know of strata: items, sorted by stratum."""

    @property
    def stratifier(self) -> Any:
        """What made the strata, for messages."""
        ...

    @property
    def sizes(self) -> Tensor:
        """Items per stratum."""
        ...

    @property
    def sorted(self) -> WindowOrder:
        """All items in the order of their strata."""
        ...

    @property
    def weights(self) -> Tensor:
        """The share of all items that each stratum has, in float64."""
        ...

    @property
    def starts(self) -> Tensor:
        """The position in the order at which each stratum begins."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type in which losses are weighted."""
        ...

    def __len__(self) -> int:
        """Return the number of strata."""
        ...

    def labels(self, strata: Sequence[int]) -> list[str]:
        """Return readable labels of strata."""
        ...


@dataclass(frozen=True)
class Strata:
    """The partition D = D_1 ∪ … ∪ D_B of the windows, as `Policy.stratify` makes it.

    Parameters
    ----------
    stratifier
        The fitted policy.
    codes
        The policy's code of each stratum, of shape (B,).
    sizes
        Windows per stratum, |D_i|, of shape (B,).
    sorted
        All windows in the order of their strata.
    parts
        The codes of each factor of the policy; None if only some windows are sorted.
    index
        The windows.
    """

    stratifier: Policy
    codes: np.ndarray
    sizes: Tensor
    sorted: WindowOrder
    parts: Sequence[Codes] | None
    index: WindowIndex

    @classmethod
    def build(cls, stratifier: Policy, windows: WindowIndex) -> Strata:
        """Fit the policy to the windows and sort them by stratum."""
        stratifier.check_count(windows)
        fitted = stratifier.fit(windows)
        factors = fitted.factors()
        parts = [factor.codes(windows) for factor in factors]
        for factor, part in zip(factors, parts, strict=True):
            factor.check_occupied(part.occurring(windows))
        result = sort_windows(combine(parts), windows)
        fitted.check_sizes(result.sizes)
        sizes = torch.from_numpy(result.sizes).to(windows.device)
        return cls(fitted, result.codes, sizes, result.order, parts, windows)

    @classmethod
    def of_pool(
        cls, fitted: Policy, windows: WindowIndex, pool: np.ndarray | None = None
    ) -> Strata:
        """Sort some windows by the strata of a fitted policy.

        Parameters
        ----------
        fitted
            The policy, which has to compute codes of single windows.
        windows
            The index.
        pool
            Numbers of the windows that can be drawn, in ascending order; None for all.
        """
        if pool is None or len(pool) == len(windows):
            return cls.build(fitted, windows)
        codes, member, sizes = np.unique(
            fitted.codes_at(windows, pool), return_inverse=True, return_counts=True
        )
        member = member.reshape(-1)
        # Small integers are sorted in linear time.
        member = member.astype(np.int16) if len(codes) < 2**15 else member
        numbers = pool[np.argsort(member, kind="stable")]
        order = ListOrder(torch.from_numpy(numbers).to(windows.device))
        sizes_there = torch.from_numpy(sizes).to(windows.device)
        return cls(fitted, codes, sizes_there, order, None, windows)

    def __len__(self) -> int:
        """Return the number of strata, B."""
        return len(self.codes)

    @property
    def weights(self) -> Tensor:
        """w_i = |D_i| / |D|, in float64."""
        sizes = self.sizes.cpu() if self.sizes.device.type == "mps" else self.sizes
        return sizes.double() / sizes.sum()

    @property
    def dtype(self) -> torch.dtype:
        """The type of the series, in which losses are weighted."""
        return self.index.series.dtype

    @cached_property
    def starts(self) -> Tensor:
        """The position in the order at which each stratum begins."""
        return self.sizes.cumsum(0) - self.sizes

    @property
    def order(self) -> Tensor:
        """The numbers of all windows, sorted by stratum; computed on each access."""
        places = torch.arange(int(self.sizes.sum()), device=self.sizes.device)
        return self.sorted.windows(places)

    def to(self, device: torch.device | str) -> Strata:
        """Return the same strata with their tensors on another device.

        Parameters
        ----------
        device
            The device.
        """
        moved = self.sizes.to(device), self.sorted.to(device)
        return Strata(self.stratifier, self.codes, *moved, self.parts, self.index)

    def draw(self, size: int, generator: torch.Generator, times: int = 1) -> Tensor:
        """Draw ``size`` windows per stratum, uniform and independent: (B · size,).

        Parameters
        ----------
        size
            b, windows per stratum.
        generator
            Source of randomness.
        times
            Number of draws, concatenated.
        """
        shape = (times, len(self), size)
        place = draw_integers(self.sizes[:, None], shape, generator, self.sizes.device)
        return self.sorted.windows((self.starts[:, None] + place).reshape(-1))

    def members(self, windows: np.ndarray) -> np.ndarray:
        """Return the stratum of each window; −1 for one of a code that has none.

        Parameters
        ----------
        windows
            Numbers of windows.
        """
        parts = [Codes(windows=codes) for codes in self._factor_codes(windows)]
        codes = combine(parts).windows
        assert codes is not None
        places = np.searchsorted(self.codes, codes)
        places[places == len(self.codes)] = 0
        return np.where(self.codes[places] == codes, places, -1)

    def _factor_codes(self, windows: np.ndarray) -> list[np.ndarray]:
        """Return the codes of some windows under each factor of the policy."""
        if self.parts is None:
            return [f.codes_at(self.index, windows) for f in self.stratifier.factors()]
        located = self.index.rows(windows)
        return [part.at(windows, *located) for part in self.parts]

    def labels(self, strata: Sequence[int]) -> list[str]:
        """Return readable labels of strata, based on the first window of each.

        Parameters
        ----------
        strata
            Numbers of strata.
        """
        numbers = self.sorted.windows(self.starts[list(strata)]).cpu().numpy()
        series, rows = self.index.rows(numbers)
        moments = self.index.series.timeline.moments[rows]
        names = [self.index.series.item_ids[i] for i in series]
        factors = self.stratifier.factors()
        codes = self._factor_codes(numbers)
        return [
            "; ".join(
                factor.label(names[k], moments[k], int(own[k]))
                for factor, own in zip(factors, codes, strict=True)
            )
            for k in range(len(numbers))
        ]

    def table(self) -> pd.DataFrame:
        """Return a table with one row per stratum: its label, windows and weight."""
        return pd.DataFrame(
            {
                "label": self.labels(range(len(self))),
                "windows": self.sizes.cpu().numpy(),
                "weight": self.weights.cpu().numpy(),
            },
            index=pd.RangeIndex(len(self), name="stratum"),
        )

    def __str__(self) -> str:
        smallest, count = int(self.sizes.argmin()), int(self.sizes.sum())
        (label,) = self.labels([smallest])
        return (
            f"{self.stratifier}: {len(self)} strata of {count} windows; the smallest is "
            f"{quote(label)} with {int(self.sizes[smallest])}"
        )
