"""Progress of many runs: a line for each, and how long the rest will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from pts_scott.experiments.runs import Point


class Progress:
    """Says how far a benchmark is.

    Parameters
    ----------
    budgets
        Seconds, or another measure of how long it takes, of each run to be made.
    say
        Where lines go.
    """

    def __init__(
        self, budgets: Sequence[float], say: Callable[[str], None] = print
    ) -> None:
        self._total, self._rest, self._say = len(budgets), sum(budgets), say
        self._began = time.perf_counter()
        self._done, self._spent = 0, 0.0
        self._renew = sys.stderr.isatty()

    def finished(self, label: str, record: dict[str, Any], budget: float) -> None:
        """Say what became of a run, and how much time the others will take."""
        self._done += 1
        self._spent += budget
        self._rest -= budget
        if record["status"] == "failed":
            what = f"FAILED: {record['error']}"
        elif record["status"] == "diverged":
            what = f"diverged after {record['steps']} steps"
        else:
            what = (
                f"train {record['train_loss']:.4g}, test {record['test_loss']:.4g}, "
                f"{record['steps']} steps"
            )
        self._clear()
        self._say(f"[{self._done}/{self._total}] {label}: {what}{self._left()}")

    def _left(self) -> str:
        if self._done == self._total:
            return ""
        elapsed = time.perf_counter() - self._began
        return f"; about {self.duration(elapsed * self._rest / self._spent)} left"

    def watch(self, label: str) -> Callable[[Point], None]:
        """A function that renews a line about the run at hand, on a terminal."""

        def renew(point: Point) -> None:
            if self._renew:
                line = f"{label}: {point.share:4.0%}, train {point.train_loss:.4g}"
                print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

        return renew

    def _clear(self) -> None:
        if self._renew:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    @staticmethod
    def duration(seconds: float) -> str:
        """Seconds as a person says them."""
        if seconds < 90:
            return f"{seconds:.0f} s"
        if seconds < 90 * 60:
            return f"{seconds / 60:.0f} min"
        return f"{seconds / 3600:.1f} h"
