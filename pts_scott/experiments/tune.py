"""Tuning: step sizes and γ, chosen on the tuning range from the same grids for all.

Each optimizer has one Optuna study per stage of its search. Trials worse than the median
are pruned halfway, but not in a climb; trials in the storage are not repeated.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from pts_scott._utils.arguments import whole_number
from pts_scott.errors import CompilationError, ScottError
from pts_scott.experiments.config import Experiment, OptimizerConfig
from pts_scott.experiments.curve import Point
from pts_scott.experiments.folders import make_folders
from pts_scott.experiments.lightning_control import interruptible, silence_lightning
from pts_scott.experiments.progress import TimeLeft, advance_to, terminal_bar
from pts_scott.experiments.run import check_same_engine, perform, warm_up
from pts_scott.experiments.setting import Setting, choose, ready
from pts_scott.experiments.studies import (
    Stage,
    climbs,
    expected_trials,
    finished_trials,
    grid_points,
    has_finite_loss,
    import_optuna,
    load_tuned,
    next_step_size,
    open_study,
    prepare_storage,
    queue_sampler,
    sqlite_url,
    stages,
    trials_table,
    with_values,
)
from pts_scott.experiments.workers import in_processes

if TYPE_CHECKING:
    import optuna

Tuned = dict[str, OptimizerConfig | None]


def tune(
    experiment: Experiment,
    output: Path,
    *,
    workers: int = 1,
    only: Sequence[str] = (),
    storage: str | None = None,
    say: Callable[[str], None] = tqdm.write,
) -> Path:
    """Tune the optimizers of a setting, and return the file with the best config.

    Parameters
    ----------
    experiment
        The setting, with the grids in ``tune``.
    output
        Folder of the results, with a subfolder per setting.
    workers
        Number of optimizers tuned in parallel, each in its own process.
    only
        Optimizers to tune; empty for all.
    storage
        Optuna's storage URL; None for a SQLite file in the setting's folder.
    say
        Where progress lines go.
    """
    whole_number("workers", workers)
    names = list(only) or list(experiment.optimizers)
    for name in names:
        choose(experiment, name)
    import_optuna()  # raises before there is a folder, as do mistakes in the config
    ready(experiment, tuning=True)
    make_folders([experiment], output)
    folder = output / experiment.setting
    storage = storage or sqlite_url(folder / "trials.db")
    prepare_storage(storage)
    others = [name for name in experiment.optimizers if name not in names]
    best: Tuned = {name: load_tuned(experiment, name, storage) for name in others}
    for name in others:
        if best[name] is not None:
            say(f"{name}: already tuned")
    best |= _tune_all(experiment, names, storage, workers, say)
    table = trials_table(experiment, list(best), storage)
    table.to_csv(folder / "trials.csv", index=False)
    for name in names:
        _warn_at_grid_edge(experiment, name, best[name], say)
    path = folder / "best.yaml"
    _write_best(path, experiment, best)
    diverged = [name for name in names if best[name] is None]
    if diverged:
        raise ScottError(
            f"{', '.join(diverged)} diverged with every value of the grid, so {path} has "
            "their untuned values. Give smaller step sizes in tune.learning_rate, with "
            "--only and another --output."
        )
    return path


def _tune_all(
    experiment: Experiment,
    names: Sequence[str],
    storage: str,
    workers: int,
    say: Callable[[str], None],
) -> Tuned:
    """Tune optimizers in sequence or in parallel, with a progress bar over all trials."""
    best: Tuned = {}
    total = sum(expected_trials(experiment, name) for name in names)
    done = len(trials_table(experiment, names, storage))
    left = TimeLeft()
    say(f"{total} trials" + (f", {done} of them already made" if done else ""))
    with terminal_bar(total, " trials", initial=done, unit_scale=False) as bar:

        def remaining(made: int) -> str:
            return left.after(min((made - done) / max(total - done, 1), 1.0))

        if workers == 1:
            made = itertools.count(done + 1)

            def report(line: str) -> None:
                say(line + remaining(next(made)))
                bar.update()

            for name in names:
                bar.set_description_str(name)
                best[name] = tune_optimizer(experiment, name, storage, report)
            return best
        calls = [(experiment, name, storage) for name in names]

        def show() -> int:
            made = len(trials_table(experiment, names, storage))
            advance_to(bar, made)
            return made

        for index, tuned in in_processes(tune_optimizer, calls, workers, show):
            best[names[index]] = tuned
            if tuned is not None:
                chosen = f"step size {tuned.learning_rate:g}, γ {tuned.gamma}"
                say(f"{names[index]}: {chosen}{remaining(show())}")
    return best


def tune_optimizer(
    experiment: Experiment,
    optimizer: str,
    storage: str,
    say: Callable[[str], None] | None = None,
) -> OptimizerConfig | None:
    """Search the grids for one optimizer, stage by stage.

    Returns
    -------
    OptimizerConfig or None
        The optimizer with the best values, or None if every trial diverged.
    """
    silence_lightning()
    best = choose(experiment, optimizer)
    with interruptible():
        warm_up(ready(experiment, tuning=True), optimizer)
        for number, stage in enumerate(stages(experiment, optimizer)):
            study = open_study(experiment, optimizer, number, stage, best, storage)
            search = _climb if climbs(experiment, number) else _search
            found = search(study, experiment, optimizer, best, stage, say)
            if found is None:
                return None
            best = found
    return best


def _climb(
    study: optuna.Study,
    experiment: Experiment,
    optimizer: str,
    start: OptimizerConfig,
    stage: Stage,
    say: Callable[[str], None] | None,
) -> OptimizerConfig | None:
    """Return the best step size of a climb over the grid."""
    objective = _objective(ready(experiment, tuning=True), optimizer, start, stage)
    while (size := next_step_size(study, stage, start.learning_rate)) is not None:
        _make_trial(study, objective, {"learning_rate": size})
        if say is not None:
            say(f"{optimizer}: {_describe(study.trials[-1])}")
    return with_values(start, study.best_trial.params) if has_finite_loss(study) else None


def _make_trial(
    study: optuna.Study,
    objective: Callable[[optuna.Trial], float],
    params: dict[str, float],
    *callbacks: Any,
) -> None:
    """Make one trial with given values."""
    from optuna.trial import TrialState

    study.sampler = queue_sampler()
    waiting = study.get_trials(deepcopy=False, states=[TrialState.WAITING])
    if not any(trial.system_attrs.get("fixed_params") == params for trial in waiting):
        study.enqueue_trial(params)  # an interrupted search may have left one
    study.optimize(objective, n_trials=1, callbacks=callbacks)


def _search(
    study: optuna.Study,
    experiment: Experiment,
    optimizer: str,
    start: OptimizerConfig,
    stage: Stage,
    say: Callable[[str], None] | None,
) -> OptimizerConfig | None:
    """Return the best of one stage, with the values of earlier stages fixed."""
    setting, grid = ready(experiment, tuning=True), grid_points(stage)
    objective = _objective(setting, optimizer, start, stage)

    def report(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if say is not None:
            done = len(finished_trials(study))
            say(f"{optimizer} [{done}/{len(grid)}] {_describe(trial)}")

    if not study.sampler.is_exhausted(study):
        study.optimize(objective, callbacks=[report])
    # The sampler skips failed and interrupted trials; repeat them to complete the grid.
    done = [trial.params for trial in finished_trials(study)]
    for params in grid:
        if params not in done:
            _make_trial(study, objective, params, report)
    return with_values(start, study.best_trial.params) if has_finite_loss(study) else None


def _objective(
    setting: Setting, optimizer: str, start: OptimizerConfig, stage: Stage
) -> Callable[[optuna.Trial], float]:
    """Return the function that makes a trial with some values of a stage."""

    def objective(trial: optuna.Trial) -> float:
        values = {name: trial.suggest_categorical(name, v) for name, v in stage.items()}
        return _mean_loss(trial, setting, optimizer, with_values(start, values))

    return objective


def _mean_loss(
    trial: optuna.Trial, setting: Setting, optimizer: str, config: OptimizerConfig
) -> float:
    """Return the mean loss over the seeds on the tuning windows after training."""
    from optuna import TrialPruned

    tuning = setting.experiment.tune
    experiment = dataclasses.replace(
        setting.experiment,
        optimizers={optimizer: config},
        time_budget=tuning.time_budget or setting.experiment.time_budget,
        evaluations=tuning.evaluations,
        backtest_samples=0,
    )
    losses: list[float] = []
    steps = itertools.count()
    for seed in tuning.seeds:
        pruned = False
        measured: list[float] = []

        def watch(point: Point) -> bool:
            nonlocal pruned
            measured.append(point.test_loss)  # noqa: B023 - called in this iteration only
            trial.report(_nan_to_infinity(point.test_loss), next(steps))
            pruned = trial.should_prune()
            return pruned

        try:
            run = perform(setting.varied(experiment), optimizer, seed, watch, tuning=True)
            check_same_engine(run.record, ())
        except (RuntimeError, ValueError, CompilationError) as error:
            raise ScottError(
                f"{optimizer} failed with {trial.params}, seed {seed}: "
                f"{type(error).__name__}: {error}. Finished trials are kept."
            ) from error
        if pruned:
            raise TrialPruned
        loss = run.record["test_loss"]
        if tuning.average > 1 and math.isfinite(loss):
            last = measured[-tuning.average :]
            loss = sum(last) / len(last)
        losses.append(_nan_to_infinity(loss))
    return sum(losses) / len(losses)


def _nan_to_infinity(loss: float) -> float:
    """Return infinity for a non-finite loss: Optuna rejects NaN."""
    return loss if math.isfinite(loss) else math.inf


def _describe(trial: Any) -> str:
    params = ", ".join(f"{name} {value:g}" for name, value in trial.params.items())
    outcome = trial.state.name.lower() if trial.value is None else f"{trial.value:.4g}"
    return f"{params}: {outcome}"


def _warn_at_grid_edge(
    experiment: Experiment,
    name: str,
    best: OptimizerConfig | None,
    say: Callable[[str], None],
) -> None:
    grid = stages(experiment, name)[0]["learning_rate"]
    if best is None or len(grid) < 2:
        return
    for end, edge in (("smallest", min(grid)), ("largest", max(grid))):
        if best.learning_rate == edge:
            say(f"{name}: the best step size {edge:g} is the {end} of its grid")


def _write_best(path: Path, experiment: Experiment, best: Tuned) -> None:
    tuned = {name: config for name, config in best.items() if config is not None}
    result = dataclasses.replace(experiment, optimizers=experiment.optimizers | tuned)
    path.write_text(
        f"# Tuned on the last tenth of the training range: {', '.join(tuned)}.\n"
        + result.dump(),
        encoding="utf-8",
    )
