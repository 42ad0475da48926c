"""The layout of a library's instances: which parts of which fields, and which windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from pts_scott.data.window_index import Batch


@dataclass(frozen=True)
class Layout:
    """What an instance splitter cuts out of an entry, and under which names.

    Parameters
    ----------
    past_length, future_length
        Steps before the split, and from the forecast start on.
    lead_time
        Steps between the split and the forecast start.
    target
        Name of the target.
    split
        Time series that become ``past_…`` and ``future_…``, including the target.
    joined
        Time series whose past and future stay in one piece, under their own name.
    past_only
        Time series of which only the past is kept, under their own name.
    pad
        Name of the padding indicator.
    pad_dtype
        Type of the padding indicator; None for the target's.
    dummy_value
        Value of the steps before the beginning of a series.
    time_first
        Whether fields are (steps, dimensions) instead of (dimensions, steps).
    """

    past_length: int
    future_length: int
    lead_time: int = 0
    target: str = "target"
    split: tuple[str, ...] = ("target",)
    joined: tuple[str, ...] = ()
    past_only: tuple[str, ...] = ()
    pad: str = "past_is_pad"
    pad_dtype: torch.dtype | None = None
    dummy_value: float = 0.0
    time_first: bool = True

    @property
    def time_fields(self) -> tuple[str, ...]:
        """Names of the entry's time series, without duplicates."""
        return tuple(dict.fromkeys((*self.split, *self.joined, *self.past_only)))

    def pieces(self) -> dict[str, tuple[str, str]]:
        """Map each name in an instance to a part ("past", "future", …) of a field."""
        found = {name: ("both", name) for name in self.joined}
        found |= {name: ("past", name) for name in self.past_only}
        for name in self.split:
            found[f"past_{name}"] = ("past", name)
            found[f"future_{name}"] = ("future", name)
        return found | {self.pad: ("pad", self.target)}


@dataclass(frozen=True)
class Sampling:
    """The windows of a series that a library's sampler may draw.

    Parameters
    ----------
    min_past, min_future
        Minimum number of steps of the series before and after the split.
    last
        Whether it is always the last window.
    """

    min_past: int = 0
    min_future: int = 0
    last: bool = False

    @property
    def first_split(self) -> int:
        """First step at which a series may be split: a window needs some past."""
        return max(self.min_past, 1)

    def steps_after_split(self, layout: Layout) -> int:
        """Return how many steps of a series a window needs from its split on."""
        return max(self.min_future, layout.lead_time + layout.future_length)


class BatchTransform(Protocol):
    """A pipeline's transformation of instances, applied to a whole batch."""

    def needs(self, names: set[str]) -> set[str]:
        """Return the input fields from which the fields ``names`` are made."""
        ...

    def __call__(self, batch: Batch) -> Batch:
        """Return the transformed batch."""
        ...


def required_fields(
    names: Iterable[str], transforms: Sequence[BatchTransform]
) -> set[str]:
    """Return the fields of a raw batch that ``names`` require after all transforms."""
    required = set(names)
    for transform in reversed(transforms):
        required = transform.needs(required)
    return required
