"""SCott for GluonTS and PyTorchTS: variance-reduced training with stratified sampling."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pts_scott.arrow import ArrowDataset
    from pts_scott.checkpoints import Checkpoints
    from pts_scott.errors import ScottError
    from pts_scott.estimators import (
        LSTMEstimator,
        NBEATSEstimator,
        SimpleFeedForwardEstimator,
        VAREstimator,
    )
    from pts_scott.library import with_scott
    from pts_scott.predictors import load_predictor
    from pts_scott.strata import Strata
    from pts_scott.stratifier import Stratifier
    from pts_scott.trainer import ScottTrainer
    from pts_scott.windows import WindowIndex

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
    "Stratifier",
    "VAREstimator",
    "WindowIndex",
    "load_predictor",
    "with_scott",
]

# Where the public names live. They are imported when they are first used: torch and
# Lightning take seconds, for which nobody should wait who asks for help.
_MODULES = {
    "ArrowDataset": "arrow",
    "Checkpoints": "checkpoints",
    "ScottError": "errors",
    "ScottTrainer": "trainer",
    "Strata": "strata",
    "Stratifier": "stratifier",
    "WindowIndex": "windows",
    "load_predictor": "predictors",
    "with_scott": "library",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULES.get(name, 'estimators')}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
