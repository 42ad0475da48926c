"""PyTorchTS' training networks with one loss per window: equal to the library."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.instances import in_double_precision
from helpers.reference import assert_equals_reference
from helpers.training import quiet_trainer

pytest.importorskip("pts", reason="PyTorchTS is not installed")

from helpers.pytorchts_models import (
    CPU,
    MODELS,
    chain_of,
    dataset_of,
    estimator_of,
    network_of,
)
from pts.model.n_beats import NBEATSEstimator
from pts.model.n_beats.n_beats_network import NBEATSTrainingNetwork

from pts_scott import Stratifier, with_scott
from pts_scott._utils.rng import isolated_rng
from pts_scott.backends.point_network import mape_loss, smape_loss
from pts_scott.backends.pytorchts.losses import PyTorchTSLosses, losses_of_single_windows
from pts_scott.data.pipeline import Pipeline
from pts_scott.errors import ScottWarning, WindowLossError


def batch_of(name: str, missing: bool = False, size: int = 16) -> Any:
    """Return a network, its windows, and the numbers of some of them."""
    estimator = estimator_of(name)
    net = network_of(estimator)
    data = dataset_of(MODELS[name], missing)
    windows = Pipeline.read(chain_of(estimator, net)).windows(data)
    numbers = torch.linspace(30, len(windows) - 1, size).long()
    return net, windows, numbers


def library_loss(net: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    output = net(**{name: values.clone() for name, values in batch.items()})
    return output[0] if isinstance(output, (list, tuple)) else output


@pytest.mark.parametrize("name", MODELS)
def test_window_losses_have_the_library_mean(name):
    net, windows, numbers = batch_of(name)
    losses = PyTorchTSLosses(net)
    batch = windows.gather(numbers)
    losses.fit_statistics(windows.gather(torch.arange(len(windows))))
    losses.eval()
    with torch.no_grad():
        with isolated_rng(3, CPU):
            found = losses.loss(**{name: v.clone() for name, v in batch.items()})
        with isolated_rng(3, CPU):
            expected = library_loss(net, batch)
    assert found.shape == (len(numbers),)
    torch.testing.assert_close(found.mean(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", [n for n, m in MODELS.items() if not m.random])
def test_each_loss_is_the_library_loss_of_its_window_alone(name, missing):
    if missing and name in ("SimpleFeedForward", "N-BEATS"):
        pytest.skip("the model has no mask for missing values")
    net, windows, numbers = batch_of(name, missing)
    losses = PyTorchTSLosses(net)
    losses.fit_statistics(windows.gather(torch.arange(30, len(windows))))
    losses.eval()
    batch = windows.gather(numbers)
    with torch.no_grad():
        together = losses.loss(**{name: v.clone() for name, v in batch.items()})
        alone = losses_of_single_windows(
            net, {name: v.clone() for name, v in batch.items()}
        )
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_stratified_mean_of_window_losses_is_unbiased():
    """E Σ w_i f_ξi over strata is the mean over all windows; a batch mean is biased."""
    net, windows, _ = batch_of("DeepAR")
    losses = PyTorchTSLosses(net).eval()
    with torch.no_grad():
        every = losses.loss(**windows.gather(torch.arange(len(windows)))).double()
    strata = Stratifier.custom(
        lambda item_id, start, instance: item_id == "s0" and start.hour < 3
    ).stratify(windows)
    generator = torch.Generator().manual_seed(0)
    draws = strata.draw(2, generator, 4000).reshape(4000, len(strata), 2)
    weighted = (every[draws].mean(dim=2) * strata.weights).sum(dim=1)
    plain = every[draws].flatten(1).mean(dim=1)  # what the mean of a batch would estimate
    error = weighted.std() / 4000**0.5
    assert abs(weighted.mean() - every.mean()) < 5 * error
    assert abs(plain.mean() - every.mean()) > 20 * plain.std() / 4000**0.5


class UnknownNetwork(torch.nn.Module):
    """A third-party network that returns the mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(12, 4)

    def forward(self, past_target, future_target):
        return (self.linear(past_target) - future_target).square().mean()


