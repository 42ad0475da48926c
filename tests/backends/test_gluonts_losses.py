"""GluonTS' models with one loss per window: equal to the library's, and independent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.instances import in_double_precision, splits_of
from helpers.reference import assert_equals_reference
from helpers.training import quiet_trainer

pytest.importorskip("gluonts.torch.scaler", reason="GluonTS 0.9 has no such estimators")

from gluonts.torch.model.mqf2 import MQF2MultiHorizonEstimator
from gluonts.torch.model.mqf2._cpflows import ActNorm
from helpers.gluonts_models import (
    MODELS,
    UNIVARIATE,
    dataset_of,
    estimator_of,
    windows_of,
)

from pts_scott import load_predictor, with_scott
from pts_scott._utils.rng import isolated_rng
from pts_scott.backends.gluonts.losses import GluonTSLosses
from pts_scott.engine.losses import Losses


@pytest.mark.parametrize("name", UNIVARIATE)
def test_mean_loss_equals_the_library_with_missing_values(name):
    """Compare with the library's own training step."""
    model = MODELS[name]
    estimator = estimator_of(name)
    data = dataset_of(model, missing=True)
    with isolated_rng(0, torch.device("cpu")):
        module = estimator.create_lightning_module().eval()
    windows = windows_of(estimator, module, data)
    numbers = torch.arange(50, 80)
    batch = windows.gather(numbers)
    network = GluonTSLosses(module.model, windows.fields)
    network.initialize_from(windows)
    losses = Losses(network, windows.fields)
    module.log = lambda *args, **kwargs: None
    with torch.no_grad():
        with isolated_rng(1, torch.device("cpu")):  # MQF2's loss is random
            expected = module.training_step(batch, 0)
        with isolated_rng(1, torch.device("cpu")):
            found = losses(batch).mean()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["DeepAR", "LagTST", "WaveNet"])
def test_scale_of_an_empty_context_does_not_depend_on_its_batch(name):
    data = list(dataset_of(MODELS[name]))
    for entry in data:
        entry["target"][60:90] = np.nan
    estimator = estimator_of(name, num_batches_per_epoch=2)
    with isolated_rng(0, torch.device("cpu")):
        module = estimator.create_lightning_module().eval()
    windows = windows_of(estimator, module, data)
    network = GluonTSLosses(module.model, windows.fields)
    losses = Losses(network, windows.fields)
    starts = torch.tensor([start for _, start in splits_of(windows)])
    empty, full = (int((starts == step).nonzero()[0]) for step in (88, 140))
    with torch.no_grad(), network.fixed_default_scale(windows):
        together = losses(windows.gather(torch.tensor([empty, full])))
        alone = losses(windows.gather(torch.tensor([empty])))
    torch.testing.assert_close(together[:1], alone)
    trained = estimator.train_model(data).trained_net.model
    assert getattr(getattr(trained, "scaler", None), "default_scale", None) is None


@pytest.mark.parametrize("method", ["scott", "plain"])
@pytest.mark.parametrize("name", ["DeepAR", "TFT"])
def test_training_equals_the_reference(name, method):
    """Compare step by step, with the same draws, on two of the harder models."""
    estimator = estimator_of(name, features=True)
    estimator.dropout_rate = 0.0
    with isolated_rng(1, torch.device("cpu")):
        module = estimator.create_lightning_module().double()
    windows = in_double_precision(
        windows_of(estimator, module, dataset_of(MODELS[name], length=80))
    )
    network = GluonTSLosses(module.model, windows.fields)
    assert_equals_reference(method, network, windows)


# -- MQF2 -----------------------------------------------------------------------------


@pytest.mark.parametrize("energy", [False, True])
def test_mqf2_window_losses_have_the_library_mean(energy):
    data = dataset_of(MODELS["DeepAR"])
    estimator = with_scott(MQF2MultiHorizonEstimator)(
        **MODELS["MQF2"].arguments,
        is_energy_score=energy,
        es_num_samples=5,
        dropout_rate=0.0,
        trainer=quiet_trainer(batch_size=4, learning_rate=1e-4),
    )
    with isolated_rng(1, torch.device("cpu")):
        module = estimator.create_lightning_module().eval()
    windows = windows_of(estimator, module, data)
    network = GluonTSLosses(module.model, windows.fields)
    network.initialize_from(windows)
    batch = windows.gather(torch.arange(40, 46))
    module.log = lambda *args, **kwargs: None
    with isolated_rng(2, torch.device("cpu")):
        found = network.loss(**{n: batch[n] for n in network.loss_fields})
    with isolated_rng(2, torch.device("cpu")):
        expected = module.training_step(batch, 0)
    assert found.shape == (6,)
    torch.testing.assert_close(found.mean(), expected, rtol=1e-4, atol=1e-5)
    estimator.train(data)
    assert np.isfinite(estimator.trainer.history["train_loss"]).all()


def act_norms(predictor: Any) -> list[ActNorm]:
    return [m for m in predictor.network.modules() if isinstance(m, ActNorm)]


def test_mqf2_layers_are_not_initialised_again(tmp_path):
    """Neither when training continues nor after loading, unlike with GluonTS alone."""
    data = dataset_of(MODELS["MQF2"])
    predictor = estimator_of("MQF2", num_batches_per_epoch=2).train(data)
    larger = [{**entry, "target": 3 * entry["target"]} for entry in data]
    nothing = estimator_of("MQF2", learning_rate=1e-12, num_batches_per_epoch=1)
    predictor.serialize(tmp_path)
    for again in (nothing.train_from(predictor, larger), load_predictor(tmp_path)):
        list(again.predict(larger))
        for one, other in zip(act_norms(predictor), act_norms(again), strict=True):
            torch.testing.assert_close(one.b, other.b)
            torch.testing.assert_close(one.logs, other.logs)
    seen = {norm.initialized for norm in act_norms(type(predictor).deserialize(tmp_path))}
    assert seen == {False}, "GluonTS' own reader would initialise them again"
