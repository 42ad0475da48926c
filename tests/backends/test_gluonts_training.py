"""Training of GluonTS' own estimators: one contract for every model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gluonts.dataset.common import ListDataset
from gluonts.evaluation import (
    Evaluator,
    MultivariateEvaluator,
    make_evaluation_predictions,
)
from helpers.library_contract import (
    assert_forecasts_equal_in_fresh_process,
    assert_same_parameters,
    documented,
)

pytest.importorskip("gluonts.torch.scaler", reason="GluonTS 0.9 has no such estimators")

from helpers.gluonts_models import (
    CONTRACT,
    MODELS,
    NPTS_WARNING,
    dataset_of,
    deep_npts,
    estimator_of,
    windows_of,
)

from pts_scott._utils.rng import isolated_rng
from pts_scott.backends.gluonts.loader_windows import SinglePassDataset, loader_windows
from pts_scott.backends.gluonts.losses import GluonTSLosses
from pts_scott.engine.losses import Losses, evaluate
from pts_scott.errors import ArgumentError, WindowLossError


def mean_loss(estimator: Any, module: Any, data: ListDataset) -> float:
    windows = windows_of(estimator, module, data)
    losses = Losses(GluonTSLosses(module.model, windows.fields), windows.fields)
    return float(evaluate(losses, windows))


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """Return a predictor of every model after a few steps, with its features."""
    predictors = {}
    for name, model in MODELS.items():
        estimator = estimator_of(name, features=True, num_batches_per_epoch=6)
        predictors[name] = estimator.train(dataset_of(model))
    return predictors


@pytest.mark.parametrize("method", ["scott", "plain"])
@pytest.mark.parametrize("name", MODELS)
def test_training_lowers_the_loss(name, method):
    estimator, data = estimator_of(name, method=method), dataset_of(MODELS[name])
    with isolated_rng(estimator.trainer.seed, torch.device("cpu")):
        untrained = estimator.create_lightning_module().eval()
    output = estimator.train_model(data)
    after = mean_loss(estimator, output.trained_net, data)
    before = mean_loss(estimator, untrained, data)
    assert after < before - 0.1 * abs(before)
    history = estimator.trainer.history
    assert history["step"].iloc[-1] == 60
    assert (history["anchors"].iloc[-1] > 0) == (method == "scott")
    assert output.trainer.global_step == 60


@pytest.mark.parametrize("name", MODELS)
def test_predictor_forecasts_and_backtests(name, trained):
    data = dataset_of(MODELS[name])
    forecasts, truth = make_evaluation_predictions(data, trained[name], num_samples=20)
    forecasts, truth = list(forecasts), list(truth)
    assert all(np.isfinite(f.quantile(0.5)).all() for f in forecasts)
    evaluator = MultivariateEvaluator if MODELS[name].multivariate else Evaluator
    metrics, _ = evaluator(num_workers=0)(truth, forecasts)
    assert np.isfinite(metrics["ND"])


@pytest.mark.filterwarnings(NPTS_WARNING)
def test_predictors_forecast_the_same_in_a_fresh_process(trained, tmp_path):
    data = {  # features cover the prediction range
        name: [
            {**entry, "target": entry["target"][..., :-4]} for entry in dataset_of(model)
        ]
        for name, model in MODELS.items()
    }
    data["DeepNPTS"] = data["DeepAR"]
    predictors = {**trained, "DeepNPTS": deep_npts("scott").train(data["DeepAR"])}
    assert_forecasts_equal_in_fresh_process(predictors, data, tmp_path)


def test_training_continues_from_a_predictor():
    name = "DeepAR"
    data = dataset_of(MODELS[name])
    first = estimator_of(name)
    predictor = first.train(data)
    nothing = estimator_of(name, learning_rate=1e-12, num_batches_per_epoch=1)
    again = nothing.train_from(predictor, data)
    expected = predictor.network.state_dict().values()
    for one, other in zip(expected, again.network.state_dict().values()):
        torch.testing.assert_close(one, other)
    with pytest.raises(ArgumentError, match="train_from"):
        nothing.train(data, ckpt_path="last.ckpt")


def test_one_seed_gives_one_model():
    data = dataset_of(MODELS["TFT"])
    one, other = (estimator_of("TFT").train_model(data).trained_net for _ in range(2))
    assert_same_parameters(one, other)


@pytest.mark.parametrize("where", ["training", "validation"])
def test_category_out_of_range_names_its_series(where):
    data = list(dataset_of(MODELS["DeepAR"]))
    bad = [dict(entry) for entry in data]
    bad[1]["feat_static_cat"] = np.array([4])  # of four categories, 0 to 3
    estimator = estimator_of("DeepAR", features=True, num_batches_per_epoch=6)
    pair = (bad, None) if where == "training" else (data, bad)
    with pytest.raises(WindowLossError, match=r"fails on.*'s1 from 2024.*cardinality"):
        estimator.train(*pair)


def test_best_output_returns_the_parameters_with_the_lowest_val_loss():
    data = dataset_of(MODELS["DeepAR"])
    estimator = estimator_of("DeepAR", output="best", epochs=3, num_batches_per_epoch=20)
    output = estimator.train_model(data, validation_data=data)
    history = estimator.trainer.history["val_loss"].dropna()
    entries = SinglePassDataset(data, output.transformation)
    loader = estimator.create_validation_data_loader(entries, output.trained_net)
    last = loader_windows(loader, entries)
    losses = GluonTSLosses(output.trained_net.model, last.fields)
    found = float(evaluate(Losses(losses, last.fields), last))
    assert found == pytest.approx(history.min(), rel=1e-5)


def test_documented_table_equals_the_tested_contract():
    assert documented("GluonTS") == CONTRACT
