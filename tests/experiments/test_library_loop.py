"""GluonTS' own loop: it is what GluonTS does, measured at equal shares of the time."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from pts_scott import load, with_scott
from pts_scott._utils.rng import isolated_rng
from pts_scott.backends import backend
from pts_scott.engine.losses import Losses, evaluate
from pts_scott.experiments.library_loop import LibraryCurve, train_with_library

if backend.NAME != "gluonts":
    pytest.skip("GluonTS 0.9 has no such estimators", allow_module_level=True)

from gluonts.torch.model.simple_feedforward import SimpleFeedForwardEstimator

from pts_scott.backends.gluonts.losses import GluonTSLosses

LENGTHS = {"context_length": 24, "prediction_length": 6}


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    entries = [
        {"item_id": str(k), "start": "2024-01-01", "target": 5 + rng.random(200)}
        for k in range(3)
    ]
    return load(entries, freq="h")


@pytest.mark.parametrize("cache_data", [False, True])
def test_loss_is_measured_until_the_time_is_used_up(data, cache_data):
    windows = with_scott(SimpleFeedForwardEstimator)(**LENGTHS).create_windows(data)
    curve = LibraryCurve({"loss": (windows, torch.arange(len(windows)))}, 6, seconds=0.6)
    estimator = SimpleFeedForwardEstimator(**LENGTHS, trainer_kwargs={"max_epochs": -1})
    points = train_with_library(estimator, data.dataset(), curve, cache_data=cache_data)
    assert len(points) == 7
    assert points["step"].iloc[0] == 0
    assert points["step"].is_monotonic_increasing
    shares = points["seconds"].to_numpy() / 0.1
    assert (shares >= np.arange(7) - 1e-9).all()
    assert shares[-1] < 12, "it ends, although epochs have no limit"
    assert points["loss"].iloc[-1] < points["loss"].iloc[0]


def test_loss_is_the_mean_over_the_windows(data):
    estimator = SimpleFeedForwardEstimator(
        **LENGTHS, num_batches_per_epoch=10, trainer_kwargs={"max_epochs": 100}
    )
    windows = with_scott(SimpleFeedForwardEstimator)(**LENGTHS).create_windows(data)
    few = torch.tensor([0, 7, 30])
    with isolated_rng(3, torch.device("cpu")):
        points = train_with_library(
            estimator, data.dataset(), LibraryCurve({"few": (windows, few)}, 3, steps=30)
        )
    assert list(points["step"]) == [0, 10, 20, 30], "it ends before its epochs do"
    with isolated_rng(3, torch.device("cpu")):
        module = estimator.create_lightning_module()
    losses = Losses(GluonTSLosses(module.model, windows.fields), windows.fields)
    expected = float(evaluate(losses, windows, few))
    assert points["few"].iloc[0] == pytest.approx(expected, rel=1e-6)


def test_copies_write_into_the_same_curve(data):
    windows = with_scott(SimpleFeedForwardEstimator)(**LENGTHS).create_windows(data)
    curve = LibraryCurve({"loss": (windows, torch.arange(3))}, 2)
    assert copy.deepcopy([curve])[0] is curve
