"""Training of PyTorchTS' own estimators: one contract for every model."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
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
from helpers.training import quiet_trainer

pytest.importorskip("pts", reason="PyTorchTS is not installed")

from helpers.pytorchts_models import (
    CONTRACT,
    CPU,
    MODELS,
    chain_of,
    dataset_of,
    estimator_of,
    network_of,
)
from pts.model.n_beats import NBEATSEnsembleEstimator
from pts.modules import ImplicitQuantileOutput

from pts_scott import Stratifier, with_scott
from pts_scott._utils.rng import isolated_rng
from pts_scott.backends.pytorchts.losses import PyTorchTSLosses
from pts_scott.data.pipeline import Pipeline
from pts_scott.engine.losses import Losses, evaluate


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """Return a predictor of every model after a few steps."""
    return {
        name: estimator_of(name, num_batches_per_epoch=6).train(dataset_of(MODELS[name]))
        for name in MODELS
    }


@pytest.mark.parametrize("method", ["scott", "plain"])
@pytest.mark.parametrize("name", MODELS)
def test_training_lowers_the_loss(name, method):
    model = MODELS[name]
    estimator, data = estimator_of(name, method=method), dataset_of(model)
    output = estimator.train_model(data)
    net = output.trained_net
    windows = Pipeline.read(chain_of(estimator, net)).windows(data)
    untrained = PyTorchTSLosses(network_of(estimator, estimator.trainer.seed))
    untrained.fit_statistics(windows.gather(torch.arange(len(windows))))
    losses = []
    for network in (untrained, PyTorchTSLosses(net)):
        with isolated_rng(0, CPU):
            losses.append(float(evaluate(Losses(network, windows.fields), windows)))
    before, after = losses
    assert after < before - model.fall * abs(before)
    history = estimator.trainer.history
    assert history["step"].iloc[-1] == model.steps
    assert (history["anchors"].iloc[-1] > 0) == (method == "scott")


@pytest.mark.parametrize("name", MODELS)
def test_predictor_forecasts_and_backtests(name, trained):
    model = MODELS[name]
    forecasts, truth = make_evaluation_predictions(
        dataset_of(model), trained[name], num_samples=20
    )
    forecasts, truth = list(forecasts), list(truth)
    assert all(np.isfinite(f.quantile(0.5)).all() for f in forecasts)
    evaluator = MultivariateEvaluator if model.multivariate else Evaluator
    metrics, _ = evaluator(num_workers=0)(truth, forecasts)
    assert np.isfinite(metrics["ND"])


def test_predictors_forecast_the_same_in_a_fresh_process(trained, tmp_path):
    data = {  # controls cover the prediction range
        name: [
            {**entry, "target": entry["target"][..., :-4]} for entry in dataset_of(model)
        ]
        for name, model in MODELS.items()
    }
    assert_forecasts_equal_in_fresh_process(trained, data, tmp_path)


@pytest.mark.parametrize("output", ["sampled", "best"])
def test_buffers_that_change_their_shape_are_saved_and_resumed(output, tmp_path):
    """Implicit quantile networks keep the levels of the last batch as buffers."""
    model = MODELS["DeepAR"]
    data = dataset_of(model)

    def trained(folder: Any, epochs: int) -> Any:
        # The library keeps one network per process; this makes it create another.
        ImplicitQuantileOutput.in_features = 1
        estimator = with_scott(model.estimator)(
            **model.arguments,
            distr_output=ImplicitQuantileOutput(output_domain="Real"),
            trainer=quiet_trainer(
                batch_size=8,
                num_batches_per_epoch=4,
                inner_steps=4,
                method="plain",
                epochs=epochs,
                output=output,
                checkpoint=folder,
                resume=folder is not None,
            ),
        )
        return estimator.train(data, validation_data=data)

    trained(tmp_path, 1)
    found = trained(tmp_path, 3)
    found = [p.detach().clone() for p in found.prediction_net.parameters()]
    expected = trained(None, 3).prediction_net.parameters()
    for x, y in zip(found, expected):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_random_marginal_transformation_trains():
    model = MODELS["DeepVAR"]
    estimator = with_scott(model.estimator)(
        **model.arguments,
        use_marginal_transformation=True,
        trainer=quiet_trainer(batch_size=8, num_batches_per_epoch=4),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library divides by zero there
        estimator.train(dataset_of(model))
    assert np.isfinite(estimator.trainer.history["train_loss"]).all()


@pytest.mark.parametrize("name", ["LSTNet", "DeepVAR"])
def test_kmeans_clusters_multivariate_windows(name):
    estimator = estimator_of(
        name, stratifier=Stratifier.kmeans(3), num_batches_per_epoch=2
    )
    estimator.train(dataset_of(MODELS[name]))
    assert len(estimator.trainer.strata) == 3


def test_one_seed_gives_one_model():
    data = dataset_of(MODELS["DeepAR"])
    one, other = (estimator_of("DeepAR").train_model(data).trained_net for _ in range(2))
    assert_same_parameters(one, other)


def test_library_ensemble_cannot_be_created():
    """It is not in the table because 0.6.0 does not pass the trainer on."""
    with pytest.raises(ValueError, match=r"trainer\s+field required"):
        NBEATSEnsembleEstimator(freq="H", prediction_length=4)


def test_documented_table_equals_the_tested_contract():
    assert documented("PyTorchTS") == CONTRACT
