"""Optuna studies: one per optimizer and stage of its search, resumed from the storage."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from pts_scott._utils.text import one_line
from pts_scott.errors import ConfigError, MissingExtraError, ScottError
from pts_scott.experiments.config import Experiment, OptimizerConfig
from pts_scott.experiments.setting import choose, ready

if TYPE_CHECKING:
    import optuna

#: Names of the values that are searched together, and the grid of each.
Stage = dict[str, list[float]]
#: Whole numbers among them, which only an optimizer's own grids have.
ANCHOR_GRIDS = ("anchor_batch_size", "inner_steps")


def stages(experiment: Experiment, optimizer: str) -> list[Stage]:
    """Return the stages of an optimizer's search, in order."""
    config, tuning = choose(experiment, optimizer), experiment.tune
    own = tuning.own.get(optimizer, {})
    gamma, betas = own.get("gamma", tuning.gamma), own.get("betas", tuning.betas)
    parts: list[Stage] = [
        {"learning_rate": own.get("learning_rate", tuning.learning_rate)}
    ]
    if config.uses_anchor and gamma:
        parts.append({"gamma": gamma})
    if config.optimizer == "adam" and betas:
        parts.append({"beta_1": betas, "beta_2": betas})
    anchors = {name: own[name] for name in ANCHOR_GRIDS if own.get(name)}
    if anchors:
        parts.append(anchors)
    if tuning.search == "grid":
        return [dict(itertools.chain.from_iterable(part.items() for part in parts))]
    return parts


def grid_points(stage: Stage) -> list[dict[str, float]]:
    """Return all combinations of a stage's values."""
    return [dict(zip(stage, values)) for values in itertools.product(*stage.values())]


def climbs(experiment: Experiment, number: int) -> bool:
    """Return whether a stage tries step sizes one by one instead of its whole grid."""
    return experiment.tune.search == "climb" and number == 0


def expected_trials(experiment: Experiment, optimizer: str) -> int:
    """Return the number of trials of a search; of a climb, a guess."""
    return sum(
        min(len(grid_points(stage)), 4)
        if climbs(experiment, number)
        else len(grid_points(stage))
        for number, stage in enumerate(stages(experiment, optimizer))
    )


def next_step_size(study: optuna.Study, stage: Stage, start: float) -> float | None:
    """Return the step size that a climb tries next; None when it has ended.

    It begins next to ``start`` and goes to smaller step sizes as long as the loss falls;
    if the first of them was not better, to larger ones.
    """
    grid = sorted(stage["learning_rate"])
    losses = {t.params["learning_rate"]: t.value for t in finished_trials(study)}
    first = min(range(len(grid)), key=lambda i: abs(math.log(grid[i] / start)))
    if grid[first] not in losses:
        return grid[first]
    for path in (grid[first::-1], grid[first:]):
        for before, size in itertools.pairwise(path):
            if size not in losses:
                return size
            if losses[size] >= losses[before] and math.isfinite(losses[before]):
                break
        best = min(losses.get(size, math.inf) for size in path)
        if best < losses[grid[first]] or math.isinf(best):
            break  # larger ones would be worse, or diverge, too
    return None


def is_complete(
    study: optuna.Study, experiment: Experiment, number: int, stage: Stage, start: float
) -> bool:
    """Return whether no trial of a stage is missing."""
    if climbs(experiment, number):
        return next_step_size(study, stage, start) is None
    return len(finished_trials(study)) >= len(grid_points(stage))


def with_values(config: OptimizerConfig, values: dict[str, Any]) -> OptimizerConfig:
    """Return an optimizer with the values of a trial."""
    values = dict(values)
    if "beta_1" in values:
        values["betas"] = [values.pop("beta_1"), values.pop("beta_2")]
    values |= {name: int(values[name]) for name in ANCHOR_GRIDS if name in values}
    return dataclasses.replace(config, **values)


# -- storage ----------------------------------------------------------------------------


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite file, whose path may contain URL delimiters."""
    import_optuna()
    from sqlalchemy.engine import URL

    # As a file URI: SQLAlchemy's parsing of plain paths differs between versions.
    url = URL.create("sqlite", database=path.resolve().as_uri(), query={"uri": "true"})
    return url.render_as_string(hide_password=False)


def prepare_storage(storage: str) -> None:
    """Create the tables, which must exist before workers use them."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        import_optuna().storages.RDBStorage(storage)
    except (SQLAlchemyError, RuntimeError, ImportError) as error:
        raise ScottError(
            f"the storage of trials cannot be opened ({one_line(error)}). Give another "
            "with --storage, or choose another folder with --output."
        ) from error


