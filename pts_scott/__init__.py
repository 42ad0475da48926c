"""SCott for GluonTS and PyTorchTS: variance-reduced training with stratified sampling."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pts_scott.backends import ScottTrainer
    from pts_scott.data.arrow import ArrowDataset
    from pts_scott.data.window_index import WindowIndex
    from pts_scott.datasets.catalogue import load
    from pts_scott.datasets.data_report import DataReport
    from pts_scott.datasets.series_data import SeriesData
    from pts_scott.datasets.time_split import TimeSplit
    from pts_scott.diagnostics.diagnosis import Diagnosis
    from pts_scott.errors import FaultWarning, ScottError, ScottWarning
    from pts_scott.method.batch_sampler import StratifiedBatchSampler
    from pts_scott.models.diagnose import diagnose
    from pts_scott.models.estimator import ScottEstimator
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
    from pts_scott.strata.policy import Policy
    from pts_scott.strata.stratifier import Stratifier
    from pts_scott.training.checkpoints import Checkpoints

__version__ = "0.1.0"

__all__ = [
    "ArrowDataset",
    "Checkpoints",
    "DataReport",
    "Diagnosis",
    "FaultWarning",
    "LSTMEstimator",
    "NBEATSEstimator",
    "Policy",
    "ScottError",
    "ScottEstimator",
    "ScottTrainer",
    "ScottWarning",
    "SeriesData",
    "SimpleFeedForwardEstimator",
    "Strata",
    "StratifiedBatchSampler",
    "Stratifier",
    "TimeSplit",
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
    "DataReport": "datasets.data_report",
    "Diagnosis": "diagnostics.diagnosis",
    "FaultWarning": "errors",
    "LSTMEstimator": "models.paper_models",
    "NBEATSEstimator": "models.paper_models",
    "Policy": "strata.policy",
    "ScottError": "errors",
    "ScottEstimator": "models.estimator",
    "ScottTrainer": "backends",
    "ScottWarning": "errors",
    "SeriesData": "datasets.series_data",
    "SimpleFeedForwardEstimator": "models.paper_models",
    "Strata": "strata.partition",
    "StratifiedBatchSampler": "method.batch_sampler",
    "Stratifier": "strata.stratifier",
    "TimeSplit": "datasets.time_split",
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
