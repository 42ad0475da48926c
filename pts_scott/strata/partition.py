"""Strata: the windows sorted by stratum, their weights, and stratified draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pts_scott._utils.rng import draw_integers
from pts_scott._utils.text import quote
from pts_scott.data.offsets import parse_offset, step_days
from pts_scott.data.window_index import WindowIndex
from pts_scott.strata.policies import Calendar
from pts_scott.strata.sorted_windows import Order, sort_windows
from pts_scott.strata.stratifier import Codes, Stratifier, combine


@dataclass(frozen=True)
class Strata:
    """The partition D = D_1 ∪ … ∪ D_B of the windows.

    Parameters
    ----------
    stratifier
        The fitted policy.
    codes
        The policy's code of each stratum, of shape (B,).
    sizes
        Windows in each stratum, |D_i|, of shape (B,).
    sorted
        All windows in the order of their strata.
    parts
        The codes of each factor of the policy.
    index
        The windows.
    """

    stratifier: Stratifier
    codes: np.ndarray
    sizes: Tensor
    sorted: Order
    parts: Sequence[Codes]
    index: WindowIndex

    @classmethod
    def build(cls, stratifier: Stratifier, windows: WindowIndex) -> Strata:
        """Fit the policy to the windows and sort them by it."""
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

    def __len__(self) -> int:
        """The number of strata, B."""
        return len(self.codes)

    @property
    def weights(self) -> Tensor:
        """w_i = |D_i| / |D|, in float64."""
        sizes = self.sizes.cpu() if self.sizes.device.type == "mps" else self.sizes
        return sizes.double() / sizes.sum()

    @cached_property
    def starts(self) -> Tensor:
        """The place in the order at which each stratum begins."""
        return self.sizes.cumsum(0) - self.sizes

    @property
    def order(self) -> Tensor:
        """The numbers of all windows, sorted by stratum: a list made when asked for."""
        places = torch.arange(int(self.sizes.sum()), device=self.sizes.device)
        return self.sorted.windows(places)

    def to(self, device: torch.device | str) -> Strata:
        """The same strata with their tensors on another device."""
        moved = self.sizes.to(device), self.sorted.to(device)
        return Strata(self.stratifier, self.codes, *moved, self.parts, self.index)

    def draw(self, size: int, generator: torch.Generator, times: int = 1) -> Tensor:
        """``size`` windows from each stratum, uniform and independent: (B · size,).

        ``times`` draws at once, one after the other, are those of as many calls.
        """
        shape = (times, len(self), size)
        place = draw_integers(self.sizes[:, None], shape, generator, self.sizes.device)
        return self.sorted.windows((self.starts[:, None] + place).reshape(-1))

    def labels(self, strata: Sequence[int]) -> list[str]:
        """What some strata are, for a person, told from the first window of each."""
        numbers = self.sorted.windows(self.starts[list(strata)]).cpu().numpy()
        series, rows = self.index.rows(numbers)
        moments = self.index.series.timeline.moments[rows]
        names = [self.index.series.item_ids[i] for i in series]
        factors = self.stratifier.factors()
        codes = [part.at(numbers, series, rows) for part in self.parts]
        return [
            "; ".join(
                factor.label(names[k], moments[k], int(own[k]))
                for factor, own in zip(factors, codes, strict=True)
            )
            for k in range(len(numbers))
        ]

    def table(self) -> pd.DataFrame:
        """One row a stratum: its label, windows and weight."""
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


def default_stratifier(freq: object) -> Stratifier:
    """A calendar policy that suits a frequency.

    Weekday and season for steps shorter than a day, as the paper does for hourly
    data; season for days and weeks, month for months, quarter for quarters, and
    year for what is longer.
    """
    days = step_days(parse_offset(freq))
    for limit, parts in (
        (1.0, ("weekday", "season")),
        (28.0, ("season",)),
        (32.0, ("month",)),
        (93.0, ("quarter",)),
    ):
        if days < limit:
            return Calendar(parts)
    return Calendar(("year",))
