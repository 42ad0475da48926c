"""Variance of the samplers during a training run: the paper's figure, at equal cost."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import lightning.pytorch as pl
import pandas as pd
import torch
from tqdm import tqdm

from pts_scott.data.window_index import WindowIndex
from pts_scott.diagnostics.diagnosis_probe import MIN_WINDOWS, DiagnosisProbe
from pts_scott.diagnostics.sampler_choice import Finding
from pts_scott.diagnostics.sampler_formulas import SamplerVariance
from pts_scott.diagnostics.variance import VarianceProbe
from pts_scott.errors import ConfigError
from pts_scott.experiments.config import Experiment, OptimizerConfig
from pts_scott.experiments.folders import new_folder
from pts_scott.experiments.lightning_control import (
    interruptible,
    raise_if_interrupted,
    silence_lightning,
)
from pts_scott.experiments.progress import Meter, budget_of
from pts_scott.experiments.report.figures import save_figure, variance_figure
from pts_scott.experiments.setting import Setting, choose
from pts_scott.method.methods import METHODS, Scott
from pts_scott.strata.calendar import default_stratifier
from pts_scott.strata.candidates import label
from pts_scott.strata.policy import Policy
from pts_scott.strata.stratifier import Stratifier
from pts_scott.training.callbacks import Measurements
from pts_scott.training.lightning_module import OuterLoopModule

SPREAD = "spread"  # an allocation, and the name of its samples in the table


class SamplerMeasurements(Measurements):
    """A callback that measures the variance of the samplers during a run.

    The control variate is measured at the end of an outer loop, where the parameters are
    farthest from the snapshot and its variance is largest. Before training there is no
    snapshot, so it is omitted.

    Parameters
    ----------
    make_probe
        Creates the probe from the module that is trained.
    make_spread_probe
        Creates that of spread allocations; None to leave them out.
    points
        Number of measurements after the first, which precedes training.
    meter
        Shows the progress.
    brief
        Whether to leave out a line per measurement.

    Attributes
    ----------
    tables
        One table of all samplers per measurement.
    """

    def __init__(
        self,
        make_probe: Callable[[OuterLoopModule], VarianceProbe],
        make_spread_probe: Callable[[OuterLoopModule], DiagnosisProbe] | None,
        points: int,
        meter: Meter,
        brief: bool = False,
    ) -> None:
        super().__init__(points, meter.advance)
        self._make_probe, self._meter, self._brief = make_probe, meter, brief
        self._probe: VarianceProbe | None = None
        self._make_spread_probe = make_spread_probe
        self._spread_probe: DiagnosisProbe | None = None
        self.tables: list[pd.DataFrame] = []

    def measure(self, trainer: pl.Trainer, module: OuterLoopModule) -> None:
        """Add a table of all samplers."""
        if self._probe is None:
            self._probe = self._make_probe(module)
            if self._make_spread_probe is not None:
                self._spread_probe = self._make_spread_probe(module)
        if module.steps:
            # The actual number of inner steps per anchor: γ may stop the loop early.
            inner_steps = module.steps / max(module.state.counters.anchors, 1)
            table = self._probe.measure(
                module.runner.snapshot,
                inner_steps=inner_steps,
                coefficient=module.runner.coefficient(),
            )
        else:
            table = self._probe.measure()
        if self._spread_probe is not None:
            point = self._spread_probe.measure(module.steps, earlier=None)
            findings = () if point is None else point.findings
            table = pd.concat([table, _spread_rows(table, findings)], ignore_index=True)
        position = {
            "seconds": module.clock.seconds,
            "gradients_used": module.state.counters.gradients,
            "step": module.steps,
        }
        self.tables.append(table.assign(**position))
        if table["relative"].isna().all():
            self._meter.line(
                f"step {module.steps}: training diverged; measuring stops here", 1.0
            )
            trainer.should_stop = True
            return
        if self._brief:
            return
        best = table.loc[table["relative"].idxmin()]
        self._meter.line(
            f"{module.spent():4.0%}  step {module.steps:7d}: lowest variance with "
            f"{best['sampler']} {best['stratifier']} "
            f"({best['relative']:.2f} of uniform)",
            module.spent(),
        )


def _spread_rows(table: pd.DataFrame, findings: Sequence[Finding]) -> pd.DataFrame:
    """Return the rows of samples with spread allocation, at the cost of the others."""
    uniform = table[table["sampler"] == "uniform"].iloc[0]
    rows = [
        dataclasses.asdict(
            SamplerVariance(
                sampler=SPREAD,
                stratifier=finding.label,
                strata=finding.strata,
                gradients=uniform["gradients"],
                batch_size=uniform["batch_size"],
                variance=finding.spread.value * uniform["variance"],
                standard_error=finding.spread.standard_error * uniform["variance"],
                relative=finding.spread.value,
                loop_relative=finding.spread.value,
                within=finding.within,
                note="judged by other windows than strata and shares were fitted to",
            )
        )
        for finding in findings
    ]
    return pd.DataFrame(rows, columns=table.columns)


def spread_policies(experiment: Experiment, windows: WindowIndex) -> dict[str, Policy]:
    """Return the strata that optimizers with spread allocation draw from, by label."""
    usual = default_stratifier(windows.series.timeline.offset)
    policies = [
        experiment.stratifier(config) or usual
        for config in experiment.optimizers.values()
        if config.allocation == SPREAD
    ]
    return {label(policy): policy for policy in policies}


def measure_samplers(
    experiment: Experiment,
    setting: Setting | None = None,
    say: Callable[[str], None] = tqdm.write,
    brief: bool = False,
) -> pd.DataFrame:
    """Train one optimizer and measure the variance of all samplers during training.

    Parameters
    ----------
    experiment
        The setting; its ``variance`` configures the measurement.
    setting
        The setting with its windows, if it exists already.
    say
        Where progress lines go.
    brief
        Whether to leave out a line per measurement.

    Returns
    -------
    pandas.DataFrame
        One row per measurement, sampler and stratifier.
    """
    silence_lightning()
    setting = setting or Setting(experiment)
    options = experiment.variance
    optimizer = optimizer_to_train(experiment)
    config = choose(experiment, optimizer)
    windows = setting.training
    policies = [
        experiment.stratifier() or default_stratifier(windows.series.timeline.offset),
        *map(Stratifier.parse, options.stratifiers),
    ]
    strata = {label(policy): policy.stratify(windows) for policy in policies}
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
            generator=torch.Generator().manual_seed(options.seed),
        )

    spread = spread_policies(experiment, windows)

    def make_spread_probe(module: OuterLoopModule) -> DiagnosisProbe:
        return DiagnosisProbe(
            module.losses,
            module.windows,
            spread,
            batch_size=cost,
            count=options.sample,
            objective=None,
            seed=options.seed,
        )

    seconds = options.time_budget or experiment.time_budget
    shorter = dataclasses.replace(experiment, time_budget=seconds)
    meter = Meter("variance of the samplers", *budget_of(shorter), say)
    measurements = SamplerMeasurements(
        make_probe,
        make_spread_probe if spread and len(windows) >= MIN_WINDOWS else None,
        options.points,
        meter,
        brief,
    )
    varied = setting.varied(shorter)
    estimator = varied.estimator(optimizer, options.seed, [measurements])
    began = time.perf_counter()
    with meter, interruptible():
        estimator.train_windows(windows)
    raise_if_interrupted(estimator.trainer)
    if not brief:
        say(f"measured in {time.perf_counter() - began:.0f} s, including training")
    return pd.concat(measurements.tables, ignore_index=True)


def optimizer_to_train(experiment: Experiment) -> str:
    """Return the optimizer to train while variances are measured.

    Raises
    ------
    ConfigError
        If it has no anchor, and so no snapshot for a control variate.
    """
    given = experiment.variance.optimizer
    names = [name for name, config in experiment.optimizers.items() if config.uses_anchor]
    if given is not None:
        choose(experiment, given)
    if not names or given not in (None, *names):
        raise ConfigError(
            f"variance.optimizer={given!r}: expected an optimizer with an anchor, at "
            "whose snapshot the control variate is measured; this experiment has "
            f"{names}."
        )
    papers = [n for n in names if METHODS[experiment.optimizers[n].method] is Scott]
    return given or (papers or names)[0]


def can_measure(experiment: Experiment, say: Callable[[str], None]) -> bool:
    """Return whether samplers can be measured, and report it if not.

    Raises
    ------
    ConfigError
        If the config names an optimizer without an anchor.
    """
    has_anchor = any(config.uses_anchor for config in experiment.optimizers.values())
    if not has_anchor and experiment.variance.optimizer is None:
        say(
            f"{experiment.setting}: no optimizer has an anchor, so samplers are not "
            "measured"
        )
        return False
    optimizer_to_train(experiment)
    return True


def write_samplers(table: pd.DataFrame, experiment: Experiment, folder: Path) -> None:
    """Write the table, the figure and, last, the config of a measurement."""
    table.to_csv(folder / "variance.csv", index=False)
    save_figure(variance_figure(table), folder / "variance.png")
    (folder / "variance.yaml").write_text(_measured_config(experiment), encoding="utf-8")


def is_measured(experiment: Experiment, folder: Path) -> bool:
    """Return whether a folder holds the measurement of this experiment."""
    path = folder / "variance.yaml"
    return (
        path.exists()
        and (folder / "variance.csv").exists()
        and path.read_text(encoding="utf-8") == _measured_config(experiment)
    )


def _measured_config(experiment: Experiment) -> str:
    """Return the part of the config that a measurement depends on, as YAML."""
    name = optimizer_to_train(experiment)
    alone = {name: choose(experiment, name)}
    for other, config in experiment.optimizers.items():
        if config.allocation == SPREAD:
            strata = OptimizerConfig(
                method=config.method,
                optimizer=config.optimizer,
                stratifier=config.stratifier,
                allocation=config.allocation,
            )
            alone.setdefault(other, strata)
    return dataclasses.replace(experiment, optimizers=alone, seeds=[]).dump()


def command(experiment: Experiment, output: Path, say: Callable[[str], None]) -> Path:
    """Measure, write and return the folder, for ``pts-scott variance``."""
    setting = Setting(experiment)  # mistakes are raised before there is a folder
    optimizer_to_train(experiment)
    with new_folder(experiment, output) as folder:
        table = measure_samplers(experiment, setting, say)
        write_samplers(table, experiment, folder)
    return folder
