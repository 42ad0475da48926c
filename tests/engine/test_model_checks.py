"""Models that the method cannot train correctly are refused before training starts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.odd_networks import Linear
from helpers.series import wave_entries, wave_windows
from helpers.training import TinyNetwork, fit_waves, quiet_trainer
from torch import nn

from pts_scott import SimpleFeedForwardEstimator, WindowIndex
from pts_scott.engine.losses import Losses
from pts_scott.engine.model_checks import check_model
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


class LossPerTimeStep(TinyNetwork):
    def loss(self, past_target, future_target):
        return (self.layers(past_target) - future_target).square()


class ScaledByBatch(TinyNetwork):
    def loss(self, past_target, future_target):
        return super().loss(past_target / past_target.abs().mean(), future_target)


class CoupledInTrainingOnly(TinyNetwork):
    def loss(self, past_target, future_target):
        past_target = past_target - past_target.mean() * self.training
        return super().loss(past_target, future_target)


class CoupledAndTiny(TinyNetwork):
    def loss(self, past_target, future_target):
        return 1e-6 * super().loss(past_target - past_target.mean(), future_target)


class ReturnsNone(TinyNetwork):
    def loss(self, past_target, future_target):
        return None


class DetachedLoss(TinyNetwork):
    def loss(self, past_target, future_target):
        return super().loss(past_target, future_target).detach()


class WrongShape(TinyNetwork):
    def loss(self, past_target, future_target):
        return self.layers(past_target[:, :2]).mean(dim=1)


class NonFinite(TinyNetwork):
    def loss(self, past_target, future_target):
        return super().loss(past_target, future_target) * float("nan")


class BatchNorm(TinyNetwork):
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
        (LossPerTimeStep, WindowLossError, "mean over all dimensions but the first"),
        (ScaledByBatch, BatchCoupledLossError, "by its own context"),
        (CoupledInTrainingOnly, BatchCoupledLossError, "other windows of its batch"),
        (CoupledAndTiny, BatchCoupledLossError, "other windows of its batch"),
        (ReturnsNone, WindowLossError, "returned NoneType"),
        (DetachedLoss, WindowLossError, "does not depend on the parameters"),
        (WrongShape, WindowLossError, r"past_target \(3, 6\).*cannot be multiplied"),
        (NonFinite, ModelError, "before any training"),
        (BatchNorm, BatchNormError, r"layers\.1.*LayerNorm"),
        (Frozen, ModelError, "nothing to train"),
    ],
)
def test_model_that_cannot_be_trained_correctly_is_refused(network, error, message):
    with pytest.raises(error, match=message):
        fit(network())


def test_batch_norm_of_an_estimator_is_refused():
    estimator = SimpleFeedForwardEstimator(
        freq="h", prediction_length=2, batch_norm=True, trainer=quiet_trainer()
    )
    with pytest.raises(BatchNormError, match="Switch it off"):
        estimator.train(wave_entries())


def test_missing_values_without_a_mask_are_refused_with_series_and_time():
    entries = wave_entries()
    entries[1]["target"][7] = np.nan
    windows = WindowIndex.from_dataset(entries, "h", 6, 2)
    with pytest.raises(MissingValuesError, match="'s1' has no value at 2021-03-01 12:00"):
        fit(TinyNetwork(), windows)


def test_model_checks_leave_the_network_unchanged():
    network = TinyNetwork().eval()
    before = [p.clone() for p in network.parameters()]
    check_model(Losses(network), wave_windows(torch.float32))
    assert not network.training
    assert all(torch.equal(x, y) for x, y in zip(before, network.parameters()))
    assert all(p.grad is None for p in network.parameters())


def test_network_in_another_precision_than_its_windows_is_refused():
    with pytest.raises(ModelError, match="float64, but the windows are torch.float32"):
        quiet_trainer().fit(TinyNetwork().double(), wave_windows(torch.float32))


def test_validation_windows_are_checked_too():
    entries = wave_entries()
    entries[2]["target"][9] = np.nan
    gaps = WindowIndex.from_dataset(entries, "h", 6, 2)
    trainer = quiet_trainer(method="plain")
    with pytest.raises(MissingValuesError, match="'s2'"):
        trainer.fit(TinyNetwork(), wave_windows(torch.float32), gaps)
    longer = WindowIndex.from_dataset(wave_entries(), "h", 7, 2)
    with pytest.raises(DataError, match="context_length 6, validation windows 7"):
        trainer.fit(TinyNetwork(), wave_windows(torch.float32), longer)


def test_complex_parameters_are_refused():
    network = Linear()
    network.spectrum = nn.Parameter(torch.ones(3, dtype=torch.complex128))
    with pytest.raises(ModelError, match="view_as_real"):
        fit_waves(network)


class NonFiniteGradient(Linear):
    """A finite loss with the gradient of a root at zero."""

    def loss(self, past_target, future_target):
        zero = (0.0 * self.weight).sum()
        return super().loss(past_target, future_target) + zero.sqrt()


def test_network_without_any_finite_gradient_is_refused():
    with pytest.raises(ModelError, match="its gradient is not, on any of"):
        fit_waves(NonFiniteGradient())