def test_unknown_network_is_evaluated_window_by_window():
    with pytest.warns(ScottWarning, match="UnknownNetwork is not a known network"):
        losses = PyTorchTSLosses(UnknownNetwork())
    past, future = torch.randn(5, 12), torch.randn(5, 4)
    found = losses.loss(past_target=past, future_target=future)
    expected = (losses.wrapped.linear(past) - future).square().mean(dim=1)
    torch.testing.assert_close(found, expected)


def test_network_without_a_loss_raises():
    with pytest.raises(WindowLossError, match="does not return a loss first"):
        losses_of_single_windows(torch.nn.Identity(), {"input": torch.ones(2, 3)})


@pytest.mark.parametrize("method", ["scott", "plain"])
@pytest.mark.parametrize("name", ["DeepAR", "TFT"])
def test_training_equals_the_reference(name, method):
    """Compare step by step, with the same draws, on two of the harder models."""
    estimator = estimator_of(name, features=True)
    estimator.dropout_rate = 0.0
    network = PyTorchTSLosses(network_of(estimator).double())
    data = dataset_of(MODELS[name], length=80)
    windows = in_double_precision(
        Pipeline.read(chain_of(estimator, network.wrapped)).windows(data)
    )
    assert_equals_reference(method, network, windows)


@pytest.mark.parametrize("loss_function", ["MAPE", "sMAPE", "MASE"])
@pytest.mark.parametrize("lengths", [(30, 4), (12, 16)])
def test_nbeats_losses_equal_the_library(loss_function, lengths):
    arguments = {**MODELS["N-BEATS"].arguments, "loss_function": loss_function}
    arguments["context_length"], arguments["prediction_length"] = lengths
    estimator = with_scott(NBEATSEstimator)(**arguments, trainer=quiet_trainer())
    net = network_of(estimator)
    windows = Pipeline.read(chain_of(estimator, net)).windows(
        dataset_of(MODELS["N-BEATS"])
    )
    batch = windows.gather(torch.arange(40, 60))
    with torch.no_grad():
        found = PyTorchTSLosses(net).loss(**batch)
        torch.testing.assert_close(
            found, losses_of_single_windows(net, batch), rtol=1e-4, atol=1e-5
        )


class OwnLoss(NBEATSTrainingNetwork):
    def forward(self, past_target, future_target):
        return 3 * super().forward(past_target, future_target)


def test_subclass_with_its_own_loss_keeps_it():
    net = network_of(estimator_of("N-BEATS"))
    net.__class__ = OwnLoss
    with pytest.warns(ScottWarning, match="OwnLoss is not a known network"):
        losses = PyTorchTSLosses(net)
    batch = {"past_target": torch.rand(3, 12), "future_target": torch.rand(3, 4)}
    with torch.no_grad():
        expected = losses_of_single_windows(net, batch)
        torch.testing.assert_close(losses.loss(**batch), expected)


def test_percentage_losses_equal_the_library():
    net = NBEATSTrainingNetwork(
        loss_function="MAPE",
        freq="H",
        prediction_length=4,
        context_length=12,
        num_stacks=1,
        widths=[4],
        num_blocks=[1],
        num_block_layers=[1],
        expansion_coefficient_lengths=[2],
        sharing=[False],
        stack_types=["G"],
    )
    generator = torch.Generator().manual_seed(0)
    forecast = torch.randn(6, 4, generator=generator)
    future = torch.randn(6, 4, generator=generator)
    future[0, 0] = 0.0
    ones = torch.ones_like(future)
    torch.testing.assert_close(
        mape_loss(forecast, future, ones), net.mape_loss(forecast, future)
    )
    torch.testing.assert_close(
        smape_loss(forecast, future, ones), net.smape_loss(forecast, future)
    )
