"""Shared fixtures: small data, and the real Exchange-Rate data where available."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.series import wave_windows

from pts_scott import WindowIndex

torch.set_num_threads(1)


@pytest.fixture
def windows() -> WindowIndex:
    """Windows of three short hourly series, in float64."""
    return wave_windows()


@pytest.fixture
def traced(monkeypatch):
    """Trace steps as for compilation, but run them without the C++ compiler."""
    monkeypatch.setattr(
        "pts_scott.engine.compilation.compile_graph", lambda graph, _: graph
    )
    monkeypatch.setattr("pts_scott.training.compile_policy.has_compiler", lambda: True)


@pytest.fixture(scope="session")
def exchange_rate() -> np.ndarray:
    """The Exchange-Rate data, one series per row."""
    folder = os.environ.get("PTS_SCOTT_DATA")
    path = Path(folder or "") / "exchange_rate.txt.gz"
    if not folder or not path.exists():
        pytest.skip("PTS_SCOTT_DATA does not name a folder with exchange_rate.txt.gz")
    return np.loadtxt(path, delimiter=",").T


@pytest.fixture
def small_config(tmp_path: Path) -> Path:
    """The config of an experiment that takes a second: VAR on 3 series of 300 hours."""
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
