"""GluonTS predictors: made from trained networks, and completed after deserialisation."""

from __future__ import annotations

import torch
from gluonts.model.forecast_generator import SampleForecastGenerator
from gluonts.torch.model.predictor import PyTorchPredictor
from gluonts.transform import Transformation
from torch import nn

from pts_scott.backends.gluonts.losses import mark_initialized

PREDICTOR: type = PyTorchPredictor


def make_predictor(
    network: nn.Module,
    input_names: list[str],
    input_transform: Transformation,
    prediction_length: int,
    freq: str,
    batch_size: int,
    device: torch.device,
) -> PyTorchPredictor:
    """Return a GluonTS predictor of a trained network."""
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
        # "auto" is CUDA where there is CUDA: the files can be loaded on other machines.
        device="auto" if str(device) == "cuda" else str(device),
    )


def restore_predictor(predictor: PyTorchPredictor) -> PyTorchPredictor:
    """Mark the layers of a deserialised predictor as initialised."""
    mark_initialized(predictor.network)
    return predictor
