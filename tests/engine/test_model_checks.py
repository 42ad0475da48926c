"""Models that break the mathematics are refused before training starts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.series import wave_entries, wave_windows
from helpers.training import TinyNetwork, quiet_trainer
from torch import nn

from pts_scott import SimpleFeedForwardEstimator, WindowIndex
from pts_scott.engine.losses import Losses
from pts_scott.engine.model_checks import check_model
from pts_scott.engine.training_effects import is_stochastic
from pts_scott.errors import (
    BatchCoupledLossError,
    BatchNormError,
    DataError,
    MissingValuesError,
    ModelError,
    WindowLossError,
)


def fit(network: nn.Module, windows: WindowIndex | None = None) -> None:
    quiet_trainer(method="plain").fit(
        network.float(), windows or wave_windows(torch.float32)
    )


class MeanLoss(TinyNetwork):
    def loss(self, past_target, future_target):
        return super().loss(past_target, future_target).mean()


class LossForEachStep(TinyNetwork):
    def loss(self, past_target, future_target):
        return (self.layers(past_target) - future_target).square()


class ScaledByTheBatch(TinyNetwork):
    def loss(self, past_target, future_target):
        return super().loss(past_target / past_target.abs().mean(), future_target)


class CoupledInTrainingOnly(TinyNetwork):
    def loss(self, past_target, future_target):
        past_target = past_target - past_target.mean() * self.training
        return super().loss(past_target, future_target)


class CoupledAndTiny(TinyNetwork):
    def loss(self, past_target, future_target):
        return 1e-6 * super().loss(past_target - past_target.mean(), future_target)


class NoLoss(TinyNetwork):
    def loss(self, past_target, future_target):
        return None


class Detached(TinyNetwork):
    def loss(self, past_target, future_target):
        return super().loss(past_target, future_target).detach()


class Broken(TinyNetwork):
    def loss(self, past_target, future_target):
        return self.layers(past_target[:, :2]).mean(dim=1)


class NotFinite(TinyNetwork):
    def loss(self, past_target, future_target):
        return super().loss(past_target, future_target) * float("nan")


class WithBatchNorm(TinyNetwork):
    def __init__(self) -> None:
        super().__init__()
        self.layers.insert(1, nn.BatchNorm1d(5))


class Frozen(TinyNetwork):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


@pytest.mark.parametrize(
    ("network", "error", "message"),
    [
        (MeanLoss, WindowLossError, "one number for the whole batch"),
        (LossForEachStep, WindowLossError, "mean over all dimensions but the first"),
        (ScaledByTheBatch, BatchCoupledLossError, "by its own context"),
        (CoupledInTrainingOnly, BatchCoupledLossError, "other windows of its batch"),
        (CoupledAndTiny, BatchCoupledLossError, "other windows of its batch"),
        (NoLoss, WindowLossError, "returned NoneType"),
        (Detached, WindowLossError, "does not depend on the parameters"),
        (Broken, WindowLossError, r"past_target \(3, 6\).*cannot be multiplied"),
        (NotFinite, ModelError, "before any training"),
        (WithBatchNorm, BatchNormError, r"layers\.1.*LayerNorm"),
        (Frozen, ModelError, "nothing to train"),
    ],
)
def test_a_model_that_breaks_the_mathematics_is_refused(network, error, message):
    with pytest.raises(error, match=message):
        fit(network())


def test_batch_norm_of_an_estimator_is_refused():
    estimator = SimpleFeedForwardEstimator(
        freq="h", prediction_length=2, batch_norm=True, trainer=quiet_trainer()
    )
    with pytest.raises(BatchNormError, match="Switch it off"):
        estimator.train(wave_entries())


def test_missing_values_without_a_mask_are_refused_with_their_place():
    entries = wave_entries()
    entries[1]["target"][7] = np.nan
    windows = WindowIndex.from_dataset(entries, "h", 6, 2)
    with pytest.raises(MissingValuesError, match="'s1' has no value at 2021-03-01 12:00"):
        fit(TinyNetwork(), windows)


def test_dropout_is_noticed_and_its_absence_too():
    windows = wave_windows(torch.float32)
    network = TinyNetwork()
    assert not is_stochastic(Losses(network), windows)
    network.layers.append(nn.Dropout(0.5))
    assert is_stochastic(Losses(network), windows)


def test_the_checks_leave_the_network_as_it_was():
    network = TinyNetwork().eval()
    before = [p.clone() for p in network.parameters()]
    check_model(Losses(network), wave_windows(torch.float32))
    assert not network.training
    assert all(torch.equal(x, y) for x, y in zip(before, network.parameters()))
    assert all(p.grad is None for p in network.parameters())


def test_a_network_of_another_precision_is_refused():
    with pytest.raises(ModelError, match="float64, but the windows are torch.float32"):
        quiet_trainer().fit(TinyNetwork().double(), wave_windows(torch.float32))


def test_validation_data_is_checked_too():
    entries = wave_entries()
    entries[2]["target"][9] = np.nan
    gaps = WindowIndex.from_dataset(entries, "h", 6, 2)
    trainer = quiet_trainer(method="plain")
    with pytest.raises(MissingValuesError, match="'s2'"):
        trainer.fit(TinyNetwork(), wave_windows(torch.float32), gaps)
    longer = WindowIndex.from_dataset(wave_entries(), "h", 7, 2)
    with pytest.raises(DataError, match="context_length 6, validation windows 7"):
        trainer.fit(TinyNetwork(), wave_windows(torch.float32), longer)
