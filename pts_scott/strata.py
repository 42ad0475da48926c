"""Strata: the windows sorted by stratum, their weights, and stratified draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pts_scott.policies import Calendar
from pts_scott.stratifier import Stratifier, combine
from pts_scott.timeline import parse_offset, step_days
from pts_scott.windows import WindowIndex


@dataclass(frozen=True)
class Strata:
    """The partition D = D_1 ∪ … ∪ D_B of the windows.

    Parameters
    ----------
    stratifier
        The fitted policy.
    codes
        The policy's code of each stratum, of shape (B,).
    order
        Numbers of all windows, sorted by stratum.
    sizes
        Windows in each stratum, |D_i|, of shape (B,).
    examples
        For each stratum, what one of its windows is: series, moment, and the code of
        each factor of the policy.
    """

    stratifier: Stratifier
    codes: np.ndarray
    order: Tensor
    sizes: Tensor
    examples: pd.DataFrame

    @classmethod
    def build(cls, stratifier: Stratifier, windows: WindowIndex) -> Strata:
        """Fit the policy to the windows and sort them by it."""
        stratifier.check_count(windows)
        fitted = stratifier.fit(windows)
        factors = fitted.factors()
        parts = [factor.codes(windows) for factor in factors]
        expanded = [part.expand(windows) for part in parts]
        for factor, own in zip(factors, expanded, strict=True):
            factor.check_occupied(own)
        codes, first, member, sizes = np.unique(
            expanded[0] if len(parts) == 1 else combine(parts).expand(windows),
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        fitted.check_sizes(sizes)
        order = np.argsort(member.reshape(-1), kind="stable")
        series, rows = windows.rows(first)
        examples = pd.DataFrame(dict(enumerate(own[first] for own in expanded)))
        examples["item_id"] = [windows.series.item_ids[i] for i in series]
        examples["moment"] = windows.series.timeline.moments[rows]
        device = windows.device
        return cls(
            fitted,
            codes,
            torch.from_numpy(order).to(device),
            torch.from_numpy(sizes).to(device),
            examples,
        )

    def __len__(self) -> int:
        """The number of strata, B."""
        return len(self.codes)

    @property
    def weights(self) -> Tensor:
        """w_i = |D_i| / |D|, in float64."""
        return self.sizes.double() / len(self.order)

    def to(self, device: torch.device | str) -> Strata:
        """The same strata with their tensors on another device."""
        order, sizes = self.order.to(device), self.sizes.to(device)
        return Strata(self.stratifier, self.codes, order, sizes, self.examples)

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """``size`` windows from each stratum, uniform and independent: (B · size,)."""
        shape = (len(self), size)
        device = self.order.device
        # In double precision a stratum may hold 2^53 windows before a draw is skewed.
        place = torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
        place = (place * self.sizes[:, None]).long()
        starts = self.sizes.cumsum(0) - self.sizes
        return self.order[(starts[:, None] + place).reshape(-1)]

    def label(self, stratum: int) -> str:
        """What a stratum is, for a person."""
        example = self.examples.iloc[stratum]
        return "; ".join(
            factor.label(example["item_id"], example["moment"], int(example[number]))
            for number, factor in enumerate(self.stratifier.factors())
        )

    def table(self) -> pd.DataFrame:
        """One row a stratum: its label, windows and weight."""
        return pd.DataFrame(
            {
                "label": [self.label(stratum) for stratum in range(len(self))],
                "windows": self.sizes.cpu().numpy(),
                "weight": self.weights.cpu().numpy(),
            },
            index=pd.RangeIndex(len(self), name="stratum"),
        )

    def __str__(self) -> str:
        smallest = int(self.sizes.argmin())
        return (
            f"{self.stratifier}: {len(self)} strata of {len(self.order)} windows; the "
            f"smallest is {self.label(smallest)!r} with {int(self.sizes[smallest])}"
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
