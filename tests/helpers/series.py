"""Small data for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from gluonts.dataset.common import ListDataset
from gluonts.transform import InstanceSampler

from pts_scott import WindowIndex


def wave_entries(lengths: tuple[int, ...] = (40, 52, 46), seed: int = 0) -> list[dict]:
    """Hourly series of unequal length and start, with different levels."""
    generator = np.random.default_rng(seed)
    return [
        {
            "item_id": f"s{number}",
            "start": pd.Timestamp("2021-03-01") + pd.Timedelta(5 * number, "h"),
            "target": np.sin(np.arange(length) / (2 + number))
            + number
            + 0.3 * generator.standard_normal(length),
        }
        for number, length in enumerate(lengths)
    ]


def wave_windows(dtype: torch.dtype = torch.float64, **kwargs: Any) -> WindowIndex:
    return WindowIndex.from_dataset(wave_entries(), "h", 6, 2, dtype=dtype, **kwargs)


def dataset(rows: np.ndarray, freq: str, start: str = "1990-01-01") -> ListDataset:
    return ListDataset(
        [
            {"item_id": str(number), "start": start, "target": row}
            for number, row in enumerate(rows)
        ],
        freq=freq,
    )


class EveryWindow(InstanceSampler):
    """All forecast starts of a series, as GluonTS' samplers give them."""

    stride: int = 1

    def __call__(self, ts: np.ndarray) -> np.ndarray:
        first, last = self._get_bounds(ts)
        return np.arange(first, last + 1, self.stride)
