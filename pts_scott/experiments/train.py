"""One optimizer of a config, trained and kept: what ``pts-scott train`` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pts_scott.errors import ConfigError, ScottError
from pts_scott.experiments.bench import Task, is_done, with_those_on_disk
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.folders import make_folders, quiet, stoppable
from pts_scott.experiments.runs import (
    BACKTEST,
    Point,
    perform,
    read_record,
    run_folder,
    write_run,
)
from pts_scott.experiments.setting import Setting, choose


def train_one(
    experiment: Experiment,
    optimizer: str | None,
    seed: int | None,
    output: Path,
    say: Callable[[str], None] = print,
) -> Path:
    """Train, write the run's folder with the predictor in it, and return the folder.

    Parameters
    ----------
    experiment
        The setting.
    optimizer
        Which of its optimizers; None if there is one only.
    seed
        Of weights and draws; None for the first of the experiment's.
    output
        Folder of the results.
    say
        Where lines about the progress go.
    """
    if optimizer is None:
        if len(experiment.optimizers) > 1:
            names = ", ".join(experiment.optimizers)
            raise ConfigError(f"the config has several optimizers, choose one: {names}.")
        (optimizer,) = experiment.optimizers
    choose(experiment, optimizer)
    seed = experiment.seeds[0] if seed is None else seed
    quiet()
    folder = run_folder(output / experiment.setting, optimizer, seed)
    before = read_record(folder)
    if before is not None and before["status"] == "finished":
        is_done(Task(experiment, optimizer, seed, folder))  # or another's would be lost
    setting = Setting(experiment)
    make_folders([with_those_on_disk(experiment, output / experiment.setting)], output)
    say(str(setting.series.report()))
    say(str(setting.split))

    def watch(point: Point) -> None:
        say(
            f"{point.share:4.0%}  step {point.step:7d}  {point.seconds:7.1f} s  "
            f"train {point.train_loss:.4g}  test {point.test_loss:.4g}"
        )

    with stoppable():
        run = perform(setting, optimizer, seed, watch)
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
    figures = {name: run.record[name] for name in ("train_loss", "test_loss", *BACKTEST)}
    say(", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    return folder
