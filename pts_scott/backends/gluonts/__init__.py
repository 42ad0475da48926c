"""The current GluonTS as backend; see `pts_scott.backends.Backend` for what each name is.

GluonTS has no trainer class to inherit from and no N-BEATS for torch.
"""

from pts_scott.backends.gluonts.networks import nbeats, simple_feedforward
from pts_scott.backends.gluonts.predictor import (
    PREDICTOR,
    make_predictor,
    restore_predictor,
)
from pts_scott.backends.gluonts.training import (
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
from pts_scott.training.trainer import ScottTrainer

NAME = "gluonts"

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
