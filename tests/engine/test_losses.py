"""Losses: one per window, from parameters that may be tied, frozen or exchanged."""

from __future__ import annotations

import pytest
import torch
from helpers.series import wave_windows
from helpers.training import quiet_trainer, tiny_network
from torch import nn

from pts_scott.engine.gradients import Gradients
from pts_scott.engine.losses import Losses, evaluate
from pts_scott.engine.model_checks import check_model
from pts_scott.engine.tensors import squared_norm
from pts_scott.errors import WindowLossError


def control_variate(gradients: Gradients, batch, snapshot):
    """Return v with an anchor of zero."""
    zeros = tuple(torch.zeros_like(p) for p in gradients.parameters)
    return gradients.control_variate(batch, snapshot, zeros, 1.0).direction


def test_network_without_loss_is_refused():
    with pytest.raises(WindowLossError, match="no method loss"):
        Losses(nn.Linear(2, 2))


def test_loss_that_takes_unknown_fields_is_refused():
    class NeedsHolidays(nn.Module):
        def loss(self, past_target, holidays):
            return past_target.mean(dim=1)

    with pytest.raises(WindowLossError, match="'holidays'"):
        Losses(NeedsHolidays())


class TiedLayers(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 6, bias=False, dtype=torch.float64)
        self.two = nn.Linear(6, 6, bias=False, dtype=torch.float64)
        self.two.weight = self.one.weight

    def loss(self, past_target, future_target):
        forecast = self.two(torch.tanh(self.one(past_target)))[:, :2]
        return (forecast - future_target).square().mean(dim=1)


class ParameterWithTwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.full((6, 6), 0.1, dtype=torch.float64))
        self.b = self.a

    def loss(self, past_target, future_target):
        forecast = (torch.tanh(past_target @ self.a) @ self.b)[:, :2]
        return (forecast - future_target).square().mean(dim=1)


class LayerWithTwoNames(nn.Module):
    """One layer under two names, as TimeGrad's diffusion holds its network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6, bias=False, dtype=torch.float64)
        self.again = nn.ModuleDict({"layer": self.layer})

    def loss(self, past_target, future_target):
        forecast = self.again["layer"](torch.tanh(self.layer(past_target)))[:, :2]
        return (forecast - future_target).square().mean(dim=1)


def test_tied_weights_count_once_and_stay_tied():
    network = TiedLayers()
    before = network.one.weight.detach().clone()
    quiet_trainer(learning_rate=0.02, batch_size=4).fit(network, wave_windows())
    assert network.one.weight is network.two.weight
    assert not torch.equal(network.one.weight, before)
    assert len(Gradients(Losses(network)).parameters) == 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "network", [TiedLayers, LayerWithTwoNames, ParameterWithTwoNames]
)
def test_weights_with_two_names_are_exchanged_and_put_back(network, compiled, windows):
    gradients = Gradients(Losses(network()), compiled=compiled)
    batch = windows.gather(torch.arange(8))
    parameters = gradients.parameters
    moved = tuple(p.detach() + 0.1 for p in parameters)
    at_snapshot = gradients.uniform(batch).direction
    with torch.no_grad():
        snapshot = tuple(p.clone() for p in parameters)
        torch._foreach_copy_(list(parameters), list(moved))
    expected = gradients.uniform(batch).direction
    for _ in range(2):  # the first pass must put the network's own parameters back
        found = control_variate(gradients, batch, snapshot)
        for v, now, then in zip(found, expected, at_snapshot):
            torch.testing.assert_close(v, now - then, rtol=1e-10, atol=1e-12)
    assert next(iter(gradients.losses.trainable().values())) is parameters[0]


def test_frozen_parameters_are_not_trained():
    network = tiny_network()
    network.layers[0].requires_grad_(False)
    before = [p.detach().clone() for p in network.parameters()]
    quiet_trainer(learning_rate=0.02, batch_size=4).fit(network, wave_windows())
    same = [torch.equal(p, b) for p, b in zip(network.parameters(), before)]
    assert same == [True, True, False, False]


class DividesBatch(nn.Module):
    """Changes its batch in place, as some libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2, dtype=torch.float64)

    def loss(self, past_target, future_target):
        past_target /= 1 + past_target.abs().mean(dim=1, keepdim=True)
        return (self.linear(past_target) - future_target).square().mean(dim=1)


def test_batch_that_the_network_changes_is_copied(windows):
    losses = Losses(DividesBatch())
    check_model(losses, windows)
    assert losses.copies
    batch = windows.gather(torch.arange(8))
    whole = {name: values.clone() for name, values in batch.items()}
    gradients = Gradients(losses)
    snapshot = tuple(p.detach().clone() for p in gradients.parameters)
    assert float(squared_norm(control_variate(gradients, batch, snapshot))) == 0.0
    for name, values in whole.items():
        torch.testing.assert_close(batch[name], values, rtol=0, atol=0)


def test_evaluation_is_the_mean_over_windows_of_all_batches(windows, monkeypatch):
    losses = Losses(tiny_network())
    expected = losses(windows.gather(torch.arange(len(windows)))).mean()
    monkeypatch.setattr("pts_scott.engine.losses.EVALUATION_BATCH", 7)
    assert len(windows) % 7, "the last batch is smaller"
    torch.testing.assert_close(evaluate(losses, windows), expected.detach())
