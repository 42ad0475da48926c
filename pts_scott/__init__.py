"""SCott for GluonTS and PyTorchTS: variance-reduced training with stratified sampling."""

from pts_scott.arrow import ArrowDataset
from pts_scott.errors import ScottError
from pts_scott.estimators import (
    LSTMEstimator,
    NBEATSEstimator,
    SimpleFeedForwardEstimator,
    VAREstimator,
)
from pts_scott.strata import Strata
from pts_scott.stratifier import Stratifier
from pts_scott.trainer import ScottTrainer
from pts_scott.windows import WindowIndex

__version__ = "0.1.0"

__all__ = [
    "ArrowDataset",
    "LSTMEstimator",
    "NBEATSEstimator",
    "ScottError",
    "ScottTrainer",
    "SimpleFeedForwardEstimator",
    "Strata",
    "Stratifier",
    "VAREstimator",
    "WindowIndex",
]
