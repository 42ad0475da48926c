"""The clock of a run: seconds of training, without evaluation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Wall-clock seconds of training.

    Parameters
    ----------
    seconds
        Seconds of training before the run was resumed.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._before = seconds
        self._since: float | None = None

    def start(self) -> None:
        """Start or continue counting."""
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Stop counting."""
        self._before, self._since = self.seconds, None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Suspend the clock for work that is not training."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    @property
    def seconds(self) -> float:
        """Seconds counted so far."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._before + running
