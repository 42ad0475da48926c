"""Line 7 of Algorithm 2: the early stop of the inner loop by γ."""

from __future__ import annotations

import math

from pts_scott.method.protocol import Step


class EarlyStop:
    """The test ‖v(t,k)‖² ≤ γ‖v(t,0)‖², which ends the inner loop.

    A step that was skipped or non-finite ends its outer loop, too: the anchor may be the
    cause, and the next loop draws a new one.

    Parameters
    ----------
    gamma
        γ; None for no early stop.
    """

    def __init__(self, gamma: float | None) -> None:
        self._gamma = gamma
        self._first: float | None = None

    def begin(self) -> None:
        """Start a new outer loop, which has its own ‖v(t,0)‖²."""
        self._first = None

    def __call__(self, step: Step) -> bool:
        """Return whether this step is the last of its outer loop."""
        if step.skipped or step.cancelled:
            return True
        return self._gamma is not None and self.is_met(float(step.squared_norm))

    def is_met(self, squared_norm: float) -> bool:
        """Return whether ‖v(t,k)‖² ≤ γ‖v(t,0)‖²; the first call sets ‖v(t,0)‖²."""
        assert self._gamma is not None
        if self._first is None:
            self._first = squared_norm
        return squared_norm <= self._gamma * self._first or not math.isfinite(
            squared_norm
        )


class NeverStop(EarlyStop):
    """No early stop, for methods without an anchor: even a skipped step ends no loop."""

    def __init__(self) -> None:
        super().__init__(None)

    def __call__(self, step: Step) -> bool:
        return False
