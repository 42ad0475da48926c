"""Tuning: step sizes, and γ, chosen on the tuning range from the same grids for all.

Each optimizer has an Optuna study for each stage of its search. Trials that are worse
than the median halfway are pruned; what is in the storage is not repeated.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from pts_scott._utils.arguments import whole_number
from pts_scott._utils.text import one_line
from pts_scott.errors import CompilationError, ConfigError, MissingExtraError, ScottError
from pts_scott.experiments.config import Experiment, OptimizerConfig
from pts_scott.experiments.folders import make_folders, quiet, stoppable
from pts_scott.experiments.runs import Point, check_same_engine, perform, warm_up
from pts_scott.experiments.setting import Setting, choose, ready
from pts_scott.experiments.workers import in_processes

if TYPE_CHECKING:
    import optuna

Stage = dict[str, list[float]]


def tune(
    experiment: Experiment,
    output: Path,
    *,
    workers: int = 1,
    only: Sequence[str] = (),
    storage: str | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Tune the optimizers of a setting; returns the file with the best config.

    Parameters
    ----------
    experiment
        The setting, with the grids in ``tune``.
    output
        Folder of the results; the setting has its own in it.
    workers
        Optimizers tuned at the same time, each in a process of its own.
    only
        Optimizers to tune; empty for all.
    storage
        Of Optuna; None for a SQLite file in the setting's folder.
    say
        Where lines about the progress go.
    """
    whole_number("workers", workers)
    names = list(only) or list(experiment.optimizers)
    for name in names:
        choose(experiment, name)
    make_folders([experiment], output)
    folder = output / experiment.setting
    storage = storage or _sqlite(folder / "trials.db")
    ready(experiment, tuning=True)  # mistakes in data and arguments end it here
    _prepare(storage)
    others = [name for name in experiment.optimizers if name not in names]
    best = {name: stored(experiment, name, storage) for name in others}
    for name in others:
        if best[name] is not None:
            say(f"{name}: tuned before")
    if workers == 1:
        for name in names:
            best[name] = tune_optimizer(experiment, name, storage, say)
    else:
        calls = [(experiment, name, storage) for name in names]
        for place, tuned in in_processes(tune_optimizer, calls, workers):
            best[names[place]] = tuned
            if tuned is not None:
                say(f"{names[place]}: {_chosen(tuned)}")
    tuned_ones = {name: found for name, found in best.items() if found is not None}
    trials(experiment, list(best), storage).to_csv(folder / "trials.csv", index=False)
    for name in names:
        _warn_of_edges(experiment, name, best[name], say)
    path = folder / "best.yaml"
    result = dataclasses.replace(
        experiment, optimizers={**experiment.optimizers, **tuned_ones}
    )
    path.write_text(
        f"# Tuned on the last tenth of the training range: {', '.join(tuned_ones)}.\n"
        + result.dump(),
        encoding="utf-8",
    )
    lost = [name for name in names if best[name] is None]
    if lost:
        raise ScottError(
            f"{', '.join(lost)} diverged with every value of the grid, so {path} has "
            "their untuned values. Give smaller step sizes in tune.learning_rate, with "
            "--only and another --output."
        )
    return path


