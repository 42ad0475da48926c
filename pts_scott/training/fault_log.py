"""What went wrong in a run: steps that were skipped, and a loss that diverges."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch

from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.nonfinite_windows import (
    culprits,
    has_diverged,
    name_windows,
    probe_loss,
)
from pts_scott.errors import FaultWarning, ScottWarning
from pts_scott.method.scott import OuterLoop

DIVERGED = 100.0  # times its first size: a loss from which no run has come back
NAMED = 10  # faults whose windows are looked for, which takes its time


class FaultLog:
    """Counts the steps of a run that were skipped, and says whose fault it was.

    Parameters
    ----------
    gradients, windows
        By which the windows behind a fault are found.
    limit
        Steps in a row that may be skipped before training ends.
    speaks
        Whether this process is the one that gives warnings.
    """

    def __init__(
        self,
        gradients: Gradients,
        windows: WindowIndex,
        limit: int,
        speaks: Callable[[], bool],
    ) -> None:
        self._gradients, self._windows = gradients, windows
        self._limit, self._speaks = limit, speaks
        #: Steps that were skipped so far.
        self.skipped = 0
        #: Whether so many in a row were, that training ends.
        self.gave_up = False
        self._in_a_row = 0
        self._faults = 0
        self._first_loss = math.nan
        self._diverged = False
        self._probes = torch.zeros(0, dtype=torch.long)
        self._probe_loss = math.nan

    def begin(self, probes: torch.Tensor) -> None:
        """Remember what is finite before the first step.

        Parameters
        ----------
        probes
            Windows whose losses and gradients are.
        """
        self._probes = probes
        self._probe_loss = probe_loss(self._gradients, self._windows, probes)

    def see(self, report: OuterLoop, losses: list[float], steps: int) -> None:
        """Look at an outer loop.

        Parameters
        ----------
        report
            What it did.
        losses
            Of its steps; NaN for one that was skipped.
        steps
            Steps of the run so far, these included.
        """
        finite = [not math.isnan(loss) for loss in losses]
        if all(finite):
            self._in_a_row = 0 if finite else self._in_a_row  # no step says nothing
            return
        self._faults += 1
        if report.undone:  # no step of it is left
            self.skipped += len(finite)
            self._in_a_row += 1
        else:
            self.skipped += finite.count(False)
            trailing = finite[::-1].index(True) if True in finite else len(finite)
            self._in_a_row = trailing + (0 if True in finite else self._in_a_row)
        self._warn_skipped_step(report, finite.index(False), steps)
        if self._in_a_row >= self._limit:
            self.gave_up = True
            self._warn(
                f"training ends: {self._in_a_row} steps in a row were not finite. The "
                "parameters are those before them.",
                FaultWarning,
            )

    def _warn_skipped_step(self, report: OuterLoop, first: int, steps: int) -> None:
        """Warn of windows that are not finite, or once that training diverges."""
        if self._diverged:
            return
        number = steps - report.steps + first + 1
        if self._faults <= NAMED:
            bad = self._culprits(report, first)
            if has_diverged(self._gradients, self._windows, self._probes):
                self._diverged = True
                self._warn(
                    f"training diverges: step {number} was skipped, because its loss or "
                    "gradient is not finite, or far too large, and so are those of "
                    "windows that were finite before training. Lower learning_rate, or "
                    "set clip_gradient. Further steps are skipped without a warning.",
                    FaultWarning,
                )
                return
            origin = (
                f"comes from {name_windows(self._windows, bad)}. Look at these values"
            )
        elif self._faults & (self._faults - 1) == 0:  # later at every power of two
            origin = f"is the {self._faults}th fault. Look at the data"
        else:
            return
        self._warn(
            f"step {number} was skipped, because its loss or gradient is not finite, or "
            f"far too large; it {origin}, lower learning_rate, or set clip_gradient "
            f"({self.skipped} of {steps} steps were skipped so far).",
            FaultWarning,
        )

    def _culprits(self, report: OuterLoop, first: int) -> torch.Tensor:
        """Find the windows behind a fault at a step of an outer loop."""
        # The step before may have done it, if nobody looked at its gradient.
        numbers = list(report.windows[max(0, first - 1) : first + 1])
        if report.anchor_windows is not None:
            numbers.append(report.anchor_windows)
        return culprits(self._gradients, self._windows, torch.cat(numbers))

    def see_loss(self, loss: float, steps: int) -> None:
        """Warn once that a loss diverges."""
        if math.isnan(self._first_loss):
            self._first_loss = loss
        rise = loss - self._first_loss
        if self._diverged or rise <= DIVERGED * max(abs(self._first_loss), 1.0):
            return
        # Other windows than at first may have larger losses: ask the same ones again.
        now = probe_loss(self._gradients, self._windows, self._probes)
        if now - self._probe_loss <= DIVERGED * max(abs(self._probe_loss), 1.0):
            return
        self._diverged = True
        self._warn(
            f"the loss is {loss:.4g} at step {steps} and began at "
            f"{self._first_loss:.4g}: training diverges. Lower learning_rate, or set "
            "clip_gradient.",
            ScottWarning,
        )

    def _warn(self, message: str, category: type[Warning]) -> None:
        if self._speaks():
            warnings.warn(message, category, stacklevel=4)

    def state_dict(self) -> dict[str, Any]:
        """What was counted so far."""
        names = ("skipped", "gave_up", "_in_a_row", "_faults", "_first_loss", "_diverged")
        return {name.removeprefix("_"): getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        for name in ("skipped", "gave_up"):
            setattr(self, name, state[name])
        for name in ("in_a_row", "faults", "first_loss", "diverged"):
            setattr(self, f"_{name}", state[name])

    def go_on(self) -> None:
        """Forget that training was given up: it is tried again."""
        if self.gave_up:
            self.gave_up, self._in_a_row = False, 0
