"""Custom Lightning modules on GluonTS: their steps must use the loss of their model."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.training import quiet_trainer

pytest.importorskip("gluonts.torch.scaler", reason="GluonTS 0.9 has no such estimators")

from gluonts.torch.model.simple_feedforward import SimpleFeedForwardEstimator
from helpers.gluonts_models import LENGTHS, MODELS, dataset_of

from pts_scott import with_scott
from pts_scott.backends.gluonts.losses import GluonTSLosses
from pts_scott.errors import ScottWarning, WindowLossError


def with_module(**methods: Any) -> Any:
    """Return an estimator whose Lightning module has custom methods."""

    class Custom(SimpleFeedForwardEstimator):
        def create_lightning_module(self):
            module = super().create_lightning_module()
            module.__class__ = type("CustomModule", (type(module),), methods)
            return module

    return with_scott(Custom)(**LENGTHS, trainer=quiet_trainer(batch_size=8))


def tripled_loss(self, batch, batch_idx):
    return 3 * self.model.loss(**model_fields(self, batch)).mean()


def loss_with_penalty(self, batch, batch_idx):
    loss = self.model.loss(**model_fields(self, batch)).mean()
    return loss + 0.5 * self.training


def model_loss(self, batch, batch_idx):
    return {"loss": self.model.loss(**model_fields(self, batch)).mean()}


def loss_with_lightning(self, batch, batch_idx):
    return self.trainer.max_epochs * model_loss(self, batch, batch_idx)["loss"]


def model_fields(module: Any, batch: Any) -> Any:
    names = GluonTSLosses(module.model, list(batch)).loss_fields
    return {name: batch[name] for name in names}


@pytest.mark.parametrize("step", [tripled_loss, loss_with_penalty])
def test_training_step_with_a_different_loss_raises(step):
    with pytest.raises(WindowLossError, match="training_step returns"):
        with_module(training_step=step).train(dataset_of(MODELS["SimpleFeedForward"]))


def test_training_step_with_the_model_loss_trains():
    estimator = with_module(training_step=model_loss)
    estimator.train(dataset_of(MODELS["SimpleFeedForward"]))
    assert estimator.trainer.history["step"].iloc[-1] == 20


def test_training_step_that_needs_a_lightning_trainer_raises():
    with pytest.raises(WindowLossError, match="training_step failed on a batch"):
        with_module(training_step=loss_with_lightning).train(
            dataset_of(MODELS["SimpleFeedForward"])
        )


def test_custom_validation_step_warns_that_it_is_not_called():
    estimator = with_module(validation_step=tripled_loss)
    with pytest.warns(ScottWarning, match="CustomModule.validation_step is not called"):
        estimator.train(dataset_of(MODELS["SimpleFeedForward"]))
