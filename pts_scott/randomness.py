"""Random numbers: one seed, a generator for each use, and global state left alone."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
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
    place = "cpu" if torch.device(device).type == "meta" else device
    return torch.Generator(place).manual_seed(seed % 2**63)


def fresh_seed() -> int:
    """A seed from the operating system, for those who give none."""
    return int(np.random.SeedSequence().generate_state(1)[0])


@contextlib.contextmanager
def isolated(seed: int, device: torch.device) -> Iterator[None]:
    """Run a block on global random state of its own, and put the old one back.

    Initial weights and dropout come from torch's global generator, which no
    library lets us replace. Inside this block it depends on ``seed`` alone, and
    after it nothing has changed for the caller.
    """
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)
            random.seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def global_state(device: torch.device) -> dict[str, Any]:
    """The global random state, as tensors and plain values.

    Dropout draws from torch's; what a library does to instances may draw from the others.
    """
    version, words, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state(legacy=True)
    words32 = torch.from_numpy(np.asarray(keys, dtype=np.int64))
    state = {
        "torch": torch.get_rng_state(),
        "python": [version, list(words), gauss],
        "numpy": [kind, words32, *rest],
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_global_state(state: dict[str, Any], device: torch.device) -> None:
    """Go on from a global random state."""
    version, words, gauss = state["python"]
    kind, keys, *rest = state["numpy"]
    torch.set_rng_state(state["torch"])
    random.setstate((version, tuple(words), gauss))
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
