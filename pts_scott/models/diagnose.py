"""`diagnose`: whether a better sampler would help a model on its data."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
from gluonts.dataset.common import Dataset

from pts_scott._utils.arguments import whole_number
from pts_scott._utils.text import quote
from pts_scott.backends import backend
from pts_scott.data.window_index import WindowIndex
from pts_scott.diagnostics.diagnosis import Diagnosis
from pts_scott.diagnostics.diagnosis_probe import MIN_WINDOWS, DiagnosisProbe
from pts_scott.errors import ArgumentError, DivergenceError
from pts_scott.method.protocol import Tensors
from pts_scott.models.estimator import ScottEstimator
from pts_scott.models.with_scott import _WithScott
from pts_scott.strata.candidates import candidate_policies
from pts_scott.strata.policy import Policy
from pts_scott.training.callbacks import Observer
from pts_scott.training.lightning_module import OuterLoopModule
from pts_scott.training.trainer import ScottTrainer
from pts_scott.training.trainer_checks import check_stratifier

#: Arguments that the short training run shares with the estimator's own trainer.
SHARED = ("batch_size", "stratifier", "objective", "clip_gradient", "device", "threads")


def diagnose(
    estimator: Any,
    dataset: Dataset | WindowIndex,
    *,
    steps: int = 500,
    windows: int = 1024,
    batch_size: int | None = None,
    stratifier: Policy | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Diagnosis:
    """Measure whether strata, spread allocation or a control variate would help.

    A copy of the model is trained briefly with Adam and uniform mini-batches. At the
    start, after a tenth of the steps and at the end, the gradients of windows drawn
    uniformly are measured, and with them the variance of mini-batches from each of the
    candidate strata, on windows not used to find strata or shares. The estimator and its
    trainer stay as they are.

    Parameters
    ----------
    estimator
        An estimator of this package, or of ``with_scott``.
    dataset
        The training data, or the windows that the estimator's ``create_windows``
        returned.
    steps
        Steps of training.
    windows
        Windows whose gradients are measured at each point; all, if there are fewer.
    batch_size
        M, windows in a mini-batch; None for that of the estimator's trainer.
    stratifier
        A policy to compare beside the candidates of ``method="auto"``; None for that of
        the estimator's trainer, if it has one.
    seed
        Seed of the initial parameters and of all draws.
    progress
        Called with the number of steps after each of them.

    Returns
    -------
    Diagnosis
        With ``table``, ``noise_scale``, ``advice`` and ``figure()``; print it for an
        overview.

    Raises
    ------
    ArgumentError
        If ``estimator`` is not one that a `ScottTrainer` trains.
    DataError
        If the data cannot be used.
    ModelError
        If the network breaks an assumption of the method.
    DivergenceError
        If the short training run diverges.

    Examples
    --------
    >>> estimator = SimpleFeedForwardEstimator("h", 24)      # doctest: +SKIP
    >>> print(diagnose(estimator, dataset))                  # doctest: +SKIP
    """
    trainer = _check_estimator(estimator).trainer
    _check_dataset(dataset)
    points = _Points(
        whole_number("steps", steps),
        trainer.hyperparameters.inner_steps,
        # Learned strata keep features of the windows: a copy leaves the given ones alone.
        copy.deepcopy(check_stratifier(stratifier) or trainer.stratifier),
        whole_number("windows", windows, minimum=MIN_WINDOWS),
        whole_number("seed", seed, minimum=0, maximum=2**63 - 1),
        progress,
    )
    twin = copy.copy(estimator)
    twin.trainer = _short_trainer(trainer, batch_size, steps, seed, points)
    with _quiet_lightning():
        if isinstance(dataset, WindowIndex):
            twin.train_windows(dataset)
        else:
            twin.train(dataset)
    if twin.trainer.interrupted:
        raise KeyboardInterrupt
    if twin.trainer.gave_up:
        raise DivergenceError(
            f"training diverged at learning_rate={twin.trainer.learning_rate:g}, so its "
            "gradients say nothing about a run that does not. Lower learning_rate, or "
            "set clip_gradient."
        )
    return points.diagnosis


class _Points(Observer):
    """A callback that measures at the start, after a tenth of the steps and at the end.

    Parameters
    ----------
    steps
        Steps of the run.
    loop
        K, steps of an outer loop: how much earlier than a measurement the snapshot is.
    given
        The user's policy; None for none.
    windows, seed
        Of the probe.
    progress
        Called with the number of steps; None for nothing.
    """

    def __init__(
        self,
        steps: int,
        loop: int,
        given: Policy | None,
        windows: int,
        seed: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        due = (0, max(1, steps // 10), steps)
        #: The points, each with the step of its snapshot; the start has none.
        self._due = {step: max(0, step - loop) if step else None for step in due}
        self._given, self._windows, self._seed = given, windows, seed
        self._progress = progress
        self._probe: DiagnosisProbe | None = None
        self._snapshots: dict[int | None, Tensors] = {}
        self._measured = -1

    @property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis, once the run has ended."""
        assert self._probe is not None
        return self._probe.diagnosis

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Measure the initial parameters."""
        module: OuterLoopModule = pl_module
        size = module.runner.method.step_windows
        self._probe = DiagnosisProbe(
            module.losses,
            module.windows,
            candidate_policies(module.windows, self._given),
            size,
            self._windows,
            module.runner.method.objective,
            self._seed,
        )
        self._visit(module.steps)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Measure, or keep the parameters for a later measurement."""
        self._visit(pl_module.steps)

    def _visit(self, step: int) -> None:
        if step in self._due and self._measured < step:
            self._measure(step)
        if step in self._due.values():
            assert self._probe is not None
            self._snapshots[step] = self._probe.parameters()
        if self._progress is not None:
            self._progress(step)

    def _measure(self, step: int) -> None:
        assert self._probe is not None
        self._measured = step
        self._probe.measure(step, self._snapshots.get(self._due.get(step)))