def stages(experiment: Experiment, optimizer: str) -> list[Stage]:
    """What is searched together, and what after it."""
    config, grids = choose(experiment, optimizer), experiment.tune
    parts: list[Stage] = [{"learning_rate": grids.learning_rate}]
    if config.has_anchor and grids.gamma:
        parts.append({"gamma": grids.gamma})
    if config.optimizer == "adam" and grids.betas:
        parts.append({"beta_1": grids.betas, "beta_2": grids.betas})
    if grids.search == "grid":
        return [dict(itertools.chain.from_iterable(part.items() for part in parts))]
    return parts


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
        It with what was found, or None if every trial diverged.
    """
    quiet()
    best: OptimizerConfig | None = choose(experiment, optimizer)
    with stoppable():
        warm_up(ready(experiment, tuning=True), optimizer)
        for number, stage in enumerate(stages(experiment, optimizer)):
            assert best is not None
            study = _study(experiment, optimizer, number, stage, best, storage)
            best = _search(study, experiment, optimizer, best, stage, say)
            if best is None:
                break
    return best


def stored(
    experiment: Experiment, optimizer: str, storage: str
) -> OptimizerConfig | None:
    """An optimizer as an earlier search has tuned it; None if there was no whole one."""
    best = choose(experiment, optimizer)
    known = _optuna().get_all_study_names(storage)
    for number, stage in enumerate(stages(experiment, optimizer)):
        if study_name(experiment, optimizer, number) not in known:
            return None
        try:
            study = _study(experiment, optimizer, number, stage, best, storage)
        except ConfigError:
            return None
        if len(_finished(study)) < len(_grid(stage)) or not _finite(study):
            return None
        best = varied(best, study.best_trial.params)
    return best


def _search(
    study: optuna.Study,
    experiment: Experiment,
    optimizer: str,
    start: OptimizerConfig,
    stage: Stage,
    say: Callable[[str], None] | None,
) -> OptimizerConfig | None:
    """The best of one stage, with all that was found before held fixed."""
    setting, size = ready(experiment, tuning=True), len(_grid(stage))

    def objective(trial: optuna.Trial) -> float:
        found = {name: trial.suggest_categorical(name, v) for name, v in stage.items()}
        return _trial(trial, setting, optimizer, varied(start, found))

    def tell(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if say is not None:
            done = len(_finished(study))
            say(f"{optimizer} [{done}/{size}] {_described(trial)}")

    if not study.sampler.is_exhausted(study):
        study.optimize(objective, callbacks=[tell])
    # What failed, or was interrupted, is tried again: a grid has no holes.
    done = [trial.params for trial in _finished(study)]
    for params in _grid(stage):
        if params not in done:
            study.enqueue_trial(params)
            study.optimize(objective, n_trials=1, callbacks=[tell])
    return varied(start, study.best_trial.params) if _finite(study) else None


def _grid(stage: Stage) -> list[dict[str, float]]:
    return [dict(zip(stage, values)) for values in itertools.product(*stage.values())]


def _finite(study: optuna.Study) -> bool:
    """Whether any trial has a loss."""
    values = (trial.value for trial in _finished(study))
    return any(value is not None and math.isfinite(value) for value in values)


def _trial(
    trial: optuna.Trial, setting: Setting, optimizer: str, config: OptimizerConfig
) -> float:
    """Mean loss on the tuning windows after training with one choice."""
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

        def watch(point: Point) -> bool:
            nonlocal pruned
            trial.report(_or_infinity(point.test_loss), next(steps))
            pruned = trial.should_prune()
            return pruned

        try:
            run = perform(setting.varied(experiment), optimizer, seed, watch, tuning=True)
            check_same_engine(run.record, ())
        except (RuntimeError, ValueError, CompilationError) as error:
            raise ScottError(
                f"{optimizer} failed with {trial.params}, seed {seed}: "
                f"{type(error).__name__}: {error}. What was finished is kept."
            ) from error
        if pruned:
            raise TrialPruned
        losses.append(_or_infinity(run.record["test_loss"]))
    return sum(losses) / len(losses)


def _or_infinity(loss: float) -> float:
    """Optuna knows no NaN: what diverged is worse than everything."""
    return loss if math.isfinite(loss) else math.inf


def varied(config: OptimizerConfig, found: dict[str, Any]) -> OptimizerConfig:
    """An optimizer with what a trial has chosen."""
    found = dict(found)
    if "beta_1" in found:
        found["betas"] = [found.pop("beta_1"), found.pop("beta_2")]
    return dataclasses.replace(config, **found)


# -- Optuna's side --------------------------------------------------------------------


def _sqlite(path: Path) -> str:
    """The address of a SQLite file, whose path may have what addresses mark with."""
    _optuna()
    from sqlalchemy.engine import URL

    # As a URI: what SQLAlchemy reads from an address differs between its versions.
    url = URL.create("sqlite", database=path.resolve().as_uri(), query={"uri": "true"})
    return url.render_as_string(hide_password=False)


def _prepare(storage: str) -> None:
    """Make the tables, which must be there for all workers."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        _optuna().storages.RDBStorage(storage)
    except (SQLAlchemyError, RuntimeError, ImportError) as error:
        raise ScottError(
            f"the storage of trials cannot be opened ({one_line(error)}). Give another "
            "with --storage, or choose another folder with --output."
        ) from error


