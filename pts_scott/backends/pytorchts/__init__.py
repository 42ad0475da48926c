"""PyTorchTS as backend; see `pts_scott.backends.Backend` for what each name is.

PyTorchTS' estimators take a trainer and call it, so `ScottTrainer` inherits from theirs.
"""

from pts_scott.backends.pytorchts.networks import nbeats, simple_feedforward
from pts_scott.backends.pytorchts.predictor import (
    PREDICTOR,
    make_predictor,
    restore_predictor,
)
from pts_scott.backends.pytorchts.trainer import ScottTrainer
from pts_scott.backends.pytorchts.training import (
    LIBRARY_ESTIMATORS,
    MODELS,
    TRAINER_DECIDES,
    UNSUITABLE,
    create_windows,
    estimator_arguments,
    missing_arguments,
    train_model,
    train_windows,
    training_mixins,
)

NAME = "pytorchts"

__all__ = [
    "LIBRARY_ESTIMATORS",
    "MODELS",
    "NAME",
    "PREDICTOR",
    "TRAINER_DECIDES",
    "UNSUITABLE",
    "ScottTrainer",
    "create_windows",
    "estimator_arguments",
    "make_predictor",
    "missing_arguments",
    "nbeats",
    "restore_predictor",
    "simple_feedforward",
    "train_model",
    "train_windows",
    "training_mixins",
]