def _short_trainer(
    trainer: ScottTrainer,
    batch_size: int | None,
    steps: int,
    seed: int,
    points: _Points,
) -> ScottTrainer:
    """Return a trainer with few steps of Adam and uniform mini-batches."""
    given = trainer.given_arguments
    arguments = {name: given[name] for name in SHARED if name in given}
    if batch_size is not None:
        arguments["batch_size"] = batch_size
    if trainer.optimizer == "adam":
        arguments["learning_rate"] = trainer.learning_rate
    return backend.ScottTrainer(
        **arguments,
        method="plain",
        optimizer="adam",
        inner_steps=1,  # so that every step can be measured
        epochs=1,
        num_batches_per_epoch=steps,
        output="last",
        compile=False,
        seed=seed,
        trainer_kwargs={"enable_progress_bar": False, "callbacks": [points]},
    )


def _check_estimator(estimator: Any) -> Any:
    if isinstance(estimator, ScottEstimator | _WithScott):
        return estimator
    example = "SimpleFeedForwardEstimator(freq='h', prediction_length=24)"
    if isinstance(estimator, type):
        problem = f"the class {estimator.__name__}, not an instance"
    elif isinstance(estimator, backend.LIBRARY_ESTIMATORS):
        name = type(estimator).__name__
        problem, example = f"{name} without with_scott", f"with_scott({name})(...)"
    else:
        problem = quote(estimator)
    raise ArgumentError(
        f"estimator is {problem}; expected an estimator that a ScottTrainer trains, e.g. "
        f"{example}."
    )


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, WindowIndex):
        return
    if isinstance(dataset, Iterable) and not isinstance(dataset, str | bytes):
        return
    raise ArgumentError(
        f"dataset is {quote(dataset)}; expected entries with start and target, e.g. "
        "ListDataset([{'start': '2024-01-01', 'target': [...]}], freq='h')."
    )


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Silence Lightning's lines about devices: this run is not the user's."""
    loggers = [logging.getLogger(f"lightning.{part}") for part in ("pytorch", "fabric")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
