"""`StratifiedBatchSampler`: stratified mini-batches for any training loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pts_scott._utils.arguments import named_arguments, switch, whole_number
from pts_scott.errors import ArgumentError
from pts_scott.method.allocation import check_allocation, shares_of
from pts_scott.method.labels import values_by_label
from pts_scott.method.places import Places, ReshuffledPlaces, UniformPlaces
from pts_scott.method.protocol import Sample
from pts_scott.method.samplers import AllocatedSampler
from pts_scott.strata.partition import Partition, Strata
from pts_scott.strata.sorted_windows import ListOrder


class StratifiedBatchSampler(torch.utils.data.Sampler[list[int]]):
    """Stratified mini-batches of any dataset, for ``DataLoader(batch_sampler=...)``.

    Each mini-batch has as many items of a stratum as its share asks for, up to rounding,
    so its loss varies less than that of a uniform one. Weighted by `weights`, it is an
    unbiased estimate of the mean loss, whatever the shares.

    Parameters
    ----------
    strata
        The stratum of each item: a sequence, an array, a tensor or a ``pd.Series`` of
        labels; or `Strata`, whose items are the windows of its index.
    batch_size
        Items in one mini-batch.
    allocation
        ``"proportional"`` to the size of a stratum, ``"equal"``, ``"spread"``
        (Neyman's: proportional to size times ``spread``), or the share of each stratum
        by its label.
    spread
        For ``"spread"``, by label: the standard deviation of what is averaged (losses, or
        norms of gradients) within each stratum.
    num_batches
        Mini-batches of one iteration; by default, as many as cover all items once.
    replacement
        Whether items are drawn independently. Otherwise each item of a stratum is drawn
        once before any is drawn again.
    seed
        Seed of the draws; by default, a random one. Iterating again continues: the next
        epoch has other mini-batches.

    Examples
    --------
    >>> sampler = StratifiedBatchSampler(["a"] * 90 + ["b"] * 10, 4, "equal", seed=0)
    >>> indices, weights = next(sampler.batches())
    >>> weights.sum().item()
    1.0
    >>> losses = torch.rand(4)
    >>> loss = (sampler.weights[indices] * losses).sum()
    """

    @named_arguments
    def __init__(
        self,
        strata: Strata | Sequence[Any] | np.ndarray | Tensor | pd.Series,
        batch_size: int = 32,
        allocation: str | Mapping[str, float] = "proportional",
        spread: Mapping[str, float] | None = None,
        num_batches: int | None = None,
        replacement: bool = True,
        seed: int | None = None,
    ) -> None:
        self.strata = strata if isinstance(strata, Strata) else _labelled(strata)
        self.batch_size = whole_number("batch_size", batch_size)
        count = int(self.strata.sizes.sum())
        self.num_batches = -(-count // self.batch_size)
        if num_batches is not None:
            self.num_batches = whole_number("num_batches", num_batches)
        chosen = check_allocation(allocation)
        if chosen is None:
            raise ArgumentError("allocation=None: expected a name, or shares by label.")
        if (spread is None) is (chosen == "spread"):
            raise ArgumentError(
                "allocation='spread' and spread= belong together: pass the standard "
                "deviation within each stratum, e.g. spread={'a': 1.0, 'b': 3.5}."
            )
        deviations = None
        if spread is not None:
            arguments = "spread", "deviation", spread, self.strata, "even if it is 0"
            deviations = torch.tensor(values_by_label(*arguments), dtype=torch.float64)
        self.shares = shares_of(chosen, self.strata, deviations)
        generator = torch.Generator()
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(whole_number("seed", seed, minimum=0))
        self._generator = generator
        made = UniformPlaces if switch("replacement", replacement) else ReshuffledPlaces
        places = cast(Places, made(self.strata, generator))
        self._sampler = AllocatedSampler(
            self.strata, self.shares, self.batch_size, generator, places
        )

    @cached_property
    def weights(self) -> Tensor:
        """The weight of each item in the loss of a mini-batch: w_i/(n·a_i)."""
        strata = self.strata
        own = strata.weights / (self.batch_size * self.shares)
        places = torch.arange(int(strata.sizes.sum()), device=strata.sizes.device)
        numbers = strata.sorted.windows(places)
        found = torch.zeros(int(numbers.max()) + 1, dtype=strata.dtype)
        found[numbers.cpu()] = own.repeat_interleave(strata.sizes).to(found)
        return found

    def batches(self) -> Iterator[Sample]:
        """Yield the indices and the weights of each mini-batch, as tensors."""
        for _ in range(self.num_batches):
            yield self._sampler.draw()

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of each mini-batch."""
        for indices, _ in self.batches():
            yield indices.tolist()

    def __len__(self) -> int:
        """Return the number of mini-batches of one iteration."""
        return self.num_batches

    def state_dict(self) -> dict[str, Any]:
        """Return what the next mini-batches depend on."""
        return {
            "generator": self._generator.get_state(),
            "sampler": self._sampler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state.

        Parameters
        ----------
        state
            What `state_dict` returned.
        """
        self._generator.set_state(state["generator"])
        self._sampler.load_state_dict(state["sampler"])


@dataclass(frozen=True)
class _Labelled:
    """Strata of items that have labels."""

    names: tuple[str, ...]
    sizes: Tensor
    sorted: ListOrder
    stratifier: str = "the labels"
    dtype: torch.dtype = torch.float32

    def __len__(self) -> int:
        return len(self.names)

    @property
    def weights(self) -> Tensor:
        return self.sizes.double() / self.sizes.sum()

    @cached_property
    def starts(self) -> Tensor:
        return self.sizes.cumsum(0) - self.sizes

    def labels(self, strata: Sequence[int]) -> list[str]:
        return [self.names[number] for number in strata]


def _labelled(labels: Any) -> Partition:
    if isinstance(labels, Tensor):
        labels = labels.cpu().numpy()
    column = pd.Series(
        np.asarray(labels) if not isinstance(labels, pd.Series) else labels
    )
    if not len(column) or column.to_numpy().ndim != 1:
        raise ArgumentError("strata: expected one label for each item, and found none.")
    if column.isna().any():
        row = int(column.isna().to_numpy().argmax())
        raise ArgumentError(
            f"strata: item {row} has no label; every item belongs to a stratum."
        )
    codes, found = pd.factorize(column, sort=True)
    sizes = torch.from_numpy(np.bincount(codes))
    order = torch.from_numpy(np.argsort(codes, kind="stable"))
    return _Labelled(tuple(map(str, found)), sizes, ListOrder(order))
