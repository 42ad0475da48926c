"""Classes that `with_scott` makes of PyTorchTS' estimators, and files of predictors."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from gluonts.core import serde
from helpers.library_contract import forecast_with_seed
from helpers.training import quiet_trainer

pytest.importorskip("pts", reason="PyTorchTS is not installed")

from helpers.pytorchts_models import MODELS, dataset_of, estimator_of
from pts.model.deepar import DeepAREstimator

from pts_scott import ScottTrainer, with_scott
from pts_scott.errors import ArgumentError


def test_estimator_is_serialised_like_its_parent():
    estimator = estimator_of("DeepAR", gamma=0.2)
    assert issubclass(type(estimator), DeepAREstimator)
    for again in (
        serde.load_json(serde.dump_json(estimator)),
        pickle.loads(pickle.dumps(estimator)),
    ):
        assert type(again) is type(estimator)
        assert again.trainer.hyperparameters.gamma == 0.2
    with pytest.raises(ArgumentError, match="takes a subclass of PyTorchEstimator"):
        with_scott(ScottTrainer)
    with pytest.raises(ArgumentError, match=r"ScottTrainer\(learning_rate=...\)"):
        with_scott(DeepAREstimator)(**MODELS["DeepAR"].arguments, lr=1e-3)


def test_arguments_of_the_parents_are_known():
    trainer = quiet_trainer(batch_size=8)
    model = MODELS["DeepVAR"]
    estimator = with_scott(model.estimator)(
        **model.arguments, dtype=np.float32, trainer=trainer
    )
    assert estimator.dtype == np.float32


@pytest.mark.parametrize("name", ["N-BEATS", "LSTNet", "TempFlow", "TimeGrad"])
def test_predictor_files_do_not_depend_on_the_trainer(name, tmp_path):
    estimator = estimator_of(
        name,
        num_batches_per_epoch=2,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        optimizer=lambda p: torch.optim.RMSprop(p, lr=1e-3),
    )
    data = dataset_of(MODELS[name])
    predictor = estimator.train(data)
    predictor.serialize(tmp_path)
    expected = forecast_with_seed(predictor, list(data))
    for again in (
        type(predictor).deserialize(tmp_path),
        pickle.loads(pickle.dumps(predictor)),
    ):
        np.testing.assert_allclose(forecast_with_seed(again, list(data)), expected)
