"""Places: which windows of a stratum are drawn, with or without replacement."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pts_scott._utils.rng import draw_integers
from pts_scott.strata.partition import Partition


class Places(Protocol):
    """Which window of a stratum is drawn next."""

    def draw(self, strata: Tensor) -> Tensor:
        """Return a position within each of some strata, of shape (n,)."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next positions depend on, except generators."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        ...


class UniformPlaces:
    """Uniform positions, with replacement."""

    def __init__(self, strata: Partition, generator: torch.Generator) -> None:
        self._sizes, self._generator = strata.sizes, generator

    def draw(self, strata: Tensor) -> Tensor:
        sizes = self._sizes[strata]
        return draw_integers(sizes, sizes.shape, self._generator, sizes.device)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no state between draws."""


class ReshuffledPlaces:
    """Every position of a stratum once, in random order, before any comes again.

    The order of a stratum is derived from a seed and the number of passes over it, so
    that the state is one count per stratum. Orders in use take eight bytes per window.

    Parameters
    ----------
    strata
        The partition.
    generator
        The stream from which the seed is drawn, at the first draw: until then, it may be
        set to that of another process.
    """

    def __init__(self, strata: Partition, generator: torch.Generator) -> None:
        self._sizes = strata.sizes.cpu()
        self._counts = torch.zeros_like(self._sizes)
        self._generator = generator
        self._seed: int | None = None
        self._orders: dict[int, tuple[int, Tensor]] = {}

    def draw(self, strata: Tensor) -> Tensor:
        if self._seed is None:
            place = self._generator.device
            self._seed = int(draw_integers(2**53, (1,), self._generator, place))
        wanted = strata.cpu()
        places = torch.empty_like(wanted)
        for stratum in wanted.unique().tolist():
            chosen = wanted == stratum
            places[chosen] = self._next(stratum, int(chosen.sum()))
        return places.to(strata.device)

    def _next(self, stratum: int, count: int) -> Tensor:
        """Return the next positions of a stratum."""
        size, begin = int(self._sizes[stratum]), int(self._counts[stratum])
        self._counts[stratum] += count
        parts = []
        while count:
            turn, place = divmod(begin, size)
            part = self._order(stratum, turn)[place : place + count]
            parts.append(part)
            begin, count = begin + len(part), count - len(part)
        return torch.cat(parts)

    def _order(self, stratum: int, turn: int) -> Tensor:
        """Return the order of one pass over a stratum."""
        known = self._orders.get(stratum)
        if known is None or known[0] != turn:
            assert self._seed is not None
            seeds = np.random.SeedSequence([self._seed, stratum, turn])
            seed = int(seeds.generate_state(1, dtype=np.uint64)[0]) % 2**63
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(int(self._sizes[stratum]), generator=generator)
            known = self._orders[stratum] = turn, order
        return known[1]

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self._seed, "counts": self._counts.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seed, self._counts = state["seed"], state["counts"].clone()
        self._orders = {}
