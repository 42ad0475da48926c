"""The budget of a run: steps, seconds and gradients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Limits of a run; training ends when the first of them is reached.

    Parameters
    ----------
    steps
        Total number of steps; None for no limit.
    seconds
        Seconds of training, evaluation not counted; None for no limit.
    gradients
        Gradients computed; None for no limit. It is never exceeded.
    """

    steps: int | None
    seconds: float | None
    gradients: int | None

    def allows(self, steps: int, seconds: float, gradients: int, cost: int) -> bool:
        """Return whether another step, of ``cost`` gradients, may be made."""
        return (
            (self.steps is None or steps < self.steps)
            and (self.seconds is None or seconds < self.seconds)
            and (self.gradients is None or gradients + cost <= self.gradients)
        )

    def spent(self, steps: int, seconds: float, gradients: int) -> float:
        """Return the share of the budget that is used up, between 0 and 1."""
        parts = (
            (steps, self.steps),
            (seconds, self.seconds),
            (gradients, self.gradients),
        )
        shares = [used / limit for used, limit in parts if limit is not None]
        return min(1.0, max(shares, default=0.0))
