"""GluonTS' models with one loss a window: users' own modules, and MQF2's layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.training import quiet_trainer

pytest.importorskip("gluonts.torch.scaler", reason="GluonTS 0.9 has no such estimators")

from gluonts.torch.model.mqf2 import MQF2MultiHorizonEstimator
from gluonts.torch.model.mqf2._cpflows import ActNorm
from gluonts.torch.model.simple_feedforward import SimpleFeedForwardEstimator
from test_gluonts import LENGTHS, MODELS, dataset, estimator_of, windows_of

from pts_scott import load_predictor, with_scott
from pts_scott._utils.rng import isolated_rng
from pts_scott.backends import gluonts as backend
from pts_scott.errors import ScottWarning, WindowLossError


def with_module(**methods: Any) -> Any:
    """A user's own estimator, whose module has some methods of its own."""

    class Own(SimpleFeedForwardEstimator):
        def create_lightning_module(self):
            module = super().create_lightning_module()
            module.__class__ = type("OwnModule", (type(module),), methods)
            return module

    return with_scott(Own)(**LENGTHS, trainer=quiet_trainer(batch_size=8))


def tripled(self, batch, batch_idx):
    return 3 * self.model.loss(**own_fields(self, batch)).mean()


def with_a_penalty(self, batch, batch_idx):
    loss = self.model.loss(**own_fields(self, batch)).mean()
    return loss + 0.5 * self.training


def as_the_model(self, batch, batch_idx):
    return {"loss": self.model.loss(**own_fields(self, batch)).mean()}


def with_lightning(self, batch, batch_idx):
    return self.trainer.max_epochs * as_the_model(self, batch, batch_idx)["loss"]


def own_fields(module: Any, batch: Any) -> Any:
    names = backend.LibraryLosses(module.model, list(batch)).loss_fields
    return {name: batch[name] for name in names}


@pytest.mark.parametrize("step", [tripled, with_a_penalty])
def test_a_training_step_with_another_loss_is_refused(step):
    with pytest.raises(WindowLossError, match="training_step gives"):
        with_module(training_step=step).train(dataset(MODELS["SimpleFeedForward"]))


def test_a_training_step_with_the_models_loss_is_trained():
    estimator = with_module(training_step=as_the_model)
    estimator.train(dataset(MODELS["SimpleFeedForward"]))
    assert estimator.trainer.history["step"].iloc[-1] == 20


def test_a_training_step_that_needs_lightnings_trainer_is_refused():
    with pytest.raises(WindowLossError, match="could not be tried on a batch"):
        with_module(training_step=with_lightning).train(
            dataset(MODELS["SimpleFeedForward"])
        )


def test_a_validation_step_that_is_not_called_is_named():
    estimator = with_module(validation_step=tripled)
    with pytest.warns(ScottWarning, match="OwnModule.validation_step is not called"):
        estimator.train(dataset(MODELS["SimpleFeedForward"]))


# -- MQF2 -----------------------------------------------------------------------------


@pytest.mark.parametrize("energy", [False, True])
def test_mqf2_has_one_loss_a_window_whose_mean_is_the_librarys(energy):
    data = dataset(MODELS["DeepAR"])
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
    network = backend.LibraryLosses(module.model, windows.fields)
    network.see_first(windows)
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


def test_layers_of_mqf2_that_have_seen_data_do_not_begin_anew(tmp_path):
    """When training goes on, or the predictor is read back, as the library's would."""
    data = dataset(MODELS["MQF2"])
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
    assert seen == {False}, "the library's own reader would let them begin anew"
