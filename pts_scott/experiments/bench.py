"""The benchmark: every optimizer and seed of some settings, for the same training time.

The runs of a setting are interleaved (each seed visits all optimizers, each time starting
with another), so that background load affects all optimizers alike. A run on disk is not
repeated; a failed run is recorded and does not stop the others.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pts_scott._utils.arguments import whole_number
from pts_scott.errors import ScottError
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.curve import Watch
from pts_scott.experiments.existing_runs import (
    check_same_data,
    finished_beside,
    is_done,
    with_existing,
)
from pts_scott.experiments.folders import make_folders
from pts_scott.experiments.lightning_control import interruptible, silence_lightning
from pts_scott.experiments.progress import Progress, budget_of, format_duration
from pts_scott.experiments.run import check_same_engine, failed_run, perform, warm_up
from pts_scott.experiments.run_files import write_run
from pts_scott.experiments.sampler_variance import (
    can_measure,
    is_measured,
    measure_samplers,
    write_samplers,
)
from pts_scott.experiments.setting import ready
from pts_scott.experiments.tasks import Task, plan, with_optimizers
from pts_scott.experiments.workers import in_processes


@dataclass(frozen=True)
class Outcome:
    """The outcome of a benchmark: runs that were on disk, diverged, and failures."""

    before: int
    diverged: int
    failed: tuple[str, ...]


def bench(
    experiments: Sequence[Experiment],
    output: Path,
    *,
    workers: int = 1,
    only: Sequence[str] = (),
    samplers: bool = False,
    say: Callable[[str], None] = tqdm.write,
) -> Outcome:
    """Make all runs that are not on disk yet.

    Parameters
    ----------
    experiments
        The settings.
    output
        Folder of the results, created if it does not exist.
    workers
        Number of parallel runs, each in its own process.
    only
        Optimizers to run; empty for all.
    samplers
        Also measure the variance of the samplers, in one more run per setting.
    say
        Where progress lines go.
    """
    whole_number("workers", workers)
    tasks = plan(experiments, output, only, workers)
    todo = [task for task in tasks if not is_done(task)]
    planned = [with_optimizers(experiment, only) for experiment in experiments]
    planned = [with_existing(e, output / e.setting) for e in planned]
    measured = [e for e in experiments if samplers and can_measure(e, say)]
    for experiment in {id(t.experiment): t.experiment for t in todo}.values():
        # Mistakes in data and arguments are raised here, before there is a folder.
        check_same_data(ready(experiment), output / experiment.setting)
    make_folders(planned, output)
    say(_announcement(tasks, todo, workers))
    failed, diverged = [], 0
    for task, record in _make_runs(todo, workers, say):
        if record["status"] == "failed":
            failed.append(f"{task.label}: {record['error']}")
        diverged += record["status"] == "diverged"
    for experiment in measured:
        failed += _measure_samplers(experiment, output / experiment.setting, say)
    return Outcome(len(tasks) - len(todo), diverged, tuple(failed))


def _announcement(tasks: list[Task], todo: list[Task], workers: int) -> str:
    settings = len({task.experiment.setting for task in tasks})
    seconds = sum(task.experiment.time_budget or 0.0 for task in todo) / workers
    done = len(tasks) - len(todo)
    return (
        f"{settings} setting{'s' * (settings > 1)}, {len(tasks)} runs"
        + (f", {done} of them already on disk" if done else "")
        + (f"; total training time {format_duration(seconds)}" if seconds else "")
        + (f" with {workers} workers" if workers > 1 else "")
    )


def _measure_samplers(
    experiment: Experiment, folder: Path, say: Callable[[str], None]
) -> list[str]:
    """Measure the samplers of a setting unless it was done before; return failures."""
    if is_measured(experiment, folder):
        return []
    say(f"{experiment.setting}: variance of the samplers")
    try:
        table = measure_samplers(experiment, ready(experiment), say, brief=True)
        write_samplers(table, experiment, folder)
    except Exception as error:
        return [f"{experiment.setting}, variance of the samplers: {_describe(error)}"]
    return []


# -- making the runs ------------------------------------------------------------------


def _make_runs(
    tasks: Sequence[Task], workers: int, say: Callable[[str], None]
) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Make runs, report each, and yield it with its record."""
    budgets = [budget_of(task.experiment) for task in tasks]
    units = {unit for _, unit in budgets}
    unit = units.pop() if len(units) == 1 else ""
    with Progress([budget for budget, _ in budgets], say, unit) as progress:
        runs = _one_by_one(tasks, progress) if workers == 1 else _parallel(tasks, workers)
        for task, record in runs:
            progress.finished(task.label, record, budget_of(task.experiment)[0])
            yield task, record


def _one_by_one(
    tasks: Sequence[Task], progress: Progress
) -> Iterator[tuple[Task, dict[str, Any]]]:
    for task in tasks:
        budget, _ = budget_of(task.experiment)
        yield task, make_run(task, *progress.watch(task.label, budget))


def _parallel(
    tasks: Sequence[Task], workers: int
) -> Iterator[tuple[Task, dict[str, Any]]]:
    calls = [(task,) for task in tasks]
    for index, record in in_processes(make_run, calls, workers):
        yield tasks[index], record


_warmed_up: set[str] = set()  # settings that this process has trained before


def make_run(
    task: Task,
    watch: Watch | None = None,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Make one run, write its folder, and return its record; record an error, too."""
    silence_lightning()
    try:
        setting = ready(task.experiment)
        with interruptible():
            if setting.experiment.setting not in _warmed_up:
                warm_up(setting, task.optimizer)
                _warmed_up.add(setting.experiment.setting)
            run = perform(setting, task.optimizer, task.seed, watch, progress)
        check_same_engine(run.record, finished_beside(task))
    except Exception as error:
        run = failed_run(task.experiment, task.optimizer, task.seed, _describe(error))
    run.record["workers"] = task.workers
    write_run(task.folder, task.experiment, run)
    return run.record


def _describe(error: Exception) -> str:
    """Return type and message of an error, with its location if it is unexpected."""
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, ScottError):
        return message
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{message} ({place.filename}, line {place.lineno})"
