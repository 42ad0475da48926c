"""Checks of an experiment that types cannot express, made before anything runs."""

from __future__ import annotations

from pts_scott._utils.arguments import nearest, one_of, real_number, whole_number
from pts_scott.errors import ConfigError
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.models import check_model
from pts_scott.experiments.names import check_name_length, folder_name, run_name
from pts_scott.method.methods import METHODS
from pts_scott.strata.stratifier import Stratifier


def check_experiment(experiment: Experiment) -> Experiment:
    """Return the experiment if its values are valid.

    Raises
    ------
    ArgumentError, ConfigError
    """
    for name, config in experiment.optimizers.items():
        one_of(f"optimizers.{name}.method", config.method, METHODS)
    check_model(experiment.model)
    _check_numbers(experiment)
    _check_lists(experiment)
    _check_own_grids(experiment)
    if experiment.time_budget is None and experiment.gradient_budget is None:
        raise ConfigError(
            "time_budget and gradient_budget are both null: set one of them, or training "
            "would never end."
        )
    _check_folder_names(experiment)
    experiment.stratifier()
    for config in experiment.optimizers.values():
        experiment.stratifier(config)
    for text in experiment.variance.stratifiers:
        Stratifier.parse(text)
    return experiment


def _check_numbers(experiment: Experiment) -> None:
    counts = (
        ("batch_size", experiment.batch_size, 1),
        ("gradient_budget", experiment.gradient_budget, 1),
        ("evaluations", experiment.evaluations, 1),
        ("curve_windows", experiment.curve_windows, 1),
        ("evaluation_windows", experiment.evaluation_windows, 1),
        ("backtest_samples", experiment.backtest_samples, 0),
        ("backtest_series", experiment.backtest_series, 1),
        ("tune.evaluations", experiment.tune.evaluations, 1),
        ("tune.average", experiment.tune.average, 1),
        ("variance.points", experiment.variance.points, 1),
        ("variance.gradients", experiment.variance.gradients, 1),
        ("variance.sample", experiment.variance.sample, 2),
        ("variance.per_stratum", experiment.variance.per_stratum, 2),
        ("variance.seed", experiment.variance.seed, 0),
        *(
            (f"optimizers.{name}.batch_size", config.batch_size, 1)
            for name, config in experiment.optimizers.items()
        ),
        *(("seeds", seed, 0) for seed in experiment.seeds),
        *(("tune.seeds", seed, 0) for seed in experiment.tune.seeds),
    )
    for name, value, minimum in counts:
        if value is not None:
            whole_number(name, value, minimum)
    for name, seconds in (
        ("time_budget", experiment.time_budget),
        ("tune.time_budget", experiment.tune.time_budget),
        ("variance.time_budget", experiment.variance.time_budget),
    ):
        if seconds is not None:
            real_number(name, seconds, exclusive=True)
    tuning = experiment.tune
    if tuning.average > tuning.evaluations:
        raise ConfigError(
            f"tune.average={tuning.average} is more than tune.evaluations="
            f"{tuning.evaluations}, the measurements of a trial."
        )


def _check_lists(experiment: Experiment) -> None:
    if not experiment.optimizers:
        raise ConfigError("optimizers is empty: name at least one.")
    for name, values in (
        ("seeds", experiment.seeds),
        ("tune.seeds", experiment.tune.seeds),
        ("tune.learning_rate", experiment.tune.learning_rate),
    ):
        if not values or len(set(values)) < len(values):
            raise ConfigError(
                f"{name}={values}: expected at least one value, each only once."
            )
    if any(not 0 <= beta < 1 for beta in experiment.tune.betas):
        raise ConfigError(
            f"tune.betas={experiment.tune.betas}: expected numbers of at least 0 and "
            "less than 1."
        )


def _check_own_grids(experiment: Experiment) -> None:
    for name, grids in experiment.tune.own.items():
        if name not in experiment.optimizers:
            raise ConfigError(
                f"tune.own has grids of {name!r}, but there is no such optimizer. "
                f"{nearest(name, experiment.optimizers)}"
            )
        with_anchor = experiment.optimizers[name].uses_anchor
        anchors = ("gamma", "anchor_batch_size", "inner_steps") if with_anchor else ()
        known = ("learning_rate", "betas", *anchors)
        for grid, values in grids.items():
            if grid not in known:
                raise ConfigError(
                    f"tune.own.{name} has {grid!r}, which is not tuned for it. "
                    f"{nearest(grid, known)}"
                )
            if grid in ("anchor_batch_size", "inner_steps"):
                for value in values:
                    whole_number(f"tune.own.{name}.{grid}", int(value))


def _check_folder_names(experiment: Experiment) -> None:
    runs = [run_name(name, max(experiment.seeds)) for name in experiment.optimizers]
    for folder in (experiment.setting, *runs):
        check_name_length(folder)
    folders = {folder_name(name).lower() for name in experiment.optimizers}
    if len(folders) < len(experiment.optimizers):
        raise ConfigError(
            f"optimizers {', '.join(map(repr, experiment.optimizers))}: two of them "
            "would share a folder; give them names that differ in letters or digits."
        )
