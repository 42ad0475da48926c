"""Frames in, forecasts out."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.training import quiet_trainer

from pts_scott import SimpleFeedForwardEstimator, forecast_frame, load, with_scott
from pts_scott.backends import backend
from pts_scott.errors import DataError, ScottError
from pts_scott.models.forecasts import forecast_device

HOURS = pd.date_range("2024-01-01", periods=60, freq="h")


def waves(horizon: int = 0) -> pd.DataFrame:
    """Return two series in long form, with a price that is known ahead."""
    parts = []
    for number, name in enumerate("ab"):
        wave = 5 + number + np.sin(np.arange(60) / 4)
        part = pd.DataFrame({"unique_id": name, "ds": HOURS, "y": wave})
        part["price"] = np.cos(np.arange(60) / 4)
        part.loc[60 - horizon :, "y"] = np.nan
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def predictor():
    trainer = quiet_trainer(epochs=1, num_batches_per_epoch=5)
    estimator = SimpleFeedForwardEstimator(
        freq="h", prediction_length=4, context_length=8, trainer=trainer
    )
    return estimator.train(waves().drop(columns="price"))


def test_estimators_train_on_a_frame_as_on_its_dataset(predictor):
    frame = waves().drop(columns="price")
    found = forecast_frame(predictor, frame, seed=0)
    again = forecast_frame(predictor, load(frame).dataset(), seed=0)
    pd.testing.assert_frame_equal(found, again)


def test_forecasts_are_a_long_frame_with_quantiles(predictor):
    frame = waves().drop(columns="price")
    found = forecast_frame(predictor, frame, quantiles=[0.05, 0.5, 0.95], seed=0)
    assert list(found.columns) == ["item_id", "timestamp", "mean", "0.05", "0.5", "0.95"]
    assert found["item_id"].tolist() == ["a"] * 4 + ["b"] * 4
    ahead = pd.date_range(HOURS[-1], periods=5, freq="h")[1:]
    assert found["timestamp"].tolist() == [*ahead, *ahead]
    assert (found["0.05"] <= found["0.5"]).all()
    assert (found["0.5"] <= found["0.95"]).all()


def test_one_series_is_forecast_from_its_pandas_series(predictor):
    series = pd.Series(np.sin(np.arange(60) / 4), index=HOURS, name="sales")
    found = forecast_frame(predictor, series, seed=1)
    assert set(found["item_id"]) == {"sales"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantiles": [1.5]}, "quantiles"),
        ({"num_samples": 0}, "num_samples"),
        ({"seed": -1}, "seed"),
    ],
)
def test_mistakes_are_told(predictor, options, message):
    with pytest.raises(ScottError, match=message):
        forecast_frame(predictor, waves().drop(columns="price"), **options)


@pytest.mark.skipif(backend.NAME != "gluonts", reason="an estimator of GluonTS")
def test_known_features_are_trained_with_and_needed_for_a_forecast():
    from gluonts.torch import DeepAREstimator

    data = load(waves(horizon=4), known=["price"])
    estimator = with_scott(DeepAREstimator)(
        freq="h",
        prediction_length=4,
        context_length=8,
        lags_seq=[1, 2],
        hidden_size=4,
        **data.estimator_arguments(DeepAREstimator),
        trainer=quiet_trainer(epochs=1, num_batches_per_epoch=3),
    )
    predictor = estimator.train(data)
    found = forecast_frame(predictor, data, num_samples=5)
    assert len(found) == 8
    assert found["timestamp"].iloc[3] == HOURS[-1]
    with pytest.raises(DataError, match=r"series 'a' \('price'\) reach 0 steps"):
        forecast_frame(predictor, load(waves(), known=["price"]), num_samples=5)


@pytest.mark.parametrize(
    ("device", "expected"),
    [(None, "cpu"), ("cpu", "cpu"), ("cuda", "cuda"), (torch.device("mps"), "mps")],
)
def test_samples_are_seeded_on_the_device_of_the_predictor(device, expected):
    predictor = SimpleNamespace(device=device)
    assert forecast_device(predictor) == torch.device(expected)
