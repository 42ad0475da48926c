"""Windows of GluonTS' data loaders: equal to those of the library, value by value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gluonts.dataset.common import ListDataset
from helpers.instances import library_batch, splits_of
from helpers.training import quiet_trainer

pytest.importorskip("gluonts.torch.scaler", reason="GluonTS 0.9 has no such estimators")

from gluonts.itertools import Filter, Map
from gluonts.torch.model.deepar import DeepAREstimator
from gluonts.torch.model.simple_feedforward import SimpleFeedForwardEstimator
from gluonts.transform import Chain, FilterTransformation
from helpers.gluonts_models import (
    LENGTHS,
    MODELS,
    WITH_FEATURES,
    dataset_of,
    estimator_of,
    windows_of,
)

from pts_scott import Stratifier, with_scott
from pts_scott.errors import EmptyDatasetError, MixedFrequencyError, ScottWarning


def assert_batches_equal_library(estimator: Any, data: ListDataset) -> None:
    module = estimator.create_lightning_module()
    loader = estimator.create_training_data_loader([], module)
    parts: list[Any] = []
    chain = loader.iterable
    while hasattr(chain, "transformation"):
        parts.insert(0, chain.transformation)
        chain = chain.base_dataset
    flat = []
    for part in parts:
        flat += part.transformations if isinstance(part, Chain) else [part]
    flat = flat[: 1 + [type(p).__name__ for p in flat].index("SelectFields")]
    windows = windows_of(estimator, module, data)
    transformed = list(estimator.create_transformation().apply(data, is_train=True))
    generator = torch.Generator().manual_seed(0)
    numbers = torch.cat(
        [torch.tensor([0, len(windows) - 1]), windows.draw(40, generator)]
    )
    splits = [splits_of(windows)[number] for number in numbers.tolist()]
    found, expected = (
        windows.gather(numbers),
        library_batch(Chain(flat), transformed, splits),
    )
    assert set(found) == set(expected)
    for key, values in expected.items():
        # WaveNet's scale is a sum whose order may differ.
        tolerance = 1e-6 if key == "scale" else 0
        assert found[key].dtype == values.dtype, key
        torch.testing.assert_close(
            found[key], values, rtol=tolerance, atol=0, msg=lambda m, k=key: k + m
        )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("missing", [False, True])
def test_batches_equal_those_of_the_library_splitter(name, missing):
    data = dataset_of(MODELS[name], missing)
    assert_batches_equal_library(estimator_of(name), data)


@pytest.mark.parametrize("name", WITH_FEATURES)
def test_batches_with_features_of_every_kind_equal_the_library(name):
    data = dataset_of(MODELS[name], short=7)
    assert_batches_equal_library(estimator_of(name, features=True), data)


class ScaledTargets(SimpleFeedForwardEstimator):
    """A custom estimator that changes the data in its loader."""

    def create_training_data_loader(self, data, module, **kwargs):
        larger = Map(lambda e: {**e, "target": 1000 * e["target"]}, data)
        return super().create_training_data_loader(larger, module, **kwargs)


class SingleSeries(SimpleFeedForwardEstimator):
    def create_training_data_loader(self, data, module, **kwargs):
        one = list(Filter(lambda entry: entry["item_id"] == "s1", data))
        return super().create_training_data_loader(one, module, **kwargs)


class CountedEntries(SimpleFeedForwardEstimator):
    def create_training_data_loader(self, data, module, **kwargs):
        assert len(list(data)) == len(list(data)) == 4  # reads them before training
        return super().create_training_data_loader(data, module, **kwargs)


class FilteredSeries(SimpleFeedForwardEstimator):
    def create_transformation(self):
        odd = FilterTransformation(lambda entry: entry["item_id"] in ("s1", "s3"))
        return odd + super().create_transformation()


@pytest.mark.parametrize(
    ("own", "series", "level"),
    [
        (ScaledTargets, 4, 1000),
        (SingleSeries, 1, 1),
        (CountedEntries, 4, 1),
        (FilteredSeries, 2, 1),
    ],
)
def test_data_changes_of_a_custom_estimator_are_applied(own, series, level):
    estimator = with_scott(own)(**LENGTHS, trainer=quiet_trainer())
    module = estimator.create_lightning_module()
    windows = windows_of(estimator, module, dataset_of(MODELS["SimpleFeedForward"]))
    assert len(windows.series.item_ids) == series
    assert float(windows.series.values.max()) > 5 * level
    estimator.train(dataset_of(MODELS["SimpleFeedForward"]))


@pytest.mark.parametrize("name", ["SimpleFeedForward", "DLinear", "PatchTST", "DeepAR"])
@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_targets_of_any_number_type_train(name, kind):
    target = (np.arange(160) % 7).astype(kind)
    entries = [{"start": pd.Period("2024-01-01", freq="h"), "target": target}]
    estimator = estimator_of(name, num_batches_per_epoch=2, method="plain")
    estimator.train(entries)
    assert np.isfinite(estimator.trainer.history["train_loss"]).all()


def test_weekly_data_may_end_on_any_weekday():
    arguments = {**LENGTHS, "lags_seq": [1, 2], "hidden_size": 4}
    target = np.arange(120.0) % 7
    entries = [{"start": pd.Period("2020-01-01", freq="W-MON"), "target": target}]
    trainer = quiet_trainer(method="plain", num_batches_per_epoch=2)
    with_scott(DeepAREstimator)(freq="W", **arguments, trainer=trainer).train(entries)
    with pytest.raises(MixedFrequencyError, match="W-MON"):
        with_scott(DeepAREstimator)(freq="W-TUE", **arguments).train(entries)


def test_kmeans_clusters_binned_windows_by_their_target_values():
    estimator = estimator_of(
        "WaveNet", stratifier=Stratifier.kmeans(3), num_batches_per_epoch=2
    )
    estimator.train(dataset_of(MODELS["WaveNet"]))
    assert len(estimator.trainer.strata) == 3


def test_validation_data_without_a_window_raise():
    data = dataset_of(MODELS["DeepAR"])
    short = [{**entry, "target": entry["target"][:3]} for entry in data]
    with (
        pytest.warns(ScottWarning, match="are left out"),
        pytest.raises(EmptyDatasetError, match="^validation data: no series"),
    ):
        estimator_of("DeepAR").train(data, validation_data=short)
