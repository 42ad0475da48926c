"""Models that break the mathematics are refused before training starts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import TinyNetwork, quiet_trainer, wave_entries, wave_windows
from torch import nn

from pts_scott import SimpleFeedForwardEstimator, WindowIndex
from pts_scott.errors import (
    BatchCoupledLossError,
    BatchNormError,
    MissingValuesError,
    ModelError,
    WindowLossError,
)
from pts_scott.gradients import Losses
from pts_scott.model_checks import is_stochastic


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


def test_the_check_leaves_the_network_as_it_was():
    network = TinyNetwork()
    before = [p.clone() for p in network.parameters()]
    quiet_trainer(
        gradient_budget=10**6, epochs=1, num_batches_per_epoch=1, method="plain"
    )
    assert network.training
    assert all(torch.equal(x, y) for x, y in zip(before, network.parameters()))
