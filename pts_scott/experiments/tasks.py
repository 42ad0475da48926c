"""The runs of a benchmark, in the order in which they are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pts_scott.errors import ConfigError
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.run_files import run_folder
from pts_scott.experiments.setting import choose


@dataclass(frozen=True)
class Task:
    """A run to be made: an optimizer and a seed of an experiment, and its folder."""

    experiment: Experiment
    optimizer: str
    seed: int
    folder: Path
    workers: int = 1

    @property
    def label(self) -> str:
        """Description of the run in progress lines and messages."""
        return f"{self.experiment.setting}: {self.optimizer}, seed {self.seed}"


def plan(
    experiments: Sequence[Experiment],
    output: Path,
    only: Sequence[str] = (),
    workers: int = 1,
) -> list[Task]:
    """Return all runs in the order in which they are made.

    Parameters
    ----------
    experiments
        The settings, one after the other.
    output
        Folder of the results, with a subfolder per setting.
    only
        Optimizers to run; empty for all.
    workers
        Number of parallel runs, which each run records.
    """
    settings = [experiment.setting for experiment in experiments]
    duplicates = sorted({name for name in settings if settings.count(name) > 1})
    if duplicates:
        raise ConfigError(
            f"two configs have the setting {duplicates[0]!r}; give one of them another "
            "name."
        )
    tasks = []
    for experiment in experiments:
        names = list(with_optimizers(experiment, only).optimizers)
        for turn, seed in enumerate(experiment.seeds):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                folder = run_folder(output / experiment.setting, name, seed)
                tasks.append(Task(experiment, name, seed, folder, workers))
    return tasks


def with_optimizers(experiment: Experiment, only: Sequence[str]) -> Experiment:
    """Return the experiment with some of its optimizers; empty for all."""
    for name in only:
        choose(experiment, name)
    chosen = {k: v for k, v in experiment.optimizers.items() if not only or k in only}
    return dataclasses.replace(experiment, optimizers=chosen)
