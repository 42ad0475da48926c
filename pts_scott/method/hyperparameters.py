"""The hyperparameters of a method, in the paper's notation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Hyperparameters:
    """The numbers that distinguish one run of a method from another.

    Parameters
    ----------
    method
        A name in `pts_scott.method.methods.METHODS`.
    batch_size
        M, windows in the mini-batch of a step.
    anchor_batch_size
        b, windows from each stratum in an anchor.
    inner_steps
        K, maximum number of inner steps of an outer loop.
    inner_length
        "fixed": K steps; "geometric": a random number of steps with mean B.
    gamma
        γ, early stop of the inner loop; None to disable it.
    allocation
        Which share of a sample comes from which stratum; None for the method's own.
    replacement
        Whether a window may be drawn again before all others of its stratum.
    """

    method: str = "scott"
    batch_size: int = 32
    anchor_batch_size: int = 1
    inner_steps: int = 20
    inner_length: str = "fixed"
    gamma: float | None = 0.125
    allocation: str | Mapping[str, float] | None = None
    replacement: bool = True
