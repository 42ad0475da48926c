"""What the tests share: small data, small networks, a quiet trainer."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gluonts.dataset.common import ListDataset
from torch import Tensor, nn

from pts_scott import ScottTrainer, WindowIndex

torch.set_num_threads(1)

QUIET: dict[str, Any] = {"enable_progress_bar": False}


def quiet_trainer(**kwargs: Any) -> ScottTrainer:
    """A trainer for tests: few steps, a seed, no progress bar, nothing compiled."""
    settings: dict[str, Any] = {
        "epochs": 1,
        "num_batches_per_epoch": 20,
        "anchor_batch_size": 16,  # the few strata of small data, well above a mini-batch
        "compile": False,
        "seed": 1,
        "trainer_kwargs": QUIET,
    }
    settings = {**settings, **kwargs}
    if inspect.isfunction(settings.get("optimizer")):  # which sets its own numbers
        for name in ("learning_rate", "weight_decay"):
            settings.pop(name, None)
    return ScottTrainer(**settings)


class TinyNetwork(nn.Module):
    """A small nonlinear network with one loss a window."""

    def __init__(self, context_length: int = 6, prediction_length: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(context_length, 5), nn.Tanh(), nn.Linear(5, prediction_length)
        )

    def loss(self, past_target: Tensor, future_target: Tensor) -> Tensor:
        return (self.layers(past_target) - future_target).square().mean(dim=1)


def tiny_network(dtype: torch.dtype = torch.float64) -> TinyNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TinyNetwork().to(dtype)


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


@pytest.fixture
def windows() -> WindowIndex:
    return wave_windows()


@pytest.fixture(scope="session")
def exchange_rate() -> np.ndarray:
    """The real Exchange-Rate series as rows."""
    folder = os.environ.get("PTS_SCOTT_DATA")
    path = Path(folder or "") / "exchange_rate.txt.gz"
    if not folder or not path.exists():
        pytest.skip("PTS_SCOTT_DATA does not name a folder with exchange_rate.txt.gz")
    return np.loadtxt(path, delimiter=",").T


def dataset(rows: np.ndarray, freq: str, start: str = "1990-01-01") -> ListDataset:
    return ListDataset(
        [
            {"item_id": str(number), "start": start, "target": row}
            for number, row in enumerate(rows)
        ],
        freq=freq,
    )


@pytest.fixture
def small_config(tmp_path: Path) -> Path:
    """The config of an experiment that takes a second: 3 series of 300 hours, VAR."""
    t, noise = np.arange(300), np.random.default_rng(0).standard_normal((300, 3))
    values = 5 + np.sin(2 * np.pi * t[:, None] / 24 + np.arange(3)) + 0.1 * noise
    np.savetxt(tmp_path / "waves.txt", values, delimiter=",", fmt="%.6f")
    path = tmp_path / "small.yaml"
    path.write_text(
        f"""
name: small
data:
  name: {tmp_path / "waves.txt"}
  start: "2024-01-01"
  freq: h
  context_length: 12
  prediction_length: 4
  stratifier: calendar("hour")
model: {{name: var}}
optimizers:
  SGD: {{method: plain, optimizer: sgd, learning_rate: 1e-2}}
  S-Adam: {{method: scott, optimizer: adam, learning_rate: 1e-2, gamma: 0.1}}
batch_size: 4
time_budget: null
gradient_budget: 2000
seeds: [0, 1]
evaluations: 4
backtest_samples: 20
compile: false
tune: {{learning_rate: [1e-1, 1e-2, 1e-3], gamma: [0.1, 0.2], search: coordinate}}
variance: {{points: 2, sample: 64, per_stratum: 2}}
"""
    )
    return path
