"""One run: an optimizer and a seed, trained, measured and backtested."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from gluonts.model.predictor import Predictor

from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.losses import evaluate
from pts_scott.errors import CompilationError, ScottWarning
from pts_scott.experiments.backtest import BACKTEST_METRICS, backtest, select_series
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.curve import Curve, Watch, select_windows
from pts_scott.experiments.lightning_control import raise_if_interrupted
from pts_scott.experiments.setting import Setting, choose
from pts_scott.training.trainer import ScottTrainer


@dataclass(frozen=True)
class Run:
    """The results of one run; a failed run has no predictor."""

    record: dict[str, Any]
    curve: pd.DataFrame
    history: pd.DataFrame
    predictor: Predictor | None


def perform(
    setting: Setting,
    optimizer: str,
    seed: int,
    watch: Watch | None = None,
    progress: Callable[[float], None] | None = None,
    *,
    tuning: bool = False,
) -> Run:
    """Train one optimizer with one seed, and measure the result.

    Parameters
    ----------
    setting
        The setting, ready to train.
    optimizer
        Name of one of its optimizers.
    seed
        Seed of initial weights and draws.
    watch
        Called with each point of the curve; if it returns True, the run ends and nothing
        else is measured.
    progress
        Called about once a second with the share of the budget that is used.
    tuning
        Measure only the loss on the held-out windows.
    """
    experiment = setting.experiment
    curve = Curve(setting, experiment.evaluations, watch, progress)
    estimator = setting.estimator(optimizer, seed, [curve])
    trainer = estimator.trainer
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", ScottWarning)
        predictor = estimator.train_windows(setting.training)
    raise_if_interrupted(trainer)
    began = time.perf_counter()
    train_loss, test_loss = _final_losses(setting, curve, trainer, tuning)
    evaluation_seconds = curve.seconds + time.perf_counter() - began
    measured = [test_loss] if tuning else [train_loss, test_loss]
    diverged = curve.diverged or trainer.gave_up
    finished = all(map(math.isfinite, measured)) and not diverged
    record = {
        **identity(experiment, optimizer, seed),
        **setting.data_identity,
        "loss": setting.loss,
        "status": "finished" if finished else "diverged",
        "error": "",
        "train_loss": train_loss if finished else math.nan,
        "test_loss": test_loss if finished else math.nan,
        **_cost(trainer),
        "evaluation_seconds": evaluation_seconds,
        **_window_counts(setting),
        "strata": None if trainer.strata is None else len(trainer.strata),
        "warnings": sorted({str(w.message) for w in caught}),
        **dict.fromkeys(BACKTEST_METRICS, math.nan),
    }
    if finished and experiment.backtest_samples:
        # The libraries call a point-forecast model once per sample path.
        samples = experiment.backtest_samples if setting.probabilistic else 1
        series = select_series(setting.split.backtest, experiment.backtest_series)
        record.update(backtest(predictor, series, samples, seed))
    return Run(record, curve.frame(), trainer.history, predictor)


def _final_losses(
    setting: Setting, curve: Curve, trainer: ScottTrainer, tuning: bool
) -> tuple[float, float]:
    """Return the losses of the table, NaN where they are not measured."""
    losses, limit = curve.losses, setting.experiment.evaluation_windows
    assert losses is not None

    def final_loss(part: WindowIndex) -> float:
        indices = select_windows(part, limit)
        return float(evaluate(losses, part.to(trainer.device), indices))

    test_loss = math.nan if curve.stopped else final_loss(setting.held_out)
    train_loss = math.nan if curve.stopped or tuning else final_loss(setting.training)
    return train_loss, test_loss


def _cost(trainer: ScottTrainer) -> dict[str, Any]:
    history = trainer.history
    last = history.iloc[-1].to_dict() if len(history) else {}
    return {
        "steps": int(last.get("step", 0)),
        "gradients": int(last.get("gradients", 0)),
        "anchors": int(last.get("anchors", 0)),
        "seconds": float(last.get("seconds", 0.0)),
        "compiled": trainer.compiled,
        "compile_fallback": trainer.compile_fallback,
        "compile_seconds": trainer.compile_seconds,
        "stratify_seconds": trainer.stratify_seconds,
    }


def _window_counts(setting: Setting) -> dict[str, int]:
    limit = setting.experiment.evaluation_windows
    return {
        "windows_train": len(setting.training),
        "windows_test": len(setting.held_out),
        "evaluated_train": len(select_windows(setting.training, limit)),
        "evaluated_test": len(select_windows(setting.held_out, limit)),
    }


def failed_run(experiment: Experiment, optimizer: str, seed: int, error: str) -> Run:
    """Return the record of a run that ended with an error."""
    record = {
        **identity(experiment, optimizer, seed),
        "status": "failed",
        "error": error,
    }
    empty = pd.DataFrame(columns=["step", "gradients", "seconds"])
    return Run(record, empty, empty, None)


def identity(experiment: Experiment, optimizer: str, seed: int) -> dict[str, Any]:
    """Return the part of a run's record that is known before it runs."""
    config = choose(experiment, optimizer)
    return {
        "setting": experiment.setting,
        "model": experiment.model_label,
        "dataset": Path(experiment.data.name).name,
        "batch_size": experiment.batch_size,
        "optimizer": optimizer,
        "seed": seed,
        "method": config.method,
        "rule": config.optimizer,
        "learning_rate": config.learning_rate,
        "gamma": config.gamma if config.uses_anchor else None,
        "time_budget": experiment.time_budget,
        "gradient_budget": experiment.gradient_budget,
    }


def check_same_engine(record: dict[str, Any], others: Iterable[dict[str, Any]]) -> None:
    """Raise if a run cannot be compared with others because only some are compiled.

    Parameters
    ----------
    record
        The record of the run.
    others
        The records of the runs that it is compared with.

    Raises
    ------
    CompilationError
        If compilation was requested and failed, or only some of the runs are compiled.
    """
    if record["compile_fallback"]:
        raise CompilationError(
            f"{record['optimizer']} should have been compiled and was not "
            f"({record['compile_fallback']}), so it cannot be compared with compiled "
            "optimizers. Set compile: false for the whole setting, or leave it out."
        )
    words = {True: "compiled", False: "eager"}
    for other in others:
        if other.get("compiled") not in (None, record["compiled"]):
            raise CompilationError(
                f"{record['optimizer']} ran {words[record['compiled']]}, but "
                f"{other['optimizer']} (seed {other['seed']}) "
                f"{words[other['compiled']]}; set compile to true or false for the whole "
                "setting, and start it in a new folder."
            )


def warm_up(setting: Setting, optimizer: str, seconds: float = 0.3) -> None:
    """Train for a moment and discard the result.

    The first steps of a process load libraries and allocate memory; without a warm-up
    that time would be charged to the first run.
    """
    experiment = dataclasses.replace(
        setting.experiment, time_budget=seconds, gradient_budget=None, compile=False
    )
    estimator = setting.varied(experiment).estimator(optimizer, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.train_windows(setting.training)
    raise_if_interrupted(estimator.trainer)
