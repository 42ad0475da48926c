"""One run: an optimizer and a seed, trained, measured, backtested and written down."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import torch
from gluonts.env import env
from gluonts.evaluation import Evaluator, make_evaluation_predictions
from gluonts.model.predictor import Predictor
from torch import Tensor

from pts_scott._utils.rng import isolated_rng
from pts_scott._utils.text import quote
from pts_scott.data.window_index import WindowIndex
from pts_scott.datasets.series_data import SeriesData
from pts_scott.engine.gradients import Losses
from pts_scott.errors import CompilationError, FileLayoutError, ScottWarning
from pts_scott.experiments.config import Experiment, run_name
from pts_scott.experiments.folders import check_not_stopped
from pts_scott.experiments.results import STATUSES, read_json, refuse_links
from pts_scott.experiments.setting import Setting, choose
from pts_scott.training.callbacks import Measurements
from pts_scott.training.lightning_module import OuterLoopModule, evaluate

# GluonTS' names of what the paper's readers know by others.
BACKTEST = {
    "CRPS": "mean_wQuantileLoss",
    "MASE": "MASE",
    "sMAPE": "sMAPE",
    "ND": "ND",
    "NRMSE": "NRMSE",
}
LIBRARIES = (
    "pts-scott",
    "torch",
    "lightning",
    "gluonts",
    "pytorchts",
    "numpy",
    "pandas",
)


@dataclass(frozen=True)
class Point:
    """One measurement along a run."""

    share: float
    step: int
    gradients: int
    seconds: float
    train_loss: float
    test_loss: float


@dataclass(frozen=True)
class Run:
    """What one run gives."""

    record: dict[str, Any]
    curve: pd.DataFrame
    history: pd.DataFrame
    predictor: Predictor | None


class Curve(Measurements):
    """Measures the losses along a run.

    Parameters
    ----------
    setting
        Whose windows are measured, ``curve_windows`` of them.
    evaluations
        Measurements after the first, which comes before training.
    watch
        Called with each measurement; training stops where it returns True.
    """

    def __init__(
        self,
        setting: Setting,
        evaluations: int,
        watch: Callable[[Point], bool | None] | None = None,
    ) -> None:
        limit = setting.experiment.curve_windows
        self._parts = [
            (part, spread(part, limit)) for part in (setting.training, setting.held_out)
        ]
        super().__init__(evaluations)
        self._watch = watch
        self.points: list[Point] = []
        #: Whether a loss was not finite, or the watch has ended the run.
        self.diverged = self.stopped = False
        #: Seconds that measuring took; they are in no history.
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
            float(evaluate(module.losses, windows, numbers))
            for windows, numbers in self._parts
        )
        point = Point(
            share=module.spent(),
            step=module.steps,
            gradients=module.gradients.count,
            seconds=module.clock.seconds,
            train_loss=train_loss,
            test_loss=test_loss,
        )
        self.points.append(point)
        if self._watch is not None and self._watch(point):
            self.stopped = trainer.should_stop = True
        if not (math.isfinite(train_loss) and math.isfinite(test_loss)):
            self.diverged = trainer.should_stop = True  # what has diverged stays so
        self.seconds += time.perf_counter() - began

    def frame(self) -> pd.DataFrame:
        """The measurements as a table."""
        return pd.DataFrame([dataclasses.asdict(p) for p in self.points]).drop(
            columns="share"
        )


def spread(windows: WindowIndex, limit: int | None) -> Tensor:
    """Numbers of windows, evenly spread over all: ``limit`` of them, or all."""
    size = len(windows)
    if limit is None or limit >= size:
        return torch.arange(size)
    return torch.linspace(0, size - 1, limit, dtype=torch.float64).round().long()


def perform(
    setting: Setting,
    optimizer: str,
    seed: int,
    watch: Callable[[Point], bool | None] | None = None,
    *,
    tuning: bool = False,
) -> Run:
    """Train one optimizer with one seed, and measure what came of it.

    Parameters
    ----------
    setting
        The experiment, ready to train.
    optimizer
        Name of one of its optimizers.
    seed
        Of initial weights and draws.
    watch
        Called with each point of the curve; where it returns True the run ends, and
        nothing more is measured.
    tuning
        Measure the loss on the windows that are held out, and nothing else.
    """
    experiment = setting.experiment
    curve = Curve(setting, experiment.evaluations, watch)
    estimator = setting.estimator(optimizer, seed, [curve])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", ScottWarning)
        predictor = estimator.train_windows(setting.training)
    check_not_stopped(estimator.trainer)
    trainer, losses = estimator.trainer, curve.losses
    assert losses is not None
    began, limit = time.perf_counter(), experiment.evaluation_windows

    def final_loss(part: WindowIndex) -> float:
        return float(evaluate(losses, part.to(trainer.device), spread(part, limit)))

    test_loss = math.nan if curve.stopped else final_loss(setting.held_out)
    train_loss = math.nan if curve.stopped or tuning else final_loss(setting.training)
    evaluation_seconds = curve.seconds + time.perf_counter() - began
    history = trainer.history
    measured = [test_loss] if tuning else [train_loss, test_loss]
    diverged = curve.diverged or trainer.gave_up
    finished = all(map(math.isfinite, measured)) and not diverged
    last = history.iloc[-1].to_dict() if len(history) else {}
    record = {
        **identity(experiment, optimizer, seed),
        **data_identity(setting),
        "loss": setting.loss,
        "status": "finished" if finished else "diverged",
        "error": "",
        "train_loss": train_loss if finished else math.nan,
        "test_loss": test_loss if finished else math.nan,
        "steps": int(last.get("step", 0)),
        "gradients": int(last.get("gradients", 0)),
        "anchors": int(last.get("anchors", 0)),
        "seconds": float(last.get("seconds", 0.0)),
        "compiled": trainer.compiled,
        "compile_fallback": trainer.compile_fallback,
        "compile_seconds": trainer.compile_seconds,
        "stratify_seconds": trainer.stratify_seconds,
        "evaluation_seconds": evaluation_seconds,
        "windows_train": len(setting.training),
        "windows_test": len(setting.held_out),
        "evaluated_train": len(spread(setting.training, limit)),
        "evaluated_test": len(spread(setting.held_out, limit)),
        "strata": None if trainer.strata is None else len(trainer.strata),
        "warnings": sorted({str(w.message) for w in caught}),
        **dict.fromkeys(BACKTEST, math.nan),
    }
    if finished and experiment.backtest_samples:
        # The libraries ask a model that forecasts a point once for every sample path.
        samples = experiment.backtest_samples if setting.probabilistic else 1
        series = some_series(setting.split.backtest, experiment.backtest_series)
        record.update(backtest(predictor, series, samples, seed))
    return Run(record, curve.frame(), history, predictor)


def check_same_engine(record: dict[str, Any], others: Iterable[dict[str, Any]]) -> None:
    """Refuse to compare a run with others that were executed in another way.

    Parameters
    ----------
    record
        Of the run.
    others
        Records of the runs that it is compared with.

    Raises
    ------
    CompilationError
        If it was to be compiled and was not, or some are compiled and some are not.
    """
    if record["compile_fallback"]:
        raise CompilationError(
            f"{record['optimizer']} was to be compiled and was not "
            f"({record['compile_fallback']}), so it cannot be compared with optimizers "
            "that are. Set compile: false for the whole setting, or leave it out."
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
    """Train for a moment and forget it.

    The first steps of a process load libraries and fetch memory; they would be charged
    to the run that happens to be the first.
    """
    experiment = dataclasses.replace(
        setting.experiment, time_budget=seconds, gradient_budget=None, compile=False
    )
    estimator = setting.varied(experiment).estimator(optimizer, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.train_windows(setting.training)
    check_not_stopped(estimator.trainer)


def identity(experiment: Experiment, optimizer: str, seed: int) -> dict[str, Any]:
    """The part of a run's record that is known before it runs."""
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
        "gamma": config.gamma if config.has_anchor else None,
        "time_budget": experiment.time_budget,
        "gradient_budget": experiment.gradient_budget,
    }


