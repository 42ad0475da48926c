"""Variance of the samplers along a training run: the paper's figure, at equal cost."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path

import lightning.pytorch as pl
import pandas as pd
import torch

from pts_scott.diagnostics.variance import VarianceProbe
from pts_scott.errors import ConfigError
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.folders import (
    check_not_stopped,
    make_folders,
    quiet,
    stoppable,
)
from pts_scott.experiments.report.figures import save_figure, variance_figure
from pts_scott.experiments.setting import Setting, choose
from pts_scott.strata.partition import default_stratifier
from pts_scott.strata.stratifier import Stratifier
from pts_scott.training.callbacks import Measurements
from pts_scott.training.lightning_module import OuterLoopModule


class SamplerWatch(Measurements):
    """Measures the variance of the samplers along a run.

    The control variate is measured at the end of an outer loop, where the parameters are
    farthest from the snapshot and its variance is largest; before training there is no
    snapshot, and it is left out.
    """

    def __init__(
        self,
        make_probe: Callable[[OuterLoopModule], VarianceProbe],
        points: int,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(points)
        self._make_probe, self._say = make_probe, say
        self._probe: VarianceProbe | None = None
        self.tables: list[pd.DataFrame] = []

    def measure(self, trainer: pl.Trainer, module: OuterLoopModule) -> None:
        """Add a table of all samplers."""
        if self._probe is None:
            self._probe = self._make_probe(module)
        if module.steps:
            # The steps that an anchor really served: γ may have stopped it early.
            served = module.steps / max(module.scott.anchors, 1)
            table = self._probe.measure(
                module.scott.snapshot,
                inner_steps=served,
                coefficient=module.coefficient(),
            )
        else:
            table = self._probe.measure()
        place = {
            "seconds": module.clock.seconds,
            "gradients_used": module.gradients.count,
            "step": module.steps,
        }
        self.tables.append(table.assign(**place))
        if table["relative"].isna().all():
            self._say(f"step {module.steps}: training has diverged; measuring ends here")
            trainer.should_stop = True
            return
        best = table.loc[table["relative"].idxmin()]
        self._say(
            f"{module.spent():4.0%}  step {module.steps:7d}: lowest variance by "
            f"{best['sampler']} {best['stratifier']} "
            f"({best['relative']:.2f} of uniform's)"
        )


def measure_samplers(
    experiment: Experiment,
    setting: Setting | None = None,
    say: Callable[[str], None] = print,
) -> pd.DataFrame:
    """Train one optimizer and measure the variance of all samplers on the way.

    Parameters
    ----------
    experiment
        The setting; its ``variance`` says what is measured.
    setting
        The experiment, if it was made ready before.
    say
        Where lines about the progress go.

    Returns
    -------
    pandas.DataFrame
        A row for each measurement, sampler and stratifier.
    """
    quiet()
    setting = setting or Setting(experiment)
    options = experiment.variance
    optimizer = trained_meanwhile(experiment)
    config = choose(experiment, optimizer)
    windows = setting.training
    policies = [
        experiment.stratifier() or default_stratifier(windows.series.timeline.offset),
        *map(Stratifier.parse, options.stratifiers),
    ]
    strata = {_short(policy): policy.stratify(windows) for policy in policies}
    own = next(iter(strata.values()))
    b, k = config.anchor_batch_size, config.inner_steps
    cost = options.gradients or math.ceil(2 * experiment.batch_size + len(own) * b / k)

    def make_probe(module: OuterLoopModule) -> VarianceProbe:
        device = module.windows.device
        return VarianceProbe(
            module.losses,
            module.windows,
            {name: part.to(device) for name, part in strata.items()},
            gradients=cost,
            anchor_batch_size=b,
            inner_steps=k,
            sample=options.sample,
            per_stratum=options.per_stratum,
            generator=torch.Generator(device).manual_seed(options.seed),
        )

    watch = SamplerWatch(make_probe, options.points, say)
    seconds = options.time_budget or experiment.time_budget
    shorter = dataclasses.replace(experiment, time_budget=seconds)
    estimator = setting.varied(shorter).estimator(optimizer, options.seed, [watch])
    began = time.perf_counter()
    with stoppable():
        estimator.train_windows(windows)
    check_not_stopped(estimator.trainer)
    say(f"measured in {time.perf_counter() - began:.0f} s, training included")
    return pd.concat(watch.tables, ignore_index=True)


def trained_meanwhile(experiment: Experiment) -> str:
    """The optimizer that trains while variances are measured.

    Raises
    ------
    ConfigError
        If it has no anchor, and so no snapshot for a control variate.
    """
    given = experiment.variance.optimizer
    names = [name for name, config in experiment.optimizers.items() if config.has_anchor]
    if given is not None:
        choose(experiment, given)
    if not names or given not in (None, *names):
        raise ConfigError(
            f"variance.optimizer={given!r}: expected an optimizer with an anchor, at "
            f"whose snapshot a control variate is measured; here are {names}."
        )
    scott = [name for name in names if experiment.optimizers[name].method == "scott"]
    return given or (scott or names)[0]


def can_measure(experiment: Experiment, say: Callable[[str], None]) -> bool:
    """Whether samplers can be measured here; told before anything runs if not.

    Raises
    ------
    ConfigError
        If the config asks for an optimizer that cannot be measured.
    """
    anchored = any(config.has_anchor for config in experiment.optimizers.values())
    if not anchored and experiment.variance.optimizer is None:
        say(
            f"{experiment.setting}: no optimizer has an anchor, so no sampler is measured"
        )
        return False
    trained_meanwhile(experiment)
    return True


def _short(policy: Stratifier) -> str:
    return str(policy).replace("Stratifier.", "")


def write_samplers(table: pd.DataFrame, experiment: Experiment, folder: Path) -> None:
    """Write table, picture and, last, config of a measurement into a folder."""
    table.to_csv(folder / "variance.csv", index=False)
    save_figure(variance_figure(table), folder / "variance.png")
    (folder / "variance.yaml").write_text(_measured_config(experiment), encoding="utf-8")


def is_measured(experiment: Experiment, folder: Path) -> bool:
    """Whether a folder holds what this experiment would measure."""
    path = folder / "variance.yaml"
    return (
        path.exists()
        and (folder / "variance.csv").exists()
        and path.read_text(encoding="utf-8") == _measured_config(experiment)
    )


def _measured_config(experiment: Experiment) -> str:
    """All that a measurement depends on: the rest of an experiment may change."""
    name = trained_meanwhile(experiment)
    alone = {name: choose(experiment, name)}
    return dataclasses.replace(experiment, optimizers=alone, seeds=[]).dump()


def command(experiment: Experiment, output: Path, say: Callable[[str], None]) -> Path:
    """Measure, write and return the folder: what ``pts-scott variance`` does."""
    make_folders([experiment], output)
    folder = output / experiment.setting
    write_samplers(measure_samplers(experiment, say=say), experiment, folder)
    return folder
