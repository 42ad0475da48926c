"""GluonTS' own networks of the paper's models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluonts.torch.distributions import StudentTOutput
from gluonts.torch.model.simple_feedforward import SimpleFeedForwardModel
from torch import nn

nbeats: Callable[..., nn.Module] | None = None


def simple_feedforward(
    context_length: int,
    prediction_length: int,
    hidden_dimensions: list[int],
    distr_output: Any | None,
    batch_norm: bool,
) -> nn.Module:
    """Return GluonTS' own feed-forward network."""
    return SimpleFeedForwardModel(
        prediction_length=prediction_length,
        context_length=context_length,
        hidden_dimensions=hidden_dimensions,
        distr_output=distr_output or StudentTOutput(),
        batch_norm=batch_norm,
    )
