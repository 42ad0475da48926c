"""The benchmark: every optimizer and seed of some settings, for the same training time.

Runs of one setting are interleaved (each seed visits all optimizers, in turn another one
first), so that a busy hour of the machine meets all of them alike. A run that is on disk
is not repeated, one that fails is written down and does not stop the others.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pts_scott._arguments import whole_number
from pts_scott.errors import ConfigError, ScottError
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.folders import make_folders, quiet, stoppable
from pts_scott.experiments.progress import Progress
from pts_scott.experiments.runs import (
    Point,
    failed_run,
    perform,
    read_record,
    run_config,
    run_folder,
    warm_up,
    write_run,
)
from pts_scott.experiments.samplers import measure_samplers, write_samplers
from pts_scott.experiments.setting import choose, ready
from pts_scott.experiments.workers import in_processes

# What does not change a run.
NOT_OF_A_RUN = ("name", "tune", "variance")


@dataclass(frozen=True)
class Task:
    """A run to be made: an optimizer and a seed of an experiment, and its folder."""

    experiment: Experiment
    optimizer: str
    seed: int
    folder: Path

    @property
    def budget(self) -> float:
        """How long the run takes: seconds, or gradients if there is no limit of time."""
        return float(self.experiment.time_budget or self.experiment.gradient_budget or 1)

    @property
    def label(self) -> str:
        """What the run is, for a person."""
        return f"{self.experiment.setting}: {self.optimizer}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """What became of a benchmark: runs found on disk, diverged, and what failed."""

    before: int
    diverged: int
    failed: tuple[str, ...]


def plan(
    experiments: Sequence[Experiment], output: Path, only: Sequence[str] = ()
) -> list[Task]:
    """All runs in the order in which they are made.

    Parameters
    ----------
    experiments
        The settings, one after the other.
    output
        Folder of the results; each setting has its own in it.
    only
        Optimizers to run; empty for all.
    """
    settings = [experiment.setting for experiment in experiments]
    twice = sorted({name for name in settings if settings.count(name) > 1})
    if twice:
        raise ConfigError(
            f"two configs have the setting {twice[0]!r}; give one of them another name."
        )
    tasks = []
    for experiment in experiments:
        for name in only:
            choose(experiment, name)
        names = list(_reduced(experiment, only).optimizers)
        for turn, seed in enumerate(experiment.seeds):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                folder = run_folder(output / experiment.setting, name, seed)
                tasks.append(Task(experiment, name, seed, folder))
    return tasks


def bench(
    experiments: Sequence[Experiment],
    output: Path,
    *,
    workers: int = 1,
    only: Sequence[str] = (),
    samplers: bool = False,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Make all runs that are not on disk yet.

    Parameters
    ----------
    experiments
        The settings.
    output
        Folder of the results, made if it is not there.
    workers
        Runs at the same time, each in a process of its own.
    only
        Optimizers to run; empty for all.
    samplers
        Measure the variance of the samplers, too, in one more run of each setting.
    say
        Where lines about the progress go.
    """
    whole_number("workers", workers)
    tasks = plan(experiments, output, only)
    todo = [task for task in tasks if not is_done(task)]
    make_folders([_reduced(experiment, only) for experiment in experiments], output)
    say(_announcement(tasks, todo, workers))
    for experiment in {id(t.experiment): t.experiment for t in todo}.values():
        ready(experiment)  # mistakes in data and arguments end it here, before any run
    progress = Progress([task.budget for task in todo], say)
    failed, diverged = [], 0
    runs = _alone(todo, progress) if workers == 1 else _together(todo, workers)
    for task, record in runs:
        progress.finished(task.label, record, task.budget)
        if record["status"] == "failed":
            failed.append(f"{task.label}: {record['error']}")
        diverged += record["status"] == "diverged"
    if samplers:
        for experiment in experiments:
            failed += _measure_samplers(experiment, output / experiment.setting, say)
    return Outcome(len(tasks) - len(todo), diverged, tuple(failed))


def _reduced(experiment: Experiment, only: Sequence[str]) -> Experiment:
    chosen = {k: v for k, v in experiment.optimizers.items() if not only or k in only}
    return dataclasses.replace(experiment, optimizers=chosen)


def _measure_samplers(
    experiment: Experiment, folder: Path, say: Callable[[str], None]
) -> list[str]:
    """Measure the samplers of a setting if that was not done; returns what failed."""
    if (folder / "variance.csv").exists():
        return []
    say(f"{experiment.setting}: variance of the samplers")
    try:
        table = measure_samplers(experiment, ready(experiment), say=lambda line: None)
        write_samplers(table, folder)
    except Exception as error:
        return [f"{experiment.setting}, variance of the samplers: {error}"]
    return []


def _announcement(tasks: list[Task], todo: list[Task], workers: int) -> str:
    settings = len({task.experiment.setting for task in tasks})
    seconds = sum(task.experiment.time_budget or 0.0 for task in todo) / workers
    done = len(tasks) - len(todo)
    return (
        f"{settings} setting{'s' * (settings > 1)}, {len(tasks)} runs"
        + (f", {done} of them on disk already" if done else "")
        + (f"; training takes {Progress.duration(seconds)} in all" if seconds else "")
        + (f" with {workers} workers" if workers > 1 else "")
    )


def is_done(task: Task) -> bool:
    """Whether the run is on disk; a failed one is tried again.

    Raises
    ------
    ConfigError
        If the folder holds a run of another configuration.
    """
    record = read_record(task.folder)
    if record is None or record["status"] == "failed":
        return False
    there = yaml.safe_load((task.folder / "config.yaml").read_text(encoding="utf-8"))
    here = dataclasses.asdict(run_config(task.experiment, task.optimizer, task.seed))
    differences = list(_differences(there, here))
    if differences:
        raise ConfigError(
            f"{task.folder} holds a run with other settings ({differences[0]}). Choose "
            "another folder with --output, or remove this one."
        )
    return True


def _differences(there: Any, here: Any, path: str = "") -> Iterator[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in there.keys() | here.keys():
            if path or key not in NOT_OF_A_RUN:
                inner = f"{path}.{key}" if path else str(key)
                yield from _differences(there.get(key), here.get(key), inner)
    elif there != here:
        yield f"{path} is {there!r} there and {here!r} here"


# -- making the runs ------------------------------------------------------------------


_warm: set[str] = set()  # settings of which this process has trained something


def make_run(task: Task, watch: Callable[[Point], None] | None = None) -> dict[str, Any]:
    """Make one run and write its folder; an error becomes a record of it."""
    quiet()
    try:
        setting = ready(task.experiment)
        with stoppable():
            if setting.experiment.setting not in _warm:
                warm_up(setting, task.optimizer)
                _warm.add(setting.experiment.setting)
            run = perform(setting, task.optimizer, task.seed, watch)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        if not isinstance(error, ScottError):
            message += f" ({traceback.format_exc(limit=-1).splitlines()[-3].strip()})"
        run = failed_run(task.experiment, task.optimizer, task.seed, message)
    write_run(task.folder, task.experiment, run)
    return run.record


def _alone(
    tasks: Sequence[Task], progress: Progress
) -> Iterator[tuple[Task, dict[str, Any]]]:
    for task in tasks:
        yield task, make_run(task, progress.watch(task.label))


def _together(
    tasks: Sequence[Task], workers: int
) -> Iterator[tuple[Task, dict[str, Any]]]:
    calls = [(task,) for task in tasks]
    for place, record in in_processes(make_run, calls, workers):
        yield tasks[place], record
