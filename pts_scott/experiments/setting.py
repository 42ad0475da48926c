"""A setting with its series and windows in memory, shared by many runs."""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np

from pts_scott import datasets
from pts_scott._utils.arguments import nearest
from pts_scott.backends import ScottTrainer
from pts_scott.datasets.readers import read_table
from pts_scott.datasets.series_data import SeriesData
from pts_scott.errors import ConfigError
from pts_scott.experiments.config import Experiment, OptimizerConfig
from pts_scott.experiments.models import Model
from pts_scott.training.compile_policy import STEPS_THAT_REPAY_COMPILING
from pts_scott.training.optimizers import OPTIMIZERS

STEPS_PER_EPOCH = 1000


class Setting:
    """One experiment, ready to train.

    Parameters
    ----------
    experiment
        Its config.
    tuning
        Hold out the last tenth of the training range instead of the test range, which
        is then never used.

    Attributes
    ----------
    series, split
        The series, and their split by time.
    training, held_out : WindowIndex
        Windows to train on, and windows that training never sees.
    loss
        Name of the training loss.
    probabilistic
        Whether the model forecasts a distribution rather than a point.
    """

    def __init__(self, experiment: Experiment, *, tuning: bool = False) -> None:
        self.experiment = experiment
        data = experiment.data
        self.series = datasets.load(
            data.name,
            start=data.start,
            freq=data.freq,
            timestamp=data.timestamp,
            item_id=data.item_id,
            target=data.target,
            known=data.known or (),
            past=data.past or (),
            static=None if data.static is None else read_table(Path(data.static)),
            constant=data.constant,
            seed=data.seed,
        )
        self._model = Model(experiment.model, data, self.series)
        split = self.series.split(data.context_length, data.prediction_length)
        self.split = split
        trainer = self.trainer(next(iter(experiment.optimizers)), seed=0)
        self._model.derive_arguments(split.train, trainer)
        estimators = [self.estimator(name, seed=0) for name in experiment.optimizers]
        estimator = estimators[0]  # all of them: arguments are checked before training
        self.loss = self._model.loss_name(estimator)
        self.probabilistic = self._model.is_probabilistic(estimator)
        before, held_out, whole = (
            (split.fit, split.tuning, _same_series(split.train, split.tuning))
            if tuning
            else (split.train, split.test, split.backtest)
        )
        self.training = self._model.windows(estimator, before, before)
        self.held_out = self._model.windows(estimator, held_out, whole)

    @functools.cached_property
    def data_identity(self) -> dict[str, Any]:
        """What distinguishes the series from others of the same name."""
        digest = hashlib.blake2b(digest_size=8)
        for target in self.series.targets:
            digest.update(np.ascontiguousarray(target).tobytes())
        return {
            "dataset": self.series.name,
            "series": len(self.series.item_ids),
            "values": sum(len(target) for target in self.series.targets),
            "data_digest": digest.hexdigest(),
        }

    def varied(self, experiment: Experiment) -> Setting:
        """Return the same windows for an experiment with other optimizers or budgets."""
        other = copy.copy(self)
        other.experiment = experiment
        return other

    def estimator(
        self, optimizer: str, seed: int, callbacks: Sequence[pl.Callback] = ()
    ) -> Any:
        """Return the model with a trainer for one of the optimizers."""
        return self._model.make(self.trainer(optimizer, seed, callbacks))

    def trainer(
        self, optimizer: str, seed: int, callbacks: Sequence[pl.Callback] = ()
    ) -> ScottTrainer:
        """Return a trainer for one of the optimizers, without a progress bar."""
        experiment = self.experiment
        config = choose(experiment, optimizer)
        return ScottTrainer(
            method=config.method,
            **_update_rule(config),
            stratifier=experiment.stratifier(config),
            allocation=config.allocation,
            replacement=config.replacement,
            output="last",
            batch_size=experiment.windows_per_step(config),
            anchor_batch_size=config.anchor_batch_size,
            inner_steps=config.inner_steps,
            inner_length=config.inner_length,
            gamma=config.gamma,
            coefficient=config.coefficient,
            clip_gradient=config.clip_gradient,
            epochs=None,
            num_batches_per_epoch=STEPS_PER_EPOCH,
            time_budget=experiment.time_budget,
            gradient_budget=experiment.gradient_budget,
            device=experiment.device,
            compile=self._compile(),
            threads=experiment.threads,
            seed=seed,
            trainer_kwargs={
                "enable_progress_bar": False,
                "callbacks": list(callbacks),
            },
        )

    def _compile(self) -> bool | str:
        """Decide once for all optimizers: compiled and eager runs are not comparable."""
        experiment = self.experiment
        if experiment.compile != "auto" or experiment.gradient_budget is None:
            return experiment.compile
        # The fewest steps of any optimizer: an inner step needs two gradients per window.
        windows = map(experiment.windows_per_step, experiment.optimizers.values())
        fewest = experiment.gradient_budget / (2 * max(windows))
        return "auto" if fewest >= STEPS_THAT_REPAY_COMPILING else False


def _same_series(whole: SeriesData, part: SeriesData) -> SeriesData:
    """Return those of the series that a part has, too."""
    rows = {name: row for row, name in enumerate(whole.item_ids)}
    return whole.pick([rows[name] for name in part.item_ids])


_ready: dict[tuple[str, bool], Setting] = {}  # only the latest: series can be large


def ready(experiment: Experiment, *, tuning: bool = False) -> Setting:
    """Return the setting of an experiment, shared by all runs of a process."""
    key = experiment.dump(), tuning
    if key not in _ready:
        _ready.clear()
        _ready[key] = Setting(experiment, tuning=tuning)
    return _ready[key]


def choose(experiment: Experiment, optimizer: str) -> OptimizerConfig:
    """Return the config of one of the experiment's optimizers."""
    if optimizer not in experiment.optimizers:
        raise ConfigError(
            f"the experiment has no optimizer {optimizer!r}. "
            f"{nearest(optimizer, experiment.optimizers)}"
        )
    return experiment.optimizers[optimizer]


def _update_rule(config: OptimizerConfig) -> dict[str, Any]:
    """Return the trainer's arguments that define the update rule."""
    numbers = {
        "learning_rate": config.learning_rate,
        "weight_decay": config.weight_decay,
    }
    if config.betas is None:
        return {"optimizer": config.optimizer, **numbers}
    valid = len(config.betas) == 2 and all(0 <= beta < 1 for beta in config.betas)
    if config.optimizer not in ("adam", "adamw") or not valid:
        raise ConfigError(
            f"betas={config.betas}: expected two numbers of at least 0 and less than 1, "
            "and only for the optimizers 'adam' and 'adamw'."
        )
    rule = functools.partial(
        OPTIMIZERS[config.optimizer],
        lr=config.learning_rate,
        betas=(config.betas[0], config.betas[1]),
        weight_decay=config.weight_decay,
        fused=True,  # as in the trainer's own Adam, which it is compared with
    )
    return {"optimizer": rule}
