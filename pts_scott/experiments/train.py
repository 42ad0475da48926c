"""The command ``pts-scott train``: train one optimizer of a config and keep the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from pts_scott._utils.arguments import whole_number
from pts_scott.errors import ConfigError, ScottError
from pts_scott.experiments.backtest import BACKTEST_METRICS
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.curve import Point
from pts_scott.experiments.existing_runs import is_done, with_existing
from pts_scott.experiments.folders import new_folder
from pts_scott.experiments.lightning_control import interruptible, silence_lightning
from pts_scott.experiments.progress import Meter, budget_of
from pts_scott.experiments.run import Run, perform
from pts_scott.experiments.run_files import read_record, run_folder, write_run
from pts_scott.experiments.setting import Setting, choose
from pts_scott.experiments.tasks import Task


def train_one(
    experiment: Experiment,
    optimizer: str | None,
    seed: int | None,
    output: Path,
    say: Callable[[str], None] = tqdm.write,
) -> Path:
    """Train, write the run's folder including the predictor, and return the folder.

    Parameters
    ----------
    experiment
        The setting.
    optimizer
        Name of one of its optimizers; None if there is only one.
    seed
        Seed of weights and draws; None for the experiment's first.
    output
        Folder of the results.
    say
        Where progress lines go.
    """
    if optimizer is None:
        if len(experiment.optimizers) > 1:
            names = ", ".join(experiment.optimizers)
            raise ConfigError(f"the config has several optimizers, choose one: {names}.")
        (optimizer,) = experiment.optimizers
    choose(experiment, optimizer)
    seed = whole_number("seed", experiment.seeds[0] if seed is None else seed, minimum=0)
    silence_lightning()
    folder = run_folder(output / experiment.setting, optimizer, seed)
    before = read_record(folder)
    if before is not None and before["status"] == "finished":
        # Raises if the folder holds the model of another config.
        is_done(Task(experiment, optimizer, seed, folder))
    setting = Setting(experiment)
    with new_folder(with_existing(experiment, output / experiment.setting), output):
        say(str(setting.series.report()))
        say(str(setting.split))
        if (stride := experiment.data.stride) > 1:
            say(
                f"With stride {stride}, {len(setting.training):,} windows of train and "
                f"{len(setting.held_out):,} of test are used."
            )
        run = _train(setting, optimizer, seed, say)
        write_run(folder, experiment, run)
    for warning in run.record["warnings"]:
        say(f"warning: {warning}")
    if run.record["status"] == "diverged" or run.predictor is None:
        raise ScottError(
            f"training diverged; its history is in {folder}. Lower the step size, e.g. "
            f"--optimizers.{optimizer}.learning_rate "
            f"{experiment.optimizers[optimizer].learning_rate / 10:g}."
        )
    (folder / "predictor").mkdir()
    run.predictor.serialize(folder / "predictor")
    results = ("train_loss", "test_loss", *BACKTEST_METRICS)
    say(", ".join(f"{name} {run.record[name]:.4g}" for name in results))
    return folder


def _train(
    setting: Setting, optimizer: str, seed: int, say: Callable[[str], None]
) -> Run:
    meter = Meter(optimizer, *budget_of(setting.experiment), say)

    def watch(point: Point) -> None:
        meter.line(
            f"{point.share:4.0%}  step {point.step:7d}  {point.seconds:7.1f} s  "
            f"train {point.train_loss:.4g}  test {point.test_loss:.4g}",
            point.share,
        )

    with meter, interruptible():
        return perform(setting, optimizer, seed, watch, meter.advance)
