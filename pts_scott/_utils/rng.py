"""Random numbers: one seed, one generator per use, and global state left untouched."""

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
    """One stream of random numbers per use.

    With separate streams, a method that draws more numbers of one kind still sees the
    same numbers of the others: SVRG draws no anchor, yet its mini-batches are those of
    SCott.
    """

    anchor: torch.Generator
    inner: torch.Generator
    length: torch.Generator
    output: torch.Generator
    probe: torch.Generator

    @classmethod
    def from_seed(cls, seed: int) -> Generators:
        """Create independent streams, on the CPU: all devices draw the same windows."""
        seeds = np.random.SeedSequence(seed).generate_state(5, dtype=np.uint64)
        return cls(*(torch.Generator().manual_seed(int(s) % 2**63) for s in seeds))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the position of each stream."""
        return {f.name: getattr(self, f.name).get_state() for f in fields(self)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Set each stream to a position that `state_dict` returned."""
        for name, value in state.items():
            getattr(self, name).set_state(value)


def fresh_seed() -> int:
    """Return a seed from the operating system, if the user gave none."""
    return int(np.random.SeedSequence().generate_state(1)[0])


@contextlib.contextmanager
def isolated_rng(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global random state, and restore the previous state on exit.

    Initial weights and dropout come from torch's global generator, which no library
    lets us replace. Within the context it depends on ``seed`` alone, and afterwards
    nothing has changed for the caller.
    """
    with preserved_rng(device):
        _seed_global_state(seed, device)
        yield


@contextlib.contextmanager
def preserved_rng(device: torch.device) -> Iterator[None]:
    """Restore the global random state on exit, as if nothing had been drawn."""
    before = global_state(device)
    try:
        yield
    finally:
        set_global_state(before, device)


def offset_global_seed(rank: int, device: torch.device) -> None:
    """Add the rank to the global seed, so that processes draw different numbers."""
    _seed_global_state(torch.initial_seed() + rank, device)


def _seed_global_state(seed: int, device: torch.device) -> None:
    # torch.manual_seed would also seed devices whose state is not restored.
    torch.default_generator.manual_seed(seed)
    if device.type not in WITHOUT_STATE:
        state = torch.Generator(device).manual_seed(seed).get_state()
        _device_rng(device).set_rng_state(state, *_place(device))
    np.random.seed(seed % 2**32)
    random.seed(seed)


#: The global generators that a network may draw from.
SOURCES = ("torch", "device", "numpy", "python")
#: Devices that have no random state beside torch's own.
WITHOUT_STATE = ("cpu", "meta")


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
        "python": _python_state,
    }
    if device.type in WITHOUT_STATE:
        del read["device"]
    return {name: read[name]() for name in sources if name in read}


def set_global_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Set the global generators that ``state`` names.

    That of a device is left alone if the state is one of another kind of device.
    """
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "device" in state and is_of_device(state, device):
        _device_rng(device).set_rng_state(state["device"], *_place(device))
    if "numpy" in state:
        kind, keys, *rest = state["numpy"]
        np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    if "python" in state:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))


def is_of_device(state: Mapping[str, Any], device: torch.device) -> bool:
    """Return whether a state was saved on the same kind of device."""
    own = global_state(device, ["device"])
    sizes = {len(x["device"]) if "device" in x else 0 for x in (state, own)}
    return len(sizes) == 1


def changed_sources(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> frozenset[str]:
    """Return the generators whose state differs between two `global_state` results."""
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


def _python_state() -> list[Any]:
    version, words, gauss = random.getstate()
    return [version, list(words), gauss]


def _device_rng(device: torch.device) -> Any:
    return torch.get_device_module(device)


def _place(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # there is only one MPS device


def draw_integers(
    below: torch.Tensor | int,
    shape: tuple[int, ...],
    generator: torch.Generator,
    device: torch.device,
) -> torch.Tensor:
    """Draw integers uniformly from 0 to ``below`` − 1, for limits up to 2^53.

    ``torch.randint`` takes the remainder of 32 random bits, which favours small
    numbers: with a limit of 2e8, the first 94,967,296 come up in 48.66 % of all draws
    instead of 47.48 %.

    Parameters
    ----------
    below
        Exclusive upper limits; they broadcast with ``shape``.
    shape
        Shape of the result.
    generator
        Source of the random bits.
    device
        Device of the result.
    """
    place = draw_device(device)
    unit = torch.rand(shape, generator=generator, dtype=torch.float64, device=place)
    limit = below.to(place) if isinstance(below, torch.Tensor) else below
    return (unit * limit).long().to(device)


def draw_device(device: torch.device) -> torch.device:
    """Return the device on which numbers for ``device`` are drawn.

    It is the CPU, so that one seed draws the same windows on all devices, and a run can
    be resumed on another one; and MPS has no float64. Tensors on the meta device have no
    values that could be copied.
    """
    return device if device.type == "meta" else torch.device("cpu")
