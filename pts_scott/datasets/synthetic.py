"""The paper's synthetic data: four series that order four patterns differently.

Every window of 72 + 24 steps, sliding by 24, sees three patterns and predicts the
fourth, so series × predicted pattern gives 16 strata that are known exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gluonts.dataset.common import ListDataset

from pts_scott._utils.arguments import whole_number
from pts_scott.data.window_index import WindowIndex

FREQ = "h"
PATTERN_LENGTH = 24
CONTEXT_LENGTH = 72
PREDICTION_LENGTH = 24
ORDERS = ((0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3), (3, 1, 2, 0))
START = "2000-01-01"  # midnight, so that every day begins a pattern


def patterns() -> np.ndarray:
    """Return the patterns P_1, …, P_4 as rows: sin t, t, t² and √t for t = 1, …, 24."""
    t = np.arange(1, PATTERN_LENGTH + 1, dtype=np.float64)
    return np.stack([np.sin(t), t, t**2, np.sqrt(t)])


def synthetic_series(repetitions: int = 2000, seed: int = 0) -> np.ndarray:
    """Return the four series as rows, with noise N(0, 1)."""
    whole_number("repetitions", repetitions)
    rows = [np.tile(patterns()[list(order)].reshape(-1), repetitions) for order in ORDERS]
    noise = np.random.default_rng(seed).standard_normal((len(ORDERS), len(rows[0])))
    return np.stack(rows) + noise


def synthetic_dataset(repetitions: int = 2000, seed: int = 0) -> Any:
    """Return the four series as a GluonTS dataset."""
    return ListDataset(
        [
            {"item_id": f"TS{number}", "start": START, "target": series}
            for number, series in enumerate(synthetic_series(repetitions, seed), start=1)
        ],
        freq=FREQ,
    )


def synthetic_windows(repetitions: int = 2000, seed: int = 0) -> WindowIndex:
    """Return the paper's windows: 72 steps of context, 24 to predict, sliding by 24."""
    return WindowIndex.from_dataset(
        synthetic_dataset(repetitions, seed),
        FREQ,
        CONTEXT_LENGTH,
        PREDICTION_LENGTH,
        stride=PATTERN_LENGTH,
    )
