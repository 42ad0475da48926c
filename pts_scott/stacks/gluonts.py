"""The current GluonTS stack: its networks and its predictor."""

from __future__ import annotations

from typing import Any

import torch
from gluonts.model.forecast_generator import SampleForecastGenerator
from gluonts.torch.distributions import StudentTOutput
from gluonts.torch.model.predictor import PyTorchPredictor
from gluonts.torch.model.simple_feedforward import SimpleFeedForwardModel
from gluonts.transform import Transformation
from torch import nn

from pts_scott.networks import NBEATSNetwork

NAME = "gluonts"


class TrainerBase:
    """GluonTS has no trainer class to inherit from."""


def simple_feedforward(
    context_length: int,
    prediction_length: int,
    hidden_dimensions: list[int],
    distr_output: Any | None,
    batch_norm: bool,
) -> nn.Module:
    """GluonTS' own feed-forward network."""
    return SimpleFeedForwardModel(
        prediction_length=prediction_length,
        context_length=context_length,
        hidden_dimensions=hidden_dimensions,
        distr_output=distr_output or StudentTOutput(),
        batch_norm=batch_norm,
    )


def nbeats(**kwargs: Any) -> nn.Module:
    """N-BEATS: GluonTS has none for torch, so it is this package's."""
    return NBEATSNetwork(**kwargs)


def make_predictor(
    network: nn.Module,
    input_names: list[str],
    input_transform: Transformation,
    prediction_length: int,
    freq: str,
    batch_size: int,
    device: torch.device,
) -> PyTorchPredictor:
    """A GluonTS predictor around a trained network."""
    distr_output = getattr(network, "distr_output", None)
    return PyTorchPredictor(
        input_names=input_names,
        prediction_net=network,
        batch_size=batch_size,
        prediction_length=prediction_length,
        input_transform=input_transform,
        forecast_generator=(
            SampleForecastGenerator()
            if distr_output is None
            else distr_output.forecast_generator
        ),
        device=str(device),
    )