def _study(
    experiment: Experiment,
    optimizer: str,
    number: int,
    stage: Stage,
    start: OptimizerConfig,
    storage: str,
) -> optuna.Study:
    optuna = _optuna()
    evaluations = experiment.tune.evaluations
    study = optuna.create_study(
        storage=storage,
        study_name=study_name(experiment, optimizer, number),
        sampler=optuna.samplers.GridSampler(stage, seed=0),
        pruner=optuna.pruners.MedianPruner(
            n_startup_trials=3, n_warmup_steps=math.ceil(evaluations / 2)
        ),
        direction="minimize",
        load_if_exists=True,
    )
    here = json.dumps(_identity(experiment, stage, start), sort_keys=True)
    there = study.user_attrs.get("config")
    if there not in (None, here):
        raise ConfigError(
            f"{storage} holds trials of {optimizer} with another config or grid. Choose "
            "another folder with --output, or remove that one."
        )
    study.set_user_attr("config", here)
    return study  # type: ignore[no-any-return]


def study_name(experiment: Experiment, optimizer: str, number: int) -> str:
    """Name of the study of one stage of an optimizer's search."""
    return f"{experiment.setting}: {optimizer}, stage {number + 1}"


def _identity(
    experiment: Experiment, stage: Stage, start: OptimizerConfig
) -> dict[str, Any]:
    """All that a trial's loss depends on, but for what the trial chooses."""
    tree = dataclasses.asdict(experiment)
    names = ("data", "model", "batch_size", "gradient_budget", "compile", "threads")
    own = {name: tree[name] for name in (*names, "device", "evaluation_windows")}
    tuning = {name: tree["tune"][name] for name in ("evaluations", "seeds")}
    tuning["time_budget"] = experiment.tune.time_budget or experiment.time_budget
    config = dataclasses.asdict(start)
    for name in stage:
        config.pop("betas" if name.startswith("beta_") else name, None)
    return {**own, "tune": tuning, "optimizer": config, "stage": stage}


def _finished(study: optuna.Study) -> list[Any]:
    """Trials with an outcome; one that failed, or was interrupted, has none."""
    states = [_optuna().trial.TrialState[name] for name in ("COMPLETE", "PRUNED")]
    return list(study.get_trials(deepcopy=False, states=states))


def trials(experiment: Experiment, names: Sequence[str], storage: str) -> pd.DataFrame:
    """All trials of some optimizers: what was tried and what came of it."""
    optuna = _optuna()
    known = optuna.get_all_study_names(storage)
    rows = []
    for name in names:
        for number in range(len(stages(experiment, name))):
            title = study_name(experiment, name, number)
            if title not in known:
                continue
            study = optuna.load_study(study_name=title, storage=storage)
            rows += [
                {
                    "optimizer": name,
                    "stage": number + 1,
                    **trial.params,
                    "state": trial.state.name.lower(),
                    "loss": trial.value,
                    "measurements": len(trial.intermediate_values),
                }
                for trial in _finished(study)
            ]
    return pd.DataFrame(rows)


def _described(trial: Any) -> str:
    params = ", ".join(f"{name} {value:g}" for name, value in trial.params.items())
    outcome = trial.state.name.lower() if trial.value is None else f"{trial.value:.4g}"
    return f"{params}: {outcome}"


def _chosen(config: OptimizerConfig) -> str:
    return f"step size {config.learning_rate:g}, γ {config.gamma}"


def _warn_of_edges(
    experiment: Experiment,
    name: str,
    best: OptimizerConfig | None,
    say: Callable[[str], None],
) -> None:
    grid = experiment.tune.learning_rate
    if (
        best is not None
        and len(grid) > 1
        and best.learning_rate in (min(grid), max(grid))
    ):
        end = "smallest" if best.learning_rate == min(grid) else "largest"
        say(f"{name}: the best step size {best.learning_rate:g} is the {end} of its grid")


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError(
            'tuning needs Optuna: pip install "pts-scott[tune]".'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna
