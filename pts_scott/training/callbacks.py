"""Callbacks that observe a run without changing it."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl

if TYPE_CHECKING:
    from pts_scott.training.lightning_module import OuterLoopModule

REPORT_SECONDS = 1.0


class Observer(pl.Callback):
    """A callback that reads the module instead of logged values.

    Nothing is logged for it: for small networks, logging takes as long as a step.
    """


class Measurements(Observer):
    """Measures before training and at equal shares of its budget, with the clock stopped.

    Parameters
    ----------
    times
        Number of measurements after the first.
    progress
        Called about once a second with the share of the budget that is used.
    """

    def __init__(
        self, times: int, progress: Callable[[float], None] | None = None
    ) -> None:
        self._share = 1 / times
        self._progress, self._next_report = progress, 0.0
        self._made = 0
        self._last = -1  # step of the last measurement

    @abstractmethod
    def measure(self, trainer: pl.Trainer, module: OuterLoopModule) -> None:
        """Read the module; the time this takes is not training time."""
        raise NotImplementedError

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Measure the start; the clock does not run yet."""
        self._measure(trainer, pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Measure when the next share of the budget is used up."""
        if pl_module.spent() >= self._made * self._share - 1e-9:
            with pl_module.clock.stopped():
                self._measure(trainer, pl_module)
        if self._progress is not None and time.perf_counter() >= self._next_report:
            with pl_module.clock.stopped():
                self._progress(pl_module.spent())
            self._next_report = time.perf_counter() + REPORT_SECONDS

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure the end, unless it was just measured."""
        pl_module.clock.stop()
        if self._last < pl_module.steps:
            self._measure(trainer, pl_module)

    def _measure(self, trainer: pl.Trainer, module: OuterLoopModule) -> None:
        self._made += 1
        self._last = module.steps
        with module.runner.evaluated.evaluating():
            self.measure(trainer, module)
