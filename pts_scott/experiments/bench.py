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

from pts_scott._utils.arguments import whole_number
from pts_scott.errors import ConfigError, ScottError
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.config_files import parse_tree, read_config
from pts_scott.experiments.folders import make_folders, quiet, stoppable
from pts_scott.experiments.progress import Progress
from pts_scott.experiments.results import read_json
from pts_scott.experiments.runs import (
    Point,
    check_same_engine,
    data_identity,
    failed_run,
    perform,
    read_record,
    run_config,
    run_folder,
    warm_up,
    write_run,
)
from pts_scott.experiments.sampler_variance import (
    can_measure,
    is_measured,
    measure_samplers,
    write_samplers,
)
from pts_scott.experiments.setting import Setting, choose, ready
from pts_scott.experiments.workers import in_processes

# What does not change a run; and what may differ between the runs of one setting.
NOT_OF_A_RUN = ("name", "tune", "variance")
OF_ONE_RUN = ("optimizers", "seeds")


@dataclass(frozen=True)
class Task:
    """A run to be made: an optimizer and a seed of an experiment, and its folder."""

    experiment: Experiment
    optimizer: str
    seed: int
    folder: Path
    workers: int = 1

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
    experiments: Sequence[Experiment],
    output: Path,
    only: Sequence[str] = (),
    workers: int = 1,
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
    workers
        Runs at the same time, which each of them records.
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
                tasks.append(Task(experiment, name, seed, folder, workers))
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
    tasks = plan(experiments, output, only, workers)
    todo = [task for task in tasks if not is_done(task)]
    planned = [_reduced(experiment, only) for experiment in experiments]
    planned = [with_those_on_disk(e, output / e.setting) for e in planned]
    measured = [e for e in experiments if samplers and can_measure(e, say)]
    make_folders(planned, output)
    say(_announcement(tasks, todo, workers))
    for experiment in {id(t.experiment): t.experiment for t in todo}.values():
        # Mistakes in data and arguments end it here, before any run.
        _check_data(ready(experiment), output / experiment.setting)
    progress = Progress([task.budget for task in todo], say)
    failed, diverged = [], 0
    runs = _alone(todo, progress) if workers == 1 else _together(todo, workers)
    for task, record in runs:
        progress.finished(task.label, record, task.budget)
        if record["status"] == "failed":
            failed.append(f"{task.label}: {record['error']}")
        diverged += record["status"] == "diverged"
    for experiment in measured:
        failed += _measure_samplers(experiment, output / experiment.setting, say)
    return Outcome(len(tasks) - len(todo), diverged, tuple(failed))


def _reduced(experiment: Experiment, only: Sequence[str]) -> Experiment:
    chosen = {k: v for k, v in experiment.optimizers.items() if not only or k in only}
    return dataclasses.replace(experiment, optimizers=chosen)


def _measure_samplers(
    experiment: Experiment, folder: Path, say: Callable[[str], None]
) -> list[str]:
    """Measure the samplers of a setting if that was not done; returns what failed."""
    if is_measured(experiment, folder):
        return []
    say(f"{experiment.setting}: variance of the samplers")
    try:
        table = measure_samplers(experiment, ready(experiment), say=lambda line: None)
        write_samplers(table, experiment, folder)
    except Exception as error:
        return [f"{experiment.setting}, variance of the samplers: {_told(error)}"]
    return []


def with_those_on_disk(experiment: Experiment, folder: Path) -> Experiment:
    """The experiment with the optimizers and seeds of a folder added to its own.

    Raises
    ------
    ConfigError
        If the folder holds runs of another configuration: they would be one table.
    """
    here = dataclasses.asdict(experiment)
    for path in sorted(folder.glob("runs/*/config.yaml")):
        if (path.parent / "run.json").exists():
            _refuse_others(path, here, OF_ONE_RUN)
    path = folder / "config.yaml"
    if not path.exists():
        return experiment
    there = read_config(path)
    if any(_differences(there, here, (*NOT_OF_A_RUN, *OF_ONE_RUN))):
        return experiment  # without runs, or they would have been refused
    known = parse_tree(there, str(path))
    return dataclasses.replace(
        experiment,
        optimizers=known.optimizers | experiment.optimizers,
        seeds=list(dict.fromkeys([*known.seeds, *experiment.seeds])),
    )


def _check_data(setting: Setting, folder: Path) -> None:
    """Refuse to go on with other series than those of the runs on disk."""
    here = data_identity(setting)
    for path in sorted(folder.glob("runs/*/run.json")):
        record = read_json(path)
        if "values" in record and any(record.get(key) != here[key] for key in here):
            there = ", ".join(f"{key} {record.get(key)}" for key in here)
            raise ConfigError(
                f"{path.parent} was trained on other data ({there}) than there are now "
                f"({', '.join(f'{k} {v}' for k, v in here.items())}). Choose another "
                "folder with --output, or remove this one."
            )


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
    here = dataclasses.asdict(run_config(task.experiment, task.optimizer, task.seed))
    _refuse_others(task.folder / "config.yaml", here)
    return True


def _refuse_others(path: Path, here: dict[str, Any], but: Sequence[str] = ()) -> None:
    for difference in _differences(read_config(path), here, (*NOT_OF_A_RUN, *but)):
        raise ConfigError(
            f"{path.parent} holds a run with other settings ({difference}). Choose "
            "another folder with --output, or remove this one."
        )


def _differences(
    there: Any, here: Any, but: Sequence[str] = (), path: str = ""
) -> Iterator[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted((there.keys() | here.keys()) - set(but)):
            inner = f"{path}.{key}" if path else str(key)
            yield from _differences(there.get(key), here.get(key), (), inner)
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
        check_same_engine(run.record, _finished_beside(task))
    except Exception as error:
        run = failed_run(task.experiment, task.optimizer, task.seed, _told(error))
    run.record["workers"] = task.workers
    write_run(task.folder, task.experiment, run)
    return run.record


def _finished_beside(task: Task) -> Iterator[dict[str, Any]]:
    """The records of the runs of the same setting that are on disk and finished."""
    for path in sorted(task.folder.parent.glob("*/run.json")):
        record = read_record(path.parent)
        if path.parent != task.folder and record and record["status"] == "finished":
            yield record


def _told(error: Exception) -> str:
    """What went wrong; of what nobody foresaw, with its place."""
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, ScottError):
        return message
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{message} ({place.filename}, line {place.lineno})"


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
