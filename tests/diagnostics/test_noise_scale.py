"""The noise scale: equal to σ²/‖μ‖² on linear models, with a range that contains it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.series import wave_windows
from torch import Tensor, nn

from pts_scott.diagnostics.gradient_sketches import GradientSketches
from pts_scott.diagnostics.noise_scale import NoiseScale, rounded
from pts_scott.engine.losses import Losses


class Linear(nn.Module):
    """future ≈ past·W, with the squared error as loss; W is constant, 0.1 everywhere."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.map = nn.Linear(inputs, outputs, bias=False, dtype=torch.float64)
        self.inputs, self.outputs = inputs, outputs
        nn.init.constant_(self.map.weight, 0.1)

    def loss(self, past_target: Tensor, future_target: Tensor) -> Tensor:
        forecast = self.map(past_target[:, -self.inputs :])
        return (forecast - future_target[:, : self.outputs]).square().sum(dim=1)


def gradients_by_hand(inputs: int, outputs: int) -> np.ndarray:
    """Return ∂(x·W − y)²/∂W = 2(x·W − y)xᵀ of all wave windows, one per row."""
    windows = wave_windows()
    batch = windows.gather(torch.arange(len(windows)))
    x = batch["past_target"][:, -inputs:].numpy()
    y = batch["future_target"][:, :outputs].numpy()
    error = 0.1 * x.sum(axis=1, keepdims=True) - y
    return (2 * error[:, :, None] * x[:, None, :]).reshape(len(windows), -1)


def exact_noise_scale(gradients: np.ndarray) -> float:
    mean = gradients.mean(axis=0)
    return float(((gradients - mean) ** 2).sum(axis=1).mean() / (mean**2).sum())


def measured(network: nn.Module, seed: int = 0) -> NoiseScale:
    windows = wave_windows()
    sketches = GradientSketches(Losses(network), seed, dimensions=512)
    return NoiseScale.of(sketches(windows, torch.arange(len(windows))))


def test_noise_scale_of_one_parameter_is_exact():
    # A sketch of one number has its square, so only the sample can differ from all
    # windows: n of them estimate σ² with n − 1, and ‖μ‖² without σ²/n. Both change the
    # ratio by about (1 + S)/n.
    gradients = gradients_by_hand(1, 1)
    expected = exact_noise_scale(gradients)
    found = measured(Linear(1, 1))
    assert found.value == pytest.approx(expected, rel=2 * (1 + expected) / len(gradients))
    assert found.low < expected < found.high


def test_noise_scale_of_a_linear_model_is_right_on_average_over_sketches():
    expected = exact_noise_scale(gradients_by_hand(6, 2))
    # The standard error of ‖sketch‖² is at most √(8/512) = 0.125 of it, and that of the
    # mean of 20 at most 0.028; the sample adds less than 0.05, see above.
    found = [measured(Linear(6, 2), seed) for seed in range(20)]
    inverse = np.mean([1 / scale.value for scale in found])
    assert inverse == pytest.approx(1 / expected, rel=0.15)
    # Two standard errors: about one in twenty may miss.
    assert sum(scale.low < expected < scale.high for scale in found) >= 18


def test_range_contains_the_truth_for_drawn_windows():
    generator = torch.Generator().manual_seed(0)
    mean = torch.full((40,), 0.1, dtype=torch.float64)  # σ² = 40, ‖μ‖² = 0.4
    inside = 0
    for _ in range(50):
        rows = torch.randn(2000, 40, generator=generator, dtype=torch.float64) + mean
        scale = NoiseScale.of(rows)
        inside += scale.low < 100 < scale.high
    assert inside >= 45  # of 50, where 95 % or more are expected


def test_mean_gradient_that_is_noise_has_an_infinite_upper_end():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 40, generator=generator, dtype=torch.float64)
    scale = NoiseScale.of(rows)
    assert math.isinf(scale.high)
    assert scale.low > 100
    assert str(scale).startswith("above ")


def test_zero_gradients_have_no_noise_scale():
    scale = NoiseScale.of(torch.zeros(10, 4, dtype=torch.float64))
    assert math.isnan(scale.value)
    assert str(scale) == "unknown"


@pytest.mark.parametrize(
    ("value", "text"),
    [(412.3, "410"), (12345.0, "12,000"), (5.02, "5.0"), (0.0381, "0.038"), (0.0, "0")],
)
def test_numbers_have_two_digits(value, text):
    assert rounded(value) == text
