"""A library's own estimator with SCott: what users of Lightning and GluonTS expect."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gluonts.core import serde
from gluonts.evaluation import Evaluator, make_evaluation_predictions
from helpers.series import dataset
from helpers.training import QUIET, quiet_trainer
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
)
from lightning.pytorch.loggers import CSVLogger

from pts_scott import Checkpoints, with_scott
from pts_scott.backends import backend
from pts_scott.errors import ArgumentError, ScottWarning

ARGUMENTS: dict[str, Any] = {
    "prediction_length": 4,
    "context_length": 12,
    "lags_seq": [1, 2],
    "freq": "H" if backend.NAME == "pytorchts" else "h",
}
if backend.NAME == "gluonts":
    from gluonts.torch.model.deepar import DeepAREstimator
    from gluonts.torch.model.tft import TemporalFusionTransformerEstimator

    ARGUMENTS |= {"hidden_size": 8, "dropout_rate": 0.0}
else:
    from pts.model.deepar import DeepAREstimator
    from pts.model.tft import TemporalFusionTransformerEstimator

    ARGUMENTS |= {"num_cells": 8, "input_size": 10, "dropout_rate": 0.0}


def data() -> Any:
    steps = np.arange(120)
    rows = np.stack([5 + np.sin(2 * np.pi * (steps + shift) / 12) for shift in (0, 3)])
    return dataset(rows, ARGUMENTS["freq"])


def deepar(**trainer: Any) -> Any:
    settings = {"optimizer": "adam", "learning_rate": 1e-2, "batch_size": 8, **trainer}
    return with_scott(DeepAREstimator)(**ARGUMENTS, trainer=quiet_trainer(**settings))


def parameters(predictor: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in predictor.prediction_net.parameters()]


def test_callbacks_schedulers_and_loggers_work(tmp_path):
    logger = CSVLogger(tmp_path, name="log")
    checkpoint = ModelCheckpoint(
        dirpath=tmp_path / "kept", monitor="val_loss", save_top_k=1
    )
    stop = EarlyStopping(monitor="val_loss", patience=2, min_delta=1e9)
    estimator = deepar(
        epochs=9,
        num_batches_per_epoch=20,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
        trainer_kwargs={
            **QUIET,
            "callbacks": [checkpoint, stop, LearningRateMonitor()],
            "logger": logger,
            "log_every_n_steps": 1,
        },
    )
    estimator.train(data(), validation_data=data())
    history = estimator.trainer.history
    assert history["epoch"].max() == 2, "EarlyStopping ended training"
    assert history["val_loss"].notna().sum() == 3
    best = torch.load(checkpoint.best_model_path, weights_only=True)
    assert best["state_dict"]
    logged = pd.read_csv(Path(logger.log_dir) / "metrics.csv")
    assert logged["lr-Adam"].dropna().nunique() == 3
    assert logged["val_loss"].notna().sum() == 3


def test_best_output_returns_the_best_parameters():
    """Validation data unlike the training data: training raises their loss."""
    unlike = dataset(100 * np.random.default_rng(0).random((2, 120)), ARGUMENTS["freq"])
    found, losses = {}, {}
    for output in ("best", "last"):
        estimator = deepar(epochs=6, output=output)
        found[output] = parameters(estimator.train(data(), validation_data=unlike))
        losses[output] = estimator.trainer.history["val_loss"].dropna().tolist()
    assert losses["best"] == losses["last"]
    best = int(np.argmin(losses["best"]))
    assert best < 5, "the validation loss was meant to rise"
    until = deepar(epochs=best + 1)
    for x, y, z in zip(
        found["best"], parameters(until.train(data(), unlike)), found["last"]
    ):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
        assert not torch.equal(x, z)


class CrashError(Exception):
    """A simulated crash."""


class Crash(Callback):
    """Raises after thirty steps, as a crash would end training."""

    def on_train_batch_end(self, trainer, pl_module, *_):
        if pl_module.steps >= 30:
            raise CrashError


def test_crashed_run_resumes_exactly(tmp_path):
    """With dropout, whose masks come from the global random state."""
    settings: dict[str, Any] = {"epochs": 3, "inner_steps": 7}
    arguments = {**ARGUMENTS, "dropout_rate": 0.2}

    def run(**more: Any) -> Any:
        trainer = quiet_trainer(
            optimizer="adam", learning_rate=1e-2, batch_size=8, **settings, **more
        )
        return with_scott(DeepAREstimator)(**arguments, trainer=trainer).train(data())

    expected = parameters(run())
    kept: dict[str, Any] = {"checkpoint": Checkpoints(tmp_path, steps=5), "resume": True}
    with pytest.raises(CrashError):
        run(trainer_kwargs={**QUIET, "callbacks": [Crash()]}, **kept)
    for x, y in zip(parameters(run(**kept)), expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_estimator_is_serialised_with_its_checkpoint_settings(tmp_path):
    estimator = deepar(checkpoint=Checkpoints(tmp_path, steps=5), resume=True)
    for again in (
        serde.load_json(serde.dump_json(estimator)),
        pickle.loads(pickle.dumps(estimator)),
    ):
        assert again.trainer.checkpoint.path == tmp_path / "last.ckpt"
        assert again.trainer.checkpoint.steps == 5
        assert again.trainer.resume


def test_second_training_starts_from_scratch():
    estimator = deepar()
    one, other = (parameters(estimator.train(data())) for _ in range(2))
    for x, y in zip(one, other):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


@pytest.mark.skipif(backend.NAME == "pytorchts", reason="PyTorchTS has no train_from")
def test_training_continues_from_a_predictor():
    predictor = deepar().train(data())
    frozen = deepar(learning_rate=1e-12, num_batches_per_epoch=1)
    for x, y in zip(
        parameters(predictor), parameters(frozen.train_from(predictor, data()))
    ):
        torch.testing.assert_close(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scott", "plain"])
@pytest.mark.parametrize("name", ["DeepAR", "TFT"])
def test_real_exchange_rates_are_forecast(name, method, exchange_rate):
    """Exchange rates are persistent, so forecasts are off by a few per cent only."""
    estimator: Any = DeepAREstimator
    arguments = {**ARGUMENTS, "freq": "B", "prediction_length": 5, "context_length": 20}
    if name == "TFT":
        estimator = TemporalFusionTransformerEstimator
        arguments = {k: arguments[k] for k in ("freq", "prediction_length")}
        arguments["context_length"] = 20
    elif backend.NAME == "pytorchts":
        arguments["input_size"] = 9
    trainer = quiet_trainer(
        method=method, optimizer="adam", learning_rate=5e-3, num_batches_per_epoch=200
    )
    estimator = with_scott(estimator)(**arguments, trainer=trainer)
    rows = exchange_rate[:, -2000:]
    predictor = estimator.train(dataset(rows[:, :-5], "B"))
    losses = trainer.history["train_loss"]
    assert losses.tail(3).mean() < losses.head(3).mean()
    forecasts, truth = make_evaluation_predictions(
        dataset(rows, "B"), predictor, num_samples=50
    )
    metrics, _ = Evaluator(num_workers=0)(list(truth), list(forecasts))
    assert metrics["ND"] < 0.1


@pytest.mark.parametrize("name", ["lr", "batch_size", "num_batches_per_epoch"])
def test_argument_about_training_raises_for_any_value(name):
    known = inspect.signature(DeepAREstimator).parameters.get(name)
    value = known.default if known is not None else 1
    with pytest.raises(ArgumentError, match=f"{name}=.* about training"):
        with_scott(DeepAREstimator)(**ARGUMENTS, trainer=quiet_trainer(), **{name: value})


def test_loader_arguments_without_effect_warn():
    name = "num_workers" if backend.NAME == "pytorchts" else "shuffle_buffer_length"
    with pytest.warns(ScottWarning, match=f"{name}=8 has no effect"):
        deepar().train(data(), **{name: 8})
