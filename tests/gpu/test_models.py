"""Estimators, predictors, diagnosis, experiments and the benchmark on the accelerator."""

from __future__ import annotations

import csv
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.accelerator import CPU, gpu_tests
from helpers.series import dataset
from helpers.training import quiet_trainer

from pts_scott import (
    LSTMEstimator,
    NBEATSEstimator,
    SimpleFeedForwardEstimator,
    VAREstimator,
    diagnose,
    forecast_frame,
    load_predictor,
)
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.run import perform
from pts_scott.experiments.setting import Setting

pytestmark = gpu_tests

LENGTHS = {"freq": "h", "context_length": 12, "prediction_length": 4}
SMALL_NBEATS = {"num_stacks": 2, "num_block_layers": 2, "widths": 16}
ESTIMATORS = {
    "feedforward": (SimpleFeedForwardEstimator, {}),
    "lstm": (LSTMEstimator, {"hidden_size": 8}),
    "nbeats": (NBEATSEstimator, SMALL_NBEATS),
    "var": (VAREstimator, {}),
}


def make_estimator(name: str, device: torch.device, **settings):
    kind, arguments = ESTIMATORS[name]
    settings = {"batch_size": 8, "learning_rate": 0.01, **settings}
    trainer = quiet_trainer(device=str(device), **settings)
    return kind(**LENGTHS, **arguments, trainer=trainer)


def waves():
    hours = np.arange(200)
    noise = np.random.default_rng(0).standard_normal((4, 200))
    rows = 5 + np.sin(hours / 4 + np.arange(4)[:, None]) + 0.1 * noise
    return dataset(rows.astype(np.float32), "h")


@pytest.mark.parametrize("method", ["scott", "auto"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_models_train_and_forecast_as_on_the_cpu(device, name, method, tmp_path):
    """In single precision: 20 steps and forecasts agree to one percent."""
    frames, losses = [], []
    for place in (device, CPU):
        estimator = make_estimator(name, place, method=method, optimizer="adam")
        predictor = estimator.train(waves())
        folder = tmp_path / place.type
        folder.mkdir(exist_ok=True)
        predictor.serialize(folder)
        loaded = load_predictor(folder, device="cpu")
        frames.append(forecast_frame(loaded, waves(), num_samples=20, seed=1))
        own = forecast_frame(predictor, waves(), num_samples=20, seed=1)
        assert np.isfinite(own["mean"]).all()
        losses.append(estimator.trainer.history["train_loss"].to_numpy())
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-2)
    scale = float(frames[1]["mean"].abs().mean())
    np.testing.assert_allclose(frames[0]["mean"], frames[1]["mean"], atol=1e-2 * scale)


@pytest.mark.parametrize("name", ["feedforward", "lstm"])
def test_diagnosis_measures_gradients_of_single_windows(device, name):
    estimator = make_estimator(name, device)
    found = diagnose(estimator, waves(), steps=20, windows=64)
    expected = diagnose(make_estimator(name, CPU), waves(), steps=20, windows=64)
    one, other = (x.points[0].findings for x in (found, expected))
    assert [f.label for f in one] == [f.label for f in other]
    for left, right in zip(one, other, strict=True):
        ours, theirs = left.proportional.value, right.proportional.value
        assert math.isclose(ours, theirs, rel_tol=0.05)


@pytest.mark.parametrize("optimizer", ["SGD", "S-Adam"])
def test_experiment_gives_the_losses_of_the_cpu(device, optimizer, small_config):
    records = []
    for place in (device, CPU):
        setting = Setting(load_experiment(small_config, ["--device", place.type]))
        records.append(perform(setting, optimizer, seed=0).record)
        assert records[-1]["status"] == "finished"
    for name in ("train_loss", "test_loss", "MASE"):
        assert math.isclose(records[0][name], records[1][name], rel_tol=0.02), name


def test_step_benchmark_runs_on_the_device(device, tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "steps.py"
    options = ["--device", device.type, "--models", "VAR", "--batch-sizes", "8"]
    options += ["--rounds", "1", "--no-runs", "--compile-sizes", "--output"]
    done = subprocess.run(
        [sys.executable, str(script), *options, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert not done.returncode, done.stderr
    (path,) = tmp_path.glob("engine-*.csv")
    with path.open() as file:
        rows = {row["side"]: float(row["ms"]) for row in csv.DictReader(file)}
    assert {"bare limit", "plain step", "SCott inner step"} <= rows.keys()
    # A clock that does not wait for the device would show a step of nothing.
    assert all(ms > 0.01 for ms in rows.values()), rows
