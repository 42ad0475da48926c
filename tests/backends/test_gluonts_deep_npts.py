"""DeepNPTS, which has its own training loop instead of Lightning's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gluonts.evaluation import Evaluator, make_evaluation_predictions
from helpers.instances import library_batch, splits_of

pytest.importorskip("gluonts.torch.scaler", reason="GluonTS 0.9 has no such estimators")

from gluonts.torch.model.deep_npts import DeepNPTSEstimator, DeepNPTSNetworkSmooth
from helpers.gluonts_models import MODELS, NPTS_WARNING, dataset_of, deep_npts

from pts_scott import with_scott
from pts_scott.backends.gluonts.deep_npts import DeepNPTSLosses, training_transformation
from pts_scott.data.pipeline import Pipeline
from pts_scott.engine.losses import Losses, evaluate
from pts_scott.errors import ArgumentError, ScottWarning


def test_unregistered_embeddings_are_frozen_with_a_warning():
    estimator = deep_npts("plain")
    with pytest.warns(ScottWarning, match="neither trained nor saved"):
        predictor = estimator.train(dataset_of(MODELS["DeepAR"]))
    (embedding,) = predictor.network.net.embedder.embedders
    assert not embedding.weight.requires_grad


@pytest.mark.filterwarnings(NPTS_WARNING)
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_training_lowers_the_loss_and_backtests(method):
    data = dataset_of(MODELS["DeepAR"])
    estimator = deep_npts(method)
    predictor = estimator.train(data)
    history = estimator.trainer.history["train_loss"]
    assert history.tail(2).mean() < history.head(2).mean()
    forecasts, truth = make_evaluation_predictions(data, predictor, num_samples=20)
    metrics, _ = Evaluator(num_workers=0)(list(truth), list(forecasts))
    assert np.isfinite(metrics["ND"])
    with pytest.raises(ArgumentError, match=r"ScottTrainer\(epochs=...\)"):
        with_scott(DeepNPTSEstimator)("h", 4, 12, epochs=3)


@pytest.mark.filterwarnings(NPTS_WARNING)
def test_validation_data_are_used():
    estimator, data = (
        deep_npts("scott", output="best", epochs=3),
        dataset_of(MODELS["DeepAR"]),
    )
    predictor = estimator.train(data, validation_data=data)
    losses = estimator.trainer.history["val_loss"].dropna()
    assert len(losses) == 3
    network = predictor.network.net
    last = Pipeline.read(training_transformation(estimator)).windows(data).last()
    found = evaluate(Losses(DeepNPTSLosses(network, estimator), last.fields), last)
    assert float(found) == pytest.approx(losses.min(), rel=1e-5)


def test_batches_equal_those_of_the_library_splitter():
    estimator, data = deep_npts("scott"), dataset_of(MODELS["DeepAR"], missing=True)
    chain = training_transformation(estimator)
    windows = Pipeline.read(chain).windows(data)
    numbers = torch.arange(0, len(windows), 11)
    splits = [splits_of(windows)[number] for number in numbers.tolist()]
    expected = library_batch(chain, list(data), splits)
    for key, values in windows.gather(numbers).items():
        torch.testing.assert_close(values, expected[key], rtol=0, atol=0, equal_nan=True)


@pytest.mark.filterwarnings(NPTS_WARNING)
def test_smooth_network_trains():
    estimator = deep_npts("scott", network_type=DeepNPTSNetworkSmooth)
    estimator.train(dataset_of(MODELS["DeepAR"]))
    history = estimator.trainer.history["train_loss"]
    assert history.tail(2).mean() < history.head(2).mean()
