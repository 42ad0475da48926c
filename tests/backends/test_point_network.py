"""Scales and point losses of windows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pts_scott.backends.point_network import (
    context_scale,
    mape_loss,
    mase_loss,
    smape_loss,
)


def test_scale_is_the_mean_of_the_observed_context():
    past = torch.tensor([[1.0, -3.0, 0.0], [0.0, 0.0, 0.0]])
    observed = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    assert context_scale(past, observed).tolist() == [[2.0], [1.0]]


def test_point_losses_equal_values_computed_by_hand():
    forecast = torch.tensor([[1.0, 2.0, 4.0]])
    future = torch.tensor([[2.0, 0.0, 5.0]])
    ones = torch.ones(1, 3)
    # As in PyTorchTS, with its factor 1/P before the mean over P.
    assert float(mape_loss(forecast, future, ones)) == pytest.approx(
        100 / 3 * (1 / 2 + 0 + 1 / 5) / 3
    )
    assert float(smape_loss(forecast, future, ones)) == pytest.approx(
        200 / 3 * (1 / 3 + 2 / 2 + 1 / 9) / 3
    )
    past = torch.tensor([[1.0, 3.0, 2.0, 7.0]])
    scale = np.mean([1, 4])  # |2 − 1|, |7 − 3|
    value = float(mase_loss(forecast, future, ones, past, torch.ones(1, 4), 2))
    assert value == pytest.approx((1 + 2 + 1) / 3 / scale)
