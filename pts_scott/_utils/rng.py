"""Random numbers: one seed, a generator for each use, and global state left alone."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Generators:
    """One stream of random numbers for each use.

    They are apart so that methods which need more numbers of one kind still see
    the same numbers of the others: SVRG draws no anchor, and its mini-batches are
    those of SCott all the same.
    """

    anchor: torch.Generator
    inner: torch.Generator
    length: torch.Generator
    output: torch.Generator

    @classmethod
    def from_seed(cls, seed: int, device: torch.device | str = "cpu") -> Generators:
        """Four independent streams; those that draw windows live on ``device``."""
        seeds = np.random.SeedSequence(seed).generate_state(4, dtype=np.uint64)
        places = (device, device, "cpu", "cpu")
        return cls(
            *(_generator(int(s), place) for s, place in zip(seeds, places, strict=True))
        )

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Where each stream is."""
        return {f.name: getattr(self, f.name).get_state() for f in fields(self)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from there."""
        for name, value in state.items():
            getattr(self, name).set_state(value)


def _generator(seed: int, device: torch.device | str) -> torch.Generator:
    # The meta device has no generator of its own and takes the CPU's.
    place = draw_device(torch.device(device))
    place = torch.device("cpu") if place.type == "meta" else place
    return torch.Generator(place).manual_seed(seed % 2**63)


def fresh_seed() -> int:
    """A seed from the operating system, for those who give none."""
    return int(np.random.SeedSequence().generate_state(1)[0])


@contextlib.contextmanager
def isolated(seed: int, device: torch.device) -> Iterator[None]:
    """Run a block on global random state of its own, then restore the old state.

    Initial weights and dropout come from torch's global generator, which no
    library lets us replace. Inside this block it depends on ``seed`` alone, and
    after it nothing has changed for the caller.
    """
    with undrawn(device):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        yield


@contextlib.contextmanager
def undrawn(device: torch.device) -> Iterator[None]:
    """Restore the global random state on exit, as if the block had drawn nothing."""
    before = global_state(device)
    try:
        yield
    finally:
        set_global_state(before, device)


def differ_by(rank: int) -> None:
    """Give each of several processes its own global random numbers."""
    seed = torch.initial_seed() + rank
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


#: The global generators that a network may draw from.
SOURCES = ("torch", "device", "numpy", "python")


def global_state(
    device: torch.device, sources: Iterable[str] = SOURCES
) -> dict[str, Any]:
    """Return the global random state as tensors and plain values.

    Parameters
    ----------
    device
        The training device, whose generator is one of the sources.
    sources
        Names of the generators to read.
    """
    read = {
        "torch": torch.get_rng_state,
        "device": lambda: _device_rng(device).get_rng_state(*_place(device)),
        "numpy": _numpy_state,
        "python": lambda: _as_list(random.getstate()),
    }
    if device.type in ("cpu", "meta"):
        del read["device"]
    return {name: read[name]() for name in sources if name in read}


def set_global_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Set the global generators that ``state`` names."""
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "device" in state and device.type != "cpu":
        _device_rng(device).set_rng_state(state["device"], *_place(device))
    if "numpy" in state:
        kind, keys, *rest = state["numpy"]
        np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    if "python" in state:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))


def drawn_from(before: Mapping[str, Any], after: Mapping[str, Any]) -> frozenset[str]:
    """Name the generators whose state differs between two `global_state` results."""
    return frozenset(name for name in before if not _same(before[name], after[name]))


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in zip(left, right, strict=True)
    )


def _numpy_state() -> list[Any]:
    kind, keys, *rest = np.random.get_state(legacy=True)
    return [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest]


def _as_list(state: tuple[Any, ...]) -> list[Any]:
    version, words, gauss = state
    return [version, list(words), gauss]


def _device_rng(device: torch.device) -> Any:
    return torch.get_device_module(device)


def _place(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # there is one MPS device only


def draw_integers(
    below: torch.Tensor | int,
    shape: tuple[int, ...],
    generator: torch.Generator,
    device: torch.device,
) -> torch.Tensor:
    """Draw integers uniformly from 0 to ``below`` − 1, for limits up to 2^53.

    ``torch.randint`` takes the remainder of 32 random bits, which favours small
    numbers: with a limit of 2e8, the first 94,967,296 come up in 48.66 % of all draws
    and not in 47.48 %.

    Parameters
    ----------
    below
        Exclusive upper limits; they broadcast with ``shape``.
    shape
        Shape of the result.
    generator
        Where the random bits come from.
    device
        Where the result is used.
    """
    place = draw_device(device)
    unit = torch.rand(shape, generator=generator, dtype=torch.float64, device=place)
    limit = below.to(place) if isinstance(below, torch.Tensor) else below
    return (unit * limit).long().to(device)


def draw_device(device: torch.device) -> torch.device:
    """Return where random numbers for a device are drawn: MPS has no float64."""
    return torch.device("cpu") if device.type == "mps" else device
