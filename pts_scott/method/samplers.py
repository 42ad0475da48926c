"""Samplers: the windows from which a gradient is computed, and their weights."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from pts_scott._utils.rng import draw_device
from pts_scott.data.window_index import WindowIndex
from pts_scott.method.places import Places, UniformPlaces
from pts_scott.method.protocol import Sample
from pts_scott.strata.partition import Partition, Strata

DRAWN_AHEAD = 4096  # windows that are drawn together
SAMPLES_AHEAD = 256  # at most: each is a tensor, which takes more memory than one window
#: Consecutive samples that are stratified together, about as many as momentum averages.
SAMPLES_TOGETHER = 16


class Sampler(Protocol):
    """A source of windows for one kind of gradient."""

    #: Windows in one sample.
    size: int
    #: Whether a sample has weights; otherwise each window counts 1/M.
    is_weighted: bool

    def draw(self) -> Sample:
        """Draw the next sample."""
        ...

    def put_back(self, sample: Sample) -> None:
        """Put back the sample of a cancelled step; it becomes the next one."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next samples depend on, except the generators."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        ...


class DrawsAhead:
    """Base of samplers that draw many samples together.

    A draw takes as many operations for hundreds of samples as for one, which would be
    3 % of a small step, and on an accelerator it is copied to the device, which waits.

    Parameters
    ----------
    size
        Windows in one sample.
    device
        Where the windows are.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self._device = device
        self._ahead: list[Tensor] = []  # samples drawn in advance, the next one last

    def _draw_together(self, times: int) -> Tensor:
        """Draw the windows of some samples, which are those of as many single draws."""
        raise NotImplementedError

    def _next(self) -> Tensor:
        if not self._ahead:
            times = max(1, min(SAMPLES_AHEAD, DRAWN_AHEAD // self.size))
            windows = self._draw_together(times).reshape(times, self.size)
            self._ahead = list(windows.unbind())[::-1]
        return self._ahead.pop()

    def put_back(self, sample: Sample) -> None:
        self._ahead.append(sample.windows)

    def state_dict(self) -> dict[str, Any]:
        # One tensor, because hundreds of small ones would take long to save.
        return {"ahead": torch.stack(self._ahead) if self._ahead else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        ahead = state["ahead"]
        self._ahead = [] if ahead is None else list(ahead.to(self._device).unbind())


class UniformSampler(DrawsAhead):
    """Windows drawn uniformly, with replacement: a mini-batch ξ.

    Parameters
    ----------
    windows
        The index.
    size
        M, windows in one sample.
    generator
        The stream of random numbers.
    """

    is_weighted = False

    def __init__(
        self, windows: WindowIndex, size: int, generator: torch.Generator
    ) -> None:
        super().__init__(size, windows.device)
        self._windows, self._generator = windows, generator

    def _draw_together(self, times: int) -> Tensor:
        return self._windows.draw(times * self.size, self._generator)

    def draw(self) -> Sample:
        return Sample(self._next())


class WeightedUniformSampler(UniformSampler):
    """A uniform sampler with explicit weights 1/M: SCSG's anchor."""

    is_weighted = True

    def draw(self) -> Sample:
        return Sample(self._next(), uniform_weights(self._windows, self.size))


