"""The faults of a run: steps that were skipped, and a loss that diverges."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch

from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.losses import Losses
from pts_scott.engine.nonfinite_windows import (
    has_diverged,
    name_windows,
    nonfinite_windows,
    probe_loss,
)
from pts_scott.errors import FaultWarning, ScottWarning
from pts_scott.method.protocol import LoopReport

DIVERGED = 100.0  # times the first loss: no run has recovered from that
NAMED = 10  # faults whose windows are searched for, which takes time


class FaultLog:
    """Counts the skipped steps of a run, and names the windows that caused them.

    Parameters
    ----------
    losses, windows
        Used to find the windows that cause a fault.
    limit
        Number of consecutive skipped steps after which training ends.
    may_warn
        Returns whether this process issues warnings.
    """

    def __init__(
        self,
        losses: Losses,
        windows: WindowIndex,
        limit: int,
        may_warn: Callable[[], bool],
    ) -> None:
        self._losses, self._windows = losses, windows
        self._limit, self._may_warn = limit, may_warn
        #: Steps that were skipped so far.
        self.skipped = 0
        #: Whether training ends because too many steps in a row were skipped.
        self.gave_up = False
        self._in_a_row = 0
        self._faults = 0
        self._first_loss = math.nan
        self._diverged = False
        self._probes = torch.zeros(0, dtype=torch.long)
        self._probe_loss = math.nan

    def begin(self, probes: torch.Tensor) -> None:
        """Remember windows whose losses and gradients are finite before training."""
        self._probes = probes
        self._probe_loss = probe_loss(self._losses, self._windows, probes)

    def has_diverged(self) -> bool:
        """Return whether windows that were finite before training no longer are."""
        return has_diverged(self._losses, self._windows, self._probes)

    def record(self, report: LoopReport, steps: int) -> None:
        """Record the faults of an outer loop.

        Parameters
        ----------
        report
            The report of the loop.
        steps
            Steps of the run so far, including these.
        """
        finite = [not math.isnan(loss) for loss in report.losses]
        if all(finite):
            self._in_a_row = 0 if finite else self._in_a_row  # unchanged without steps
            return
        self._faults += 1
        if report.rolled_back:
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
                f"training ends: {self._in_a_row} steps in a row were non-finite. The "
                "parameters are those before them.",
                FaultWarning,
            )

    def _warn_skipped_step(self, report: LoopReport, first: int, steps: int) -> None:
        """Warn about non-finite windows, or once about divergence."""
        if self._diverged:
            return
        number = steps - len(report.steps) + first + 1
        if self._faults <= NAMED:
            bad = self._find_windows(report, first)
            if self.has_diverged():
                self._diverged = True
                self._warn(
                    f"training diverges: step {number} was skipped, because its loss or "
                    "gradient is non-finite or far too large, and so are those of "
                    "windows that were finite before training. Lower learning_rate, or "
                    "set clip_gradient. Further steps are skipped without a warning.",
                    FaultWarning,
                )
                return
            origin = f"comes from {name_windows(self._windows, bad)}. Check these values"
        elif self._faults & (self._faults - 1) == 0:  # later at every power of two
            origin = f"is fault number {self._faults}. Check the data"
        else:
            return
        self._warn(
            f"step {number} was skipped, because its loss or gradient is non-finite or "
            f"far too large; it {origin}, lower learning_rate, or set clip_gradient "
            f"({self.skipped} of {steps} steps were skipped so far).",
            FaultWarning,
        )

    def _find_windows(self, report: LoopReport, first: int) -> torch.Tensor:
        """Find the windows that caused a fault at a step of an outer loop."""
        # The previous step may be the cause, if its gradient was not checked.
        numbers = [s.windows for s in report.steps[max(0, first - 1) : first + 1]]
        if report.anchor_windows is not None:
            numbers.append(report.anchor_windows)
        return nonfinite_windows(self._losses, self._windows, torch.cat(numbers))

    def record_loss(self, loss: float, steps: int) -> None:
        """Warn once that a loss diverges."""
        if math.isnan(self._first_loss):
            self._first_loss = loss
        rise = loss - self._first_loss
        if self._diverged or rise <= DIVERGED * max(abs(self._first_loss), 1.0):
            return
        # The windows of this step may have larger losses: compare on the same windows.
        now = probe_loss(self._losses, self._windows, self._probes)
        if now - self._probe_loss <= DIVERGED * max(abs(self._probe_loss), 1.0):
            return
        self._diverged = True
        self._warn(
            f"the loss is {loss:.4g} at step {steps}, and was {self._first_loss:.4g} at "
            "first: training diverges. Lower learning_rate, or set "
            "clip_gradient.",
            ScottWarning,
        )

    def _warn(self, message: str, category: type[Warning]) -> None:
        if self._may_warn():
            warnings.warn(message, category, stacklevel=4)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts so far."""
        names = ("skipped", "gave_up", "_in_a_row", "_faults", "_first_loss", "_diverged")
        return {name.removeprefix("_"): getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        for name in ("skipped", "gave_up"):
            setattr(self, name, state[name])
        for name in ("in_a_row", "faults", "first_loss", "diverged"):
            setattr(self, f"_{name}", state[name])

    def retry(self) -> None:
        """Clear ``gave_up``: a resumed run tries again."""
        if self.gave_up:
            self.gave_up, self._in_a_row = False, 0
