"""The windows behind a fault are found and named."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.odd_networks import BadForSome, Linear
from helpers.series import wave_windows
from torch import nn

from pts_scott.engine.losses import Losses
from pts_scott.engine.nonfinite_windows import (
    failing_window,
    has_diverged,
    name_windows,
    nonfinite_windows,
    probe_loss,
)

LIMIT = 2.9


def above_limit() -> torch.Tensor:
    """Return the windows whose last value is above the limit."""
    windows = wave_windows()
    last = windows.gather(torch.arange(len(windows)))["past_target"][:, -1]
    return (last > LIMIT).nonzero()[:, 0]


class NonFiniteLoss(Linear):
    def loss(self, past_target, future_target):
        bad = past_target[:, -1] > LIMIT
        return torch.where(bad, torch.nan, super().loss(past_target, future_target))


class Raises(Linear):
    def loss(self, past_target, future_target):
        if bool((past_target[:, -1] > LIMIT).any()):
            raise ValueError("too large")
        return super().loss(past_target, future_target)


@pytest.mark.parametrize("network", [NonFiniteLoss, BadForSome])
def test_windows_with_a_nonfinite_loss_or_gradient_are_found(network, windows):
    numbers = torch.arange(len(windows))
    found = nonfinite_windows(Losses(network()), windows, numbers)
    expected = above_limit()
    assert 0 < len(expected) < len(windows)
    assert found.tolist() == expected.tolist()


def test_finite_windows_are_not_blamed(windows):
    numbers = torch.arange(len(windows))
    assert len(nonfinite_windows(Losses(Linear()), windows, numbers)) == 0
    assert failing_window(Losses(Linear()), windows, numbers) is None


def test_window_on_which_the_network_raises_is_found(windows):
    numbers = torch.arange(len(windows))
    number, error = failing_window(Losses(Raises()), windows, numbers)
    assert number.tolist() == above_limit()[:1].tolist()
    assert str(error) == "too large"


@pytest.mark.parametrize("value", [torch.nan, 1e200])
def test_parameters_that_make_finite_windows_nonfinite_have_diverged(value, windows):
    losses, probes = Losses(Linear()), torch.arange(3)
    assert not has_diverged(losses, windows, probes)
    nn.init.constant_(losses.network.weight, value)
    assert has_diverged(losses, windows, probes)


def test_network_that_raises_on_its_probes_has_diverged(windows):
    assert has_diverged(Losses(Raises()), windows, above_limit())


def test_probe_loss_is_the_mean_of_the_losses(windows):
    losses, probes = Losses(Linear()), torch.arange(3)
    expected = losses(windows.gather(probes)).mean().item()
    assert probe_loss(losses, windows, probes) == pytest.approx(expected)
    assert math.isnan(probe_loss(losses, windows, probes[:0]))


def test_windows_are_named_by_series_and_forecast_start(windows):
    # The first window of the first series has a context of six hours.
    assert name_windows(windows, torch.tensor([0])) == "'s0 from 2021-03-01 06:00:00'"
    assert "no single window" in name_windows(windows, torch.tensor([], dtype=torch.long))
