"""ScottTrainer in place of PyTorchTS' own trainer, and the windows of its loaders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gluonts.dataset.common import ListDataset
from helpers.instances import library_batch, splits_of
from helpers.series import dataset
from helpers.training import quiet_trainer

pytest.importorskip("pts", reason="PyTorchTS is not installed")

import pts
from helpers.pytorchts_models import (
    LENGTHS,
    MODELS,
    WITH_FEATURES,
    chain_of,
    dataset_of,
    estimator_of,
    network_of,
)
from pts.model.simple_feedforward import SimpleFeedForwardEstimator

from pts_scott.data.pipeline import Pipeline
from pts_scott.errors import MissingValuesError


def assert_batches_equal_library(estimator: Any, data: ListDataset) -> None:
    chain = chain_of(estimator, network_of(estimator))
    windows = Pipeline.read(chain).windows(data)
    generator = torch.Generator().manual_seed(0)
    ends = torch.tensor([0, len(windows) - 1])
    numbers = torch.cat([ends, windows.draw(30, generator)])
    splits = [splits_of(windows)[number] for number in numbers.tolist()]
    found, expected = windows.gather(numbers), library_batch(chain, list(data), splits)
    assert set(found) == set(expected)
    for key, values in expected.items():
        assert found[key].dtype == values.dtype, key
        same = torch.equal(found[key], values) or torch.equal(
            found[key].nan_to_num(), values.nan_to_num()
        )
        assert same, key


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_batches_equal_those_of_the_library_splitter(name, missing):
    assert_batches_equal_library(estimator_of(name), dataset_of(MODELS[name], missing))


@pytest.mark.parametrize("name", WITH_FEATURES)
def test_batches_with_features_of_every_kind_equal_the_library_and_train(name):
    estimator, data = estimator_of(name, features=True), dataset_of(MODELS[name])
    assert_batches_equal_library(estimator, data)
    estimator.train_model(data)
    history = estimator.trainer.history["train_loss"]
    assert history.tail(2).mean() < history.head(2).mean()


def test_trainer_is_a_pytorchts_trainer():
    assert isinstance(quiet_trainer(), pts.Trainer)


@pytest.mark.parametrize("name", ["SimpleFeedForward", "N-BEATS", "DeepAR", "TimeGrad"])
def test_unchanged_library_estimators_accept_the_trainer(name):
    model = MODELS[name]
    trainer = quiet_trainer(optimizer="adam", batch_size=8)
    data = dataset_of(model)
    predictor = model.estimator(**model.arguments, trainer=trainer).train(
        data, validation_data=data, prefetch_factor=None
    )
    assert trainer.history["val_loss"].notna().sum() == 1
    forecast = next(iter(predictor.predict(data, num_samples=10)))
    assert np.isfinite(forecast.mean).all()


class ScaledDataset:
    """A third-party dataset that wraps another one."""

    def __init__(self, iterable):
        self.iterable = iterable

    def __iter__(self):
        for entry in self.iterable:
            yield {**entry, "target": 1000 * entry["target"]}

    def __len__(self):
        return len(self.iterable)


def test_dataset_that_wraps_another_is_read_through_its_own_iterator():
    trainer = quiet_trainer(optimizer="adam", batch_size=8, num_batches_per_epoch=2)
    model = MODELS["N-BEATS"]
    arguments = {**model.arguments, "loss_function": "MAPE"}
    found = []
    fit = trainer.fit
    trainer.fit = lambda net, windows, *rest: (
        found.append(windows),
        fit(net, windows, *rest),
    )
    data = ScaledDataset(list(dataset_of(model)))
    model.estimator(**arguments, trainer=trainer).train(data, prefetch_factor=None)
    assert float(found[0].series.values.mean()) > 1000


def rows(length: int = 120) -> np.ndarray:
    t = np.arange(length)
    return 10 + np.stack([np.sin(t / 3), np.cos(t / 5)])


def test_missing_values_raise_if_the_model_has_no_mask():
    gaps = rows()
    gaps[1, 50] = np.nan
    estimator = SimpleFeedForwardEstimator(**LENGTHS, trainer=quiet_trainer())
    with pytest.raises(MissingValuesError, match="'1' has no value at 1990-01-03 02:00"):
        estimator.train(dataset(gaps, "H"), prefetch_factor=None)
