"""Training of PyTorchTS' own estimators, whose ``train_model`` calls the trainer."""

from __future__ import annotations

from typing import Any

from gluonts.dataset.common import Dataset
from pts.model import PyTorchEstimator

from pts_scott._utils.rng import isolated_rng
from pts_scott.backends.pytorchts.predictor import RebuiltPredictor, is_serializable
from pts_scott.data.loader_arguments import warn_unused_loader

LIBRARY_ESTIMATORS: tuple[type, ...] = (PyTorchEstimator,)

# PyTorchTS' estimators have none of these arguments, but GluonTS' have.
TRAINER_DECIDES: dict[str, str] = {
    "lr": "learning_rate",
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "batch_size": "batch_size",
    "num_batches_per_epoch": "num_batches_per_epoch",
    "epochs": "epochs",
    "trainer_kwargs": "trainer_kwargs",
}


def train_model(
    estimator: Any,
    training_data: Dataset,
    validation_data: Dataset | None = None,
    **loader: Any,
) -> Any:
    """Call PyTorchTS' own ``train_model``, which calls the trainer.

    Parameters
    ----------
    estimator
        An estimator of PyTorchTS with a `ScottTrainer`.
    training_data, validation_data
        Entries with ``start`` and ``target``, and the features that the model uses.
    **loader
        Arguments of PyTorchTS' data loaders. Windows are gathered as tensors without
        worker processes, and torch 2 refuses to prefetch without them.
    """
    # PyTorchTS itself passes a prefetch_factor.
    warn_unused_loader({k: v for k, v in loader.items() if k != "prefetch_factor"})
    loader.update(num_workers=0, prefetch_factor=None)
    trainer = estimator.trainer
    with isolated_rng(trainer.next_seed(), trainer.device):  # seeds initial weights, too
        output = estimator.library_estimator.train_model(
            estimator, training_data, validation_data, **loader
        )
        if not is_serializable(output.predictor.prediction_net):
            predictor = RebuiltPredictor.like(output.predictor, estimator)
            output = output._replace(predictor=predictor)
    return output


def training_mixins(estimator: type) -> tuple[type, ...]:
    """Return no bases: PyTorchTS' estimators need nothing but the trainer."""
    return ()


def estimator_arguments(arguments: dict[str, Any], trainer: Any) -> dict[str, Any]:
    """Return the arguments of a library's estimator with its trainer."""
    return {**arguments, "trainer": trainer}