class StratifiedSampler(DrawsAhead):
    """b windows of each stratum, with weights w_i/b: SCott's anchor.

    Parameters
    ----------
    windows, strata
        The index, and its partition.
    per_stratum
        b.
    generator
        The stream of random numbers.
    """

    is_weighted = True

    def __init__(
        self,
        windows: WindowIndex,
        strata: Strata,
        per_stratum: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__(len(strata) * per_stratum, strata.sizes.device)
        self._strata, self._b, self._generator = strata, per_stratum, generator
        like = uniform_weights(windows, 0)
        weights = (strata.weights / per_stratum).repeat_interleave(per_stratum)
        self._weights = weights.to(like)

    def _draw_together(self, times: int) -> Tensor:
        return self._strata.draw(self._b, self._generator, times)

    def draw(self) -> Sample:
        return Sample(self._next(), self._weights)


class FullSampler:
    """Every window once: the full gradient, SVRG's anchor."""

    is_weighted = True

    def __init__(self, windows: WindowIndex) -> None:
        self.size = len(windows)
        self._windows = windows

    def draw(self) -> Sample:
        windows = torch.arange(self.size, device=self._windows.device)
        return Sample(windows, uniform_weights(self._windows, self.size))

    def put_back(self, sample: Sample) -> None:
        """Do nothing: every sample is the same."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no state between samples."""


class AllocatedSampler:
    """Windows drawn from strata by their shares a_i, with weights w_i/(n·a_i).

    The shares of all strata are laid out on [0, 1). One point falls into each n-th of
    it, uniformly, and takes a window of the stratum that it hits: a stratum gets n·a_i
    windows up to rounding, and n·a_i on average. Of 16 consecutive samples, each has its
    point in another 16th of every n-th, in random order: a single sample does not depend
    on that, but their mean is as evenly spread as one sample of 16·n windows.

    Parameters
    ----------
    strata
        The partition.
    shares
        a_i, positive, with sum 1.
    size
        n, windows in one sample.
    generator
        The stream of random numbers.
    places
        Which windows of a stratum are drawn; None for uniform ones, with replacement.
    order
        The order in which the strata are laid out; None for their own. Those that share
        an n-th are neighbours in it.
    """

    is_weighted = True

    def __init__(
        self,
        strata: Partition,
        shares: Tensor,
        size: int,
        generator: torch.Generator,
        places: Places | None = None,
        order: Tensor | None = None,
    ) -> None:
        self.size = size
        self._strata, self._generator = strata, generator
        device = strata.sizes.device
        draws_on = draw_device(device)
        shares = shares.to(strata.weights)
        order = torch.arange(len(strata)) if order is None else order
        self._order = order.to(device)
        self._ends = shares[order.to(shares.device)].cumsum(0)[:-1].to(draws_on)
        weights = strata.weights / (size * shares)
        self._weights = weights.to(device, strata.dtype)
        self._slots = torch.arange(size, dtype=torch.float64, device=draws_on)
        self._blocks = max(1, DRAWN_AHEAD // (SAMPLES_TOGETHER * size))
        self._places = places or UniformPlaces(strata, generator)
        # Drawn in advance, the next one last: first those in the list.
        self._ahead: list[Sample] = []
        self._drawn: tuple[Tensor, ...] = ()

    def draw(self) -> Sample:
        if not self._ahead:
            if not self._drawn:
                self._drawn = self._draw_together()
            # Thousands of tensors at a time take longer than as many in small groups.
            first = max(0, len(self._drawn[0]) - SAMPLES_AHEAD)
            groups = (part[first:].unbind() for part in self._drawn)
            self._ahead = list(map(Sample, *groups))
            self._drawn = tuple(part[:first] for part in self._drawn) if first else ()
        return self._ahead.pop()

    def _draw_together(self) -> tuple[Tensor, Tensor]:
        """Draw some samples, which takes as many operations as drawing one."""
        block = self._blocks, SAMPLES_TOGETHER, self.size
        inside = (self._random(block).argsort(dim=1) + self._random(block)) / block[1]
        points = (self._slots + inside) / self.size
        shape = self._blocks * SAMPLES_TOGETHER, self.size
        hit = torch.searchsorted(self._ends, points, right=True).reshape(-1)
        strata = self._order[hit.to(self._order.device)]
        places = self._strata.starts[strata] + self._places.draw(strata)
        windows = self._strata.sorted.windows(places).reshape(shape)
        return windows.flip(0), self._weights[strata].reshape(shape).flip(0)

    def _random(self, shape: tuple[int, ...]) -> Tensor:
        place, stream = self._ends.device, self._generator
        return torch.rand(shape, generator=stream, dtype=torch.float64, device=place)

    def put_back(self, sample: Sample) -> None:
        self._ahead.append(sample)

    def state_dict(self) -> dict[str, Any]:
        # Two tensors, because a thousand small ones would take long to save.
        parts = [self._drawn] if self._drawn else []
        if self._ahead:
            parts.append(tuple(map(torch.stack, zip(*self._ahead, strict=True))))
        ahead = [torch.cat(groups) for groups in zip(*parts, strict=True)]
        return {"ahead": ahead or None, **self._places.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self._strata.sizes.device
        self._ahead = []
        self._drawn = tuple(part.to(device) for part in state["ahead"] or ())
        self._places.load_state_dict(state)


def uniform_weights(windows: WindowIndex, size: int) -> Tensor:
    """Return ``size`` times 1/size, in the windows' precision and on their device."""
    values = windows.series.values
    like = torch.empty(0, dtype=windows.series.dtype, device=values.device)
    return like.new_full((size,), 1 / max(size, 1))