def import_optuna() -> Any:
    """Import Optuna, an optional dependency, with its info log silenced."""
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError(
            'tuning needs Optuna: pip install "pts-scott[tune]".'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


# -- studies ----------------------------------------------------------------------------


def open_study(
    experiment: Experiment,
    optimizer: str,
    number: int,
    stage: Stage,
    start: OptimizerConfig,
    storage: str,
) -> optuna.Study:
    """Create the study of one stage, or load it from the storage.

    Raises
    ------
    ConfigError
        If the storage holds trials of another config or grid.
    """
    optuna = import_optuna()
    halfway = math.ceil(experiment.tune.evaluations / 2)
    samplers, pruners = optuna.samplers, optuna.pruners
    # A climb compares neighbours, and the smaller step is often worse halfway.
    climb = climbs(experiment, number)
    study = optuna.create_study(
        storage=storage,
        study_name=study_name(experiment, optimizer, number),
        sampler=queue_sampler() if climb else samplers.GridSampler(stage, seed=0),
        pruner=pruners.NopPruner()
        if climb
        else pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=halfway),
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


def queue_sampler() -> Any:
    """Return the sampler of studies whose trials are all enqueued: it draws nothing.

    After an enqueued trial, `GridSampler` can fail for lack of the number it would have
    given to the trial.
    """
    return import_optuna().samplers.RandomSampler(seed=0)


def study_name(experiment: Experiment, optimizer: str, number: int) -> str:
    """Return the name of the study of one stage of an optimizer's search."""
    return f"{experiment.setting}: {optimizer}, stage {number + 1}"


def _identity(
    experiment: Experiment, stage: Stage, start: OptimizerConfig
) -> dict[str, Any]:
    """Return everything a trial's loss depends on, except what the trial chooses."""
    tree = dataclasses.asdict(experiment)
    names = ("data", "model", "batch_size", "gradient_budget", "compile", "threads")
    measured = ("device", "evaluation_windows", "curve_windows")
    own = {name: tree[name] for name in (*names, *measured)}
    choices = ("search", "evaluations", "average", "seeds")
    tuning = {name: tree["tune"][name] for name in choices}
    tuning["time_budget"] = experiment.tune.time_budget or experiment.time_budget
    config = dataclasses.asdict(start)
    for name in stage:
        config.pop("betas" if name.startswith("beta_") else name, None)
    data = ready(experiment, tuning=True).data_identity
    return {**own, "series": data, "tune": tuning, "optimizer": config, "stage": stage}


def finished_trials(study: optuna.Study) -> list[Any]:
    """Return the trials with an outcome, that is, neither failed nor interrupted."""
    states = [import_optuna().trial.TrialState[name] for name in ("COMPLETE", "PRUNED")]
    return list(study.get_trials(deepcopy=False, states=states))


def has_finite_loss(study: optuna.Study) -> bool:
    """Return whether any trial has a finite loss."""
    values = (trial.value for trial in finished_trials(study))
    return any(value is not None and math.isfinite(value) for value in values)


def load_tuned(
    experiment: Experiment, optimizer: str, storage: str
) -> OptimizerConfig | None:
    """Return an optimizer as tuned by an earlier search; None if that is incomplete."""
    best = choose(experiment, optimizer)
    for number, stage in enumerate(stages(experiment, optimizer)):
        study = _stored_study(experiment, optimizer, number, stage, best, storage)
        if study is None or not has_finite_loss(study):
            return None
        if not is_complete(study, experiment, number, stage, best.learning_rate):
            return None
        best = with_values(best, study.best_trial.params)
    return best


def _stored_study(
    experiment: Experiment,
    optimizer: str,
    number: int,
    stage: Stage,
    start: OptimizerConfig,
    storage: str,
) -> optuna.Study | None:
    """Return the study of one stage; None if the storage has none of this config."""
    known = import_optuna().get_all_study_names(storage)
    if study_name(experiment, optimizer, number) not in known:
        return None
    try:
        return open_study(experiment, optimizer, number, stage, start, storage)
    except ConfigError:
        return None


def trials_table(
    experiment: Experiment, names: Sequence[str], storage: str
) -> pd.DataFrame:
    """Return all finished trials of some optimizers, one row per trial."""
    optuna = import_optuna()
    known = optuna.get_all_study_names(storage)
    tables = []
    for name in names:
        for number, stage in enumerate(stages(experiment, name)):
            title = study_name(experiment, name, number)
            if title not in known:
                continue
            study = optuna.load_study(study_name=title, storage=storage)
            table = _study_table(study, stage)
            table.insert(0, "optimizer", name)
            table.insert(1, "stage", number + 1)
            if len(table):
                tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _study_table(study: optuna.Study, stage: Stage) -> pd.DataFrame:
    """Return the finished trials of a study, with the columns of ``trials.csv``."""
    attributes = ("params", "state", "value", "intermediate_values")
    trials = study.trials_dataframe(attrs=attributes)
    parameters = {f"params_{name}": name for name in stage}
    columns = [*parameters, "state", "value"]
    table = trials.reindex(columns=columns).rename(columns=parameters | {"value": "loss"})
    table["state"] = table["state"].map({"COMPLETE": "complete", "PRUNED": "pruned"})
    measured = trials.filter(like="intermediate_values_")
    table["measurements"] = measured.notna().sum(axis=1)
    return table.dropna(subset=["state"])
