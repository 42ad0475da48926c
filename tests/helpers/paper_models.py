"""The paper's estimators at small sizes, and seasonal series for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from helpers.training import quiet_trainer
from pts_scott import (
    LSTMEstimator,
    NBEATSEstimator,
    SimpleFeedForwardEstimator,
    VAREstimator,
)

SMALL = {
    SimpleFeedForwardEstimator: {},
    NBEATSEstimator: {"num_stacks": 2, "widths": 16},
    LSTMEstimator: {"hidden_size": 32},
    VAREstimator: {},
}
ESTIMATORS = list(SMALL)


def seasonal(length: int = 240, series: int = 3) -> np.ndarray:
    """Return series with a season of twelve steps and a little noise."""
    t = np.arange(length)
    noise = np.random.default_rng(0).standard_normal((series, length))
    return 10 + 3 * np.sin(2 * np.pi * t / 12 + np.arange(series)[:, None]) + 0.1 * noise


def make(
    cls: Any,
    prediction_length: int = 4,
    context_length: int = 12,
    freq: str = "h",
    trainer: Any = None,
    **kwargs: Any,
) -> Any:
    """Return a small estimator with a trainer for a few hundred steps."""
    trainer = trainer or quiet_trainer(
        optimizer="adam",
        learning_rate=5e-3,
        anchor_batch_size=16,
        epochs=4,
        num_batches_per_epoch=100,
    )
    return cls(
        freq=freq,
        prediction_length=prediction_length,
        context_length=context_length,
        trainer=trainer,
        **{**SMALL[cls], **kwargs},
    )
