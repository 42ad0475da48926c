"""SCott for GluonTS and PyTorchTS: variance-reduced training with stratified sampling."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pts_scott.backends import ScottTrainer
    from pts_scott.data.arrow import ArrowDataset
    from pts_scott.data.window_index import WindowIndex
    from pts_scott.datasets.catalogue import load
    from pts_scott.errors import ScottError
    from pts_scott.method.batch_sampler import StratifiedBatchSampler
    from pts_scott.models.diagnose import diagnose
    from pts_scott.models.forecasts import forecast_frame
    from pts_scott.models.paper_models import (
        LSTMEstimator,
        NBEATSEstimator,
        SimpleFeedForwardEstimator,
        VAREstimator,
    )
    from pts_scott.models.predictors import load_predictor
    from pts_scott.models.with_scott import with_scott
    from pts_scott.strata.partition import Strata
    from pts_scott.strata.stratifier import Stratifier
    from pts_scott.training.checkpoints import Checkpoints

__version__ = "0.1.0"

__all__ = [
    "ArrowDataset",
    "Checkpoints",
    "LSTMEstimator",
    "NBEATSEstimator",
    "ScottError",
    "ScottTrainer",
    "SimpleFeedForwardEstimator",
    "Strata",
    "StratifiedBatchSampler",
    "Stratifier",
    "VAREstimator",
    "WindowIndex",
    "diagnose",
    "forecast_frame",
    "load",
    "load_predictor",
    "with_scott",
]

# Modules of the public names. They are imported on first use: importing torch and
# Lightning takes seconds, and help texts should appear without that delay.
_MODULES = {
    "ArrowDataset": "data.arrow",
    "Checkpoints": "training.checkpoints",
    "LSTMEstimator": "models.paper_models",
    "NBEATSEstimator": "models.paper_models",
    "ScottError": "errors",
    "ScottTrainer": "backends",
    "SimpleFeedForwardEstimator": "models.paper_models",
    "Strata": "strata.partition",
    "StratifiedBatchSampler": "method.batch_sampler",
    "Stratifier": "strata.stratifier",
    "VAREstimator": "models.paper_models",
    "WindowIndex": "data.window_index",
    "diagnose": "models.diagnose",
    "forecast_frame": "models.forecasts",
    "load": "datasets.catalogue",
    "load_predictor": "models.predictors",
    "with_scott": "models.with_scott",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
