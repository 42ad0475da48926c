"""GluonTS' own training loop, measured like a run: its losses along the way."""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import pandas as pd
from torch import Tensor

from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.losses import Losses, evaluate

#: By name of the loss, windows and the numbers of those over which it is averaged.
Parts = Mapping[str, tuple[WindowIndex, Tensor]]


class LibraryCurve(pl.Callback):
    """A callback that measures losses of a GluonTS model along its library's own loop.

    Parameters
    ----------
    parts
        What is measured.
    evaluations
        Number of measurements after the first, which precedes training.
    seconds, steps
        Training time or number of steps after which the run ends: one of them. Losses
        are measured at equal shares of it.

    Attributes
    ----------
    points
        Step, training seconds and losses of each measurement so far. Measuring is not
        part of the seconds; loading and transforming data is.
    """

    def __init__(
        self,
        parts: Parts,
        evaluations: int,
        *,
        seconds: float = math.inf,
        steps: float = math.inf,
    ) -> None:
        self._parts, self._evaluations = parts, evaluations
        self._seconds, self._steps = seconds, steps
        self._began = 0.0  # as if nothing had been measured since
        self.points: list[dict[str, float]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> LibraryCurve:
        return self  # AutoGluon trains with copies of its callbacks

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure the initial loss, and start the clock."""
        self._measure(pl_module, 0, 0.0)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        """Measure if it is time, and stop at the end of the budget."""
        spent = time.perf_counter() - self._began
        share = max(spent / self._seconds, trainer.global_step / self._steps)
        if share >= len(self.points) / self._evaluations:
            self._measure(pl_module, trainer.global_step, spent)
        if share >= 1:
            trainer.should_stop = True

    def _measure(self, module: pl.LightningModule, step: int, spent: float) -> None:
        from pts_scott.backends.gluonts.losses import GluonTSLosses
        from pts_scott.backends.gluonts.module_checks import model_of

        point = {"step": step, "seconds": spent}
        for name, (windows, numbers) in self._parts.items():
            network = GluonTSLosses(model_of(module), windows.fields)
            losses = Losses(network, windows.fields)
            point[name] = float(evaluate(losses, windows, numbers))
        self.points.append(point)
        self._began = time.perf_counter() - spent


def train_with_library(
    estimator: Any, dataset: Any, curve: LibraryCurve, **options: Any
) -> pd.DataFrame:
    """Train with the loop of GluonTS, and return the points of the curve.

    Parameters
    ----------
    estimator
        An estimator of GluonTS, with its own ``trainer_kwargs``.
    dataset
        The training data.
    curve
        What is measured, and for how long.
    **options
        Of ``estimator.train``, e.g. ``cache_data=True``.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You defined a `validation_step`")
        estimator.trainer_kwargs = {
            **estimator.trainer_kwargs,
            "accelerator": "cpu",
            "callbacks": [curve],
            "default_root_dir": folder,  # of its checkpoints
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        estimator.train(dataset, **options)
    return pd.DataFrame(curve.points)
