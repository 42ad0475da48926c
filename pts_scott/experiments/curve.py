"""The loss curve of a run: both losses, measured at equal shares of its budget."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import lightning.pytorch as pl
import pandas as pd
import torch
from torch import Tensor

from pts_scott._utils.spacing import evenly_spaced
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.losses import Losses, evaluate
from pts_scott.experiments.setting import Setting
from pts_scott.training.callbacks import Measurements
from pts_scott.training.lightning_module import OuterLoopModule


@dataclass(frozen=True)
class Point:
    """One measurement during a run; ``share`` is the part of the budget spent so far."""

    share: float
    step: int
    gradients: int
    seconds: float
    train_loss: float
    test_loss: float


#: Called with each point; returning True stops the run.
Watch = Callable[[Point], bool | None]


class Curve(Measurements):
    """A callback that measures the losses during a run.

    Parameters
    ----------
    setting
        The setting, ``curve_windows`` of whose windows are measured.
    evaluations
        Number of measurements after the first, which precedes training.
    watch
        Called with each measurement; training stops if it returns True.
    progress
        Called about once a second with the share of the budget that is used.

    Attributes
    ----------
    points
        The measurements so far.
    diverged, stopped
        Whether a loss was non-finite, and whether ``watch`` has stopped the run.
    seconds
        Time spent measuring, which is not part of the training time.
    losses
        The per-window losses of the trained network.
    """

    def __init__(
        self,
        setting: Setting,
        evaluations: int,
        watch: Watch | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        limit = setting.experiment.curve_windows
        self._parts = [
            (part, select_windows(part, limit))
            for part in (setting.training, setting.held_out)
        ]
        super().__init__(evaluations, progress)
        self._watch = watch
        self.points: list[Point] = []
        self.diverged = self.stopped = False
        self.seconds = 0.0
        self.losses: Losses | None = None

    def measure(self, trainer: pl.Trainer, module: OuterLoopModule) -> None:
        """Add a point."""
        began = time.perf_counter()
        if self.losses is None:
            self.losses = module.losses
            device = module.windows.device
            self._parts = [(windows.to(device), n) for windows, n in self._parts]
        train_loss, test_loss = (
            float(evaluate(module.losses, windows, indices))
            for windows, indices in self._parts
        )
        point = Point(
            share=module.spent(),
            step=module.steps,
            gradients=module.state.counters.gradients,
            seconds=module.clock.seconds,
            train_loss=train_loss,
            test_loss=test_loss,
        )
        self.points.append(point)
        if self._watch is not None and self._watch(point):
            self.stopped = trainer.should_stop = True
        if not (math.isfinite(train_loss) and math.isfinite(test_loss)):
            self.diverged = trainer.should_stop = True  # it would not recover
        self.seconds += time.perf_counter() - began

    def frame(self) -> pd.DataFrame:
        """Return the measurements as a table."""
        return pd.DataFrame([dataclasses.asdict(p) for p in self.points]).drop(
            columns="share"
        )


def select_windows(windows: WindowIndex, limit: int | None) -> Tensor:
    """Return the indices of at most ``limit`` evenly spaced windows; all if None."""
    count = len(windows)
    return torch.arange(count) if limit is None else evenly_spaced(count, limit)
