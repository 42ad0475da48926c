"""The bridge to Lightning: callbacks, loggers, schedulers and frozen parameters."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import lightning.pytorch as pl
import pandas as pd
import pytest
import torch
from helpers.runs import fit_tiny_network
from helpers.series import wave_windows
from helpers.training import QUIET, quiet_trainer, tiny_network
from lightning.pytorch.callbacks import (
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
)
from lightning.pytorch.loggers import CSVLogger

from pts_scott import WindowIndex
from pts_scott.errors import ModelError

# -- callbacks and loggers ----------------------------------------------------------


def test_callbacks_and_loggers_of_lightning_work(tmp_path):
    checkpoint = ModelCheckpoint(
        dirpath=tmp_path / "best", monitor="val_loss", save_top_k=1
    )
    stop = EarlyStopping(monitor="val_loss", patience=1, min_delta=1e9)
    trainer = quiet_trainer(
        epochs=20,
        trainer_kwargs={
            **QUIET,
            "callbacks": [checkpoint, stop],
            "logger": CSVLogger(tmp_path, name="log"),
            "log_every_n_steps": 1,
        },
    )
    fit_tiny_network(trainer, validate=True)
    assert trainer.history["epoch"].max() == 1, "EarlyStopping ended training"
    state = torch.load(checkpoint.best_model_path, weights_only=True)["state_dict"]
    assert any("layers" in name for name in state)
    assert "val_loss" in (tmp_path / "log" / "version_0" / "metrics.csv").read_text()


def test_early_stopping_is_reset_for_a_second_run():
    stop = EarlyStopping(monitor="val_loss", patience=2, min_delta=1e9)
    trainer = quiet_trainer(epochs=9, trainer_kwargs={**QUIET, "callbacks": stop})
    for _ in range(2):
        fit_tiny_network(trainer, validate=True)
        assert trainer.history["epoch"].max() == 2
        assert stop.stopped_epoch == 2


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_best_score_of_a_model_checkpoint_is_reset_for_a_second_run(tmp_path):
    best = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss")
    trainer = quiet_trainer(epochs=2, trainer_kwargs={**QUIET, "callbacks": best})
    windows = wave_windows()
    for factor in (1.0, 100.0):
        values = factor * windows.series.values
        scaled = WindowIndex(dataclasses.replace(windows.series, values=values), 6, 2)
        trainer.fit(tiny_network(), scaled, scaled.last())
        losses = trainer.history["val_loss"]
        assert float(best.best_model_score) == pytest.approx(losses.min())


class RecordRates(pl.Callback):
    """Records the learning rate at the end of each epoch."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def test_callbacks_see_one_epoch_per_outer_loop_if_epochs_are_shorter():
    """An outer loop spans four of the 40 epochs: callbacks see one, schedulers four."""
    stop = EarlyStopping(monitor="val_loss", patience=2)
    recorder = RecordRates()
    trainer = quiet_trainer(
        learning_rate=0.01,
        epochs=40,
        num_batches_per_epoch=5,
        gamma=None,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        trainer_kwargs={**QUIET, "callbacks": [stop, recorder]},
    )
    windows = wave_windows()
    trainer.fit(tiny_network(), windows, windows.last())
    history = trainer.history
    assert history["step"].iloc[-1] > 60, "EarlyStopping does not end a falling loss"
    assert history["val_loss"].notna().all()
    assert history["epoch"].tolist() == list(range(0, 4 * len(history), 4))
    epochs = 4 * (len(recorder.rates) - 1)
    assert recorder.rates[-1] == pytest.approx(0.01 * 0.9**epochs)


# -- schedulers ---------------------------------------------------------------------


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_scheduler_is_stepped_after_each_epoch(compile):
    recorder = RecordRates()
    trainer = quiet_trainer(
        learning_rate=0.1,
        epochs=3,
        compile=compile,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
        trainer_kwargs={**QUIET, "callbacks": [recorder]},
    )
    trainer.fit(tiny_network(torch.float32), wave_windows(torch.float32))
    # Callbacks are called before the module, which steps the scheduler.
    assert recorder.rates == pytest.approx([0.1, 0.05, 0.025])


@pytest.mark.parametrize("validated", [False, True])
def test_plateau_scheduler_gets_val_loss_or_otherwise_train_loss(validated):
    metrics_seen = []

    class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, metrics, epoch=None):
            metrics_seen.append(float(metrics))
            super().step(metrics, epoch)

    trainer = quiet_trainer(epochs=2, scheduler=Plateau)
    windows = wave_windows()
    trainer.fit(tiny_network(), windows, windows.last() if validated else None)
    history = trainer.history
    last = history.groupby("epoch").last()["train_loss"]
    expected = history["val_loss"].dropna() if validated else last
    assert metrics_seen == pytest.approx(expected.tolist())


def test_plateau_scheduler_is_not_stepped_in_epochs_without_validation():
    recorder = RecordRates()
    trainer = quiet_trainer(
        learning_rate=0.01,
        epochs=10,
        scheduler=lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=2),
        trainer_kwargs={**QUIET, "callbacks": [recorder], "check_val_every_n_epoch": 5},
    )
    windows = wave_windows()
    trainer.fit(tiny_network(), windows, windows.last())
    losses = trainer.history["val_loss"].dropna()
    assert len(losses) == 2, "fewer validations than its patience"
    assert set(recorder.rates) == {0.01}


def test_learning_rate_monitor_logs_the_schedule(tmp_path):
    logger = CSVLogger(tmp_path)
    trainer = quiet_trainer(
        epochs=2,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
        trainer_kwargs={
            **QUIET,
            "logger": logger,
            "log_every_n_steps": 1,
            "callbacks": [LearningRateMonitor()],
        },
    )
    trainer.fit(tiny_network(), wave_windows())
    logged = pd.read_csv(Path(logger.log_dir) / "metrics.csv")
    assert logged["lr-SGD"].dropna().nunique() == 2


# -- methods and frozen parameters --------------------------------------------------


def test_methods_without_an_anchor_ignore_inner_length():
    trainer = quiet_trainer(method="plain", inner_length="geometric", inner_steps=5)
    fit_tiny_network(trainer)
    assert trainer.history["step"].tolist() == [5, 10, 15, 20]


class FreezeBias(pl.Callback):
    """Freezes a parameter in the given hook."""

    def __init__(self, hook: str) -> None:
        setattr(self, hook, self.freeze)

    def freeze(self, trainer, pl_module, *_):
        pl_module.losses.network.layers[0].bias.requires_grad_(False)


@pytest.mark.parametrize(
    "hook", ["on_fit_start", "on_train_start", "on_train_epoch_start"]
)
def test_parameter_frozen_during_a_run_is_refused(hook):
    kwargs = {**QUIET, "callbacks": [FreezeBias(hook)]}
    with pytest.raises(ModelError, match=r"requires_grad of 'network.layers.0.bias'"):
        fit_tiny_network(quiet_trainer(trainer_kwargs=kwargs))
