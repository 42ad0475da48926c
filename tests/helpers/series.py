"""Small datasets and their windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from gluonts.dataset.common import ListDataset
from gluonts.transform import InstanceSampler

from pts_scott import WindowIndex


def wave_entries(lengths: tuple[int, ...] = (40, 52, 46), seed: int = 0) -> list[dict]:
    """Return hourly series with different lengths, starts and levels."""
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
    """Return the windows of `wave_entries`: 6 hours of context, 2 to predict."""
    return WindowIndex.from_dataset(wave_entries(), "h", 6, 2, dtype=dtype, **kwargs)


def dataset(rows: np.ndarray, freq: str, start: str = "1990-01-01") -> ListDataset:
    """Return the rows as a GluonTS dataset, one series per row."""
    return ListDataset(
        [
            {"item_id": str(number), "start": start, "target": row}
            for number, row in enumerate(rows)
        ],
        freq=freq,
    )


class EveryWindow(InstanceSampler):
    """A GluonTS instance sampler that returns every forecast start of a series."""

    stride: int = 1

    def __call__(self, ts: np.ndarray) -> np.ndarray:
        first, last = self._get_bounds(ts)
        return np.arange(first, last + 1, self.stride)