def data_identity(setting: Setting) -> dict[str, Any]:
    """What tells the series of a run from others of the same name."""
    series = setting.series
    return {
        "dataset": series.name,
        "series": len(series.item_ids),
        "values": sum(len(target) for target in series.targets),
    }


def some_series(series: SeriesData, limit: int | None) -> SeriesData:
    """Series, evenly spread over all: ``limit`` of them, or all."""
    size = len(series.item_ids)
    if limit is None or limit >= size:
        return series
    rows = np.linspace(0, size - 1, limit).round().astype(int)
    return series.pick(rows.tolist())


def backtest(
    predictor: Predictor, series: SeriesData, samples: int, seed: int
) -> dict[str, float]:
    """GluonTS' backtest: forecasts of the last range of each series, evaluated.

    Parameters
    ----------
    predictor
        The trained model.
    series
        Whole series; their last steps are forecast.
    samples
        Sample paths of a forecast.
    seed
        Of the sample paths.
    """
    evaluator = Evaluator(num_workers=0)
    with warnings.catch_warnings(), np.errstate(all="ignore"), env._let(use_tqdm=False):
        warnings.simplefilter("ignore")
        with isolated_rng(seed, torch.device("cpu")):
            forecasts, truth = make_evaluation_predictions(
                series.dataset(), predictor=predictor, num_samples=samples
            )
            metrics, _ = evaluator(truth, forecasts, num_series=len(series.item_ids))
    return {ours: float(metrics[theirs]) for ours, theirs in BACKTEST.items()}


