"""A setting with its series and windows in memory, shared by many runs."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl

from pts_scott import datasets
from pts_scott._utils.arguments import nearest
from pts_scott.errors import ConfigError
from pts_scott.experiments.config import Experiment, OptimizerConfig
from pts_scott.models.estimator import ScottEstimator
from pts_scott.models.paper_models import (
    LSTMEstimator,
    NBEATSEstimator,
    SimpleFeedForwardEstimator,
    VAREstimator,
)
from pts_scott.training.compile_policy import STEPS_THAT_REPAY_COMPILING
from pts_scott.training.optimizers import OPTIMIZERS
from pts_scott.training.trainer import ScottTrainer

MODELS: dict[str, type[ScottEstimator]] = {
    "mlp": SimpleFeedForwardEstimator,
    "nbeats": NBEATSEstimator,
    "lstm": LSTMEstimator,
    "var": VAREstimator,
}
LOSSES = {"mlp": "NLL", "lstm": "MSE", "var": "MSE"}
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
            constant=data.constant,
            seed=data.seed,
        )
        for name in experiment.optimizers:
            self.estimator(name, seed=0)  # checks the arguments before any training
        self.split = self.series.split(data.context_length, data.prediction_length)
        parts = (
            (self.split.fit, self.split.tuning)
            if tuning
            else (self.split.train, self.split.test)
        )
        estimator = self.estimator(next(iter(experiment.optimizers)), seed=0)
        self.training, self.held_out = (
            estimator.create_windows(part.entries()) for part in parts
        )

    def varied(self, experiment: Experiment) -> Setting:
        """Return the same windows for an experiment with other optimizers or budgets."""
        other = copy.copy(self)
        other.experiment = experiment
        return other

    @property
    def loss(self) -> str:
        """Name of the training loss."""
        arguments = self.experiment.model.arguments
        name = self.experiment.model.name
        return LOSSES.get(name) or str(arguments.get("loss_function", "MAPE"))

    @property
    def probabilistic(self) -> bool:
        """Whether the model forecasts a distribution rather than a point."""
        return self.experiment.model.name == "mlp"

    def estimator(
        self, optimizer: str, seed: int, callbacks: Sequence[pl.Callback] = ()
    ) -> ScottEstimator:
        """Return the model with a trainer for one of the optimizers."""
        experiment, data = self.experiment, self.experiment.data
        reserved = {"freq", "context_length", "prediction_length", "stride", "trainer"}
        for name in reserved & experiment.model.arguments.keys():
            raise ConfigError(
                f"model.arguments has {name!r}, which the data section defines: set it "
                "there."
            )
        if "context" in experiment.model.arguments:
            raise ConfigError(
                "model.arguments has 'context': experiments use windows with complete "
                "contexts, so that held-out windows do not overlap the training range."
            )
        return MODELS[experiment.model.name](
            freq=self.series.freq,
            prediction_length=data.prediction_length,
            context_length=data.context_length,
            stride=data.stride,
            trainer=self.trainer(optimizer, seed, callbacks),
            **experiment.model.arguments,  # type: ignore[arg-type]
        )  # type: ignore[call-arg]

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
