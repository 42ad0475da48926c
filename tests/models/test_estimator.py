"""What all estimators share: training, data types, errors of data and arguments."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from gluonts.model.predictor import Predictor
from helpers.paper_models import ESTIMATORS, make, seasonal
from helpers.series import dataset, wave_entries
from helpers.training import quiet_trainer

from pts_scott import NBEATSEstimator, SimpleFeedForwardEstimator, VAREstimator
from pts_scott.errors import (
    ArgumentError,
    DataError,
    EmptyDatasetError,
    FrequencyError,
    InfiniteValuesError,
    ScottWarning,
    ShortSeriesError,
    UnknownArgumentError,
)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_training_continues_from_a_predictor(cls):
    data = dataset(seasonal(), "h")
    predictor = make(cls, trainer=quiet_trainer()).train(data)
    frozen = quiet_trainer(learning_rate=1e-12, num_batches_per_epoch=1)
    again = make(cls, trainer=frozen).train_from(predictor, data)
    for x, y in zip(
        predictor.prediction_net.parameters(), again.prediction_net.parameters()
    ):
        torch.testing.assert_close(x, y)
    with pytest.raises(ArgumentError, match="do not fit"):
        make(cls).train_from(object(), data)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_one_seed_gives_one_model_for_any_global_random_state(cls):
    def trained():
        predictor = make(cls, trainer=quiet_trainer(seed=3)).train(
            dataset(seasonal(100), "h")
        )
        return [p.detach() for p in predictor.prediction_net.parameters()]

    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = trained()
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    assert all(torch.equal(x, y) for x, y in zip(first, trained()))


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_missing_values_are_masked(cls):
    rows = seasonal(120)
    rows[0, 30:50] = np.nan
    estimator = make(cls, trainer=quiet_trainer())
    predictor = estimator.train(dataset(rows, "h"))
    assert estimator.trainer.history["train_loss"].notna().all()
    (forecast, *_) = predictor.predict(dataset(rows, "h"))
    assert np.isfinite(forecast.mean).all()


def test_series_shorter_than_the_context_train_with_padding():
    data = [*dataset(seasonal(40), "h")]
    data[0] = {**data[0], "target": data[0]["target"][:8]}
    estimator = make(VAREstimator, trainer=quiet_trainer(), context="padded")
    predictor = estimator.train(data)
    assert len(list(predictor.predict(data))) == 3


@pytest.mark.parametrize("cls", ESTIMATORS)
@pytest.mark.parametrize("kind", [np.float64, np.int64, list])
def test_forecasts_accept_the_target_types_that_training_accepts(cls, kind):
    rows = np.round(10 * seasonal(60))
    data = [
        {**entry, "target": row.tolist() if kind is list else row.astype(kind)}
        for entry, row in zip(dataset(rows, "h"), rows)
    ]
    predictor = make(cls, trainer=quiet_trainer()).train(data)
    assert all(np.isfinite(f.mean).all() for f in predictor.predict(data))


def test_starts_may_be_timestamps_on_both_backends():
    entries = [{"start": pd.Timestamp("2020-01-01"), "target": seasonal(60)[0]}]
    make(VAREstimator, trainer=quiet_trainer()).train(entries)


def test_loader_arguments_of_the_libraries_are_accepted():
    predictor = make(VAREstimator, trainer=quiet_trainer()).train(
        dataset(seasonal(60), "h"), num_workers=0, prefetch_factor=None, cache_data=True
    )
    assert isinstance(predictor, Predictor)


def test_loader_arguments_without_effect_warn():
    estimator = VAREstimator(
        freq="h", prediction_length=2, context_length=6, trainer=quiet_trainer()
    )
    words = r"num_workers=4, prefetch_factor=2 have no effect"
    with pytest.warns(ScottWarning, match=words):
        estimator.train(wave_entries(), num_workers=4, prefetch_factor=2)
    estimator.train(
        wave_entries(), num_workers=0, prefetch_factor=None, shuffle_buffer_length=None
    )


# -- errors ---------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_unknown_argument_names_the_nearest(cls):
    with pytest.raises(UnknownArgumentError, match="'context_length'"):
        cls(freq="h", prediction_length=2, contxt_length=4)


def test_unknown_argument_of_train_names_the_nearest():
    with pytest.raises(UnknownArgumentError, match="num_worker.*'num_workers'"):
        make(VAREstimator).train(dataset(seasonal(60), "h"), num_worker=2)


def test_unknown_frequency_raises():
    with pytest.raises(FrequencyError, match="'hourly'"):
        VAREstimator(freq="hourly", prediction_length=2)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (np.zeros((0, 10)), EmptyDatasetError, "no series"),
        (np.zeros((2, 10)), ShortSeriesError, "'0', '1'"),
        (np.full((1, 30), np.inf), InfiniteValuesError, "'0' is infinite at 1990-01-01"),
    ],
)
def test_unusable_data_raise(rows, error, message):
    with pytest.raises(error, match=message):
        make(VAREstimator).train(dataset(rows, "h"))


@pytest.mark.parametrize("cls", [SimpleFeedForwardEstimator, NBEATSEstimator])
def test_multivariate_data_raise_for_univariate_models(cls):
    data = [{"start": "2020-01-01", "target": seasonal(60)}]
    with pytest.raises(DataError, match="one entry for each dimension"):
        make(cls).train(data)