# -- the folder of a run ----------------------------------------------------------------


def run_folder(setting_folder: Path, optimizer: str, seed: int) -> Path:
    """Where a run of a setting is written."""
    return setting_folder / "runs" / run_name(optimizer, seed)


def run_config(experiment: Experiment, optimizer: str, seed: int) -> Experiment:
    """The experiment with this one run alone, as its folder holds it."""
    return dataclasses.replace(
        experiment,
        optimizers={optimizer: choose(experiment, optimizer)},
        seeds=[seed],
    )


def write_run(folder: Path, experiment: Experiment, run: Run) -> None:
    """Write a run's folder: config, versions, history, curve and, last, its record.

    A folder with ``run.json`` is whole: everything is written beside it and moved there
    in one go.

    Raises
    ------
    ScottError
        If one of them is a link to elsewhere.
    """
    part = folder.with_name(folder.name + ".part")
    for path in (part, folder):
        refuse_links(path, folder.parent)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    record = run.record
    config = run_config(experiment, record["optimizer"], record["seed"])
    (part / "config.yaml").write_text(config.dump(), encoding="utf-8")
    (part / "versions.json").write_text(json.dumps(versions(), indent=1))
    run.history.to_csv(part / "history.csv", index=False)
    run.curve.to_csv(part / "curve.csv", index=False)
    plain = {k: _json_number(v) for k, v in record.items()}
    (part / "run.json").write_text(json.dumps(plain, indent=1, allow_nan=False))
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of a run; None if the folder does not hold a whole one."""
    path = folder / "run.json"
    if not path.exists():
        return None
    record = read_json(path)
    if record.get("status") not in STATUSES:
        raise FileLayoutError(
            f"{path} has status {quote(record.get('status'))}, expected "
            f"{', '.join(STATUSES)}; remove {folder} to make the run again."
        )
    return record


def failed_run(experiment: Experiment, optimizer: str, seed: int, error: str) -> Run:
    """The record of a run that ended with an error."""
    record = {
        **identity(experiment, optimizer, seed),
        "status": "failed",
        "error": error,
    }
    empty = pd.DataFrame(columns=["step", "gradients", "seconds"])
    return Run(record, empty, empty, None)


def _json_number(value: Any) -> Any:
    """JSON has no NaN: it is null there."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions() -> dict[str, str]:
    """Versions of what a run depends on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
