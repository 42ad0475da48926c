"""Networks of this package: VAR, LSTM, and N-BEATS for backends without one.

Each has ``forward``, which returns one forecast per window as a sample path, and
``loss``, which returns one loss per window.
"""

# No postponed annotations here: GluonTS' ``validated`` reads them as types.
from typing import Any

import torch
from gluonts.core.component import validated
from torch import Tensor, nn

from pts_scott.backends import backend
from pts_scott.backends.point_network import NBEATSHead, PointNetwork


class VARNetwork(PointNetwork):
    """A linear map from context to prediction range.

    Univariate series share it; for a multivariate target it is the full matrix from all
    dimensions of the context to all dimensions of the prediction range.
    """

    @validated()
    def __init__(
        self,
        context_length: int,
        prediction_length: int,
        dimensions: int | None = None,
        scaling: bool = True,
    ) -> None:
        super().__init__(scaling)
        self.prediction_length = prediction_length
        self.dimensions = dimensions
        width = dimensions or 1
        self.linear = nn.Linear(context_length * width, prediction_length * width)

    def predict(self, context: Tensor) -> Tensor:
        return _split_dimensions(self.linear(context.flatten(1)), self.dimensions)


class LSTMNetwork(PointNetwork):
    """An LSTM over the context; its last state is mapped to the prediction range."""

    @validated()
    def __init__(
        self,
        prediction_length: int,
        dimensions: int | None = None,
        hidden_size: int = 100,
        num_layers: int = 2,
        dropout: float = 0.0,
        scaling: bool = True,
    ) -> None:
        super().__init__(scaling)
        self.prediction_length = prediction_length
        self.dimensions = dimensions
        width = dimensions or 1
        self.lstm = nn.LSTM(
            width, hidden_size, num_layers, batch_first=True, dropout=dropout
        )
        self.output = nn.Linear(hidden_size, prediction_length * width)

    def predict(self, context: Tensor) -> Tensor:
        # (M, C) gets a last dimension of one; the batch stays first throughout.
        steps = context.unsqueeze(-1) if self.dimensions is None else context
        states, _ = self.lstm(steps)
        return _split_dimensions(self.output(states[:, -1]), self.dimensions)


def _split_dimensions(forecast: Tensor, dimensions: int | None) -> Tensor:
    """Reshape forecasts of shape (M, P·D) to (M, P, D); univariate ones stay (M, P)."""
    if dimensions is None:
        return forecast
    return forecast.unflatten(1, (-1, dimensions))


class NBEATSBlock(nn.Module):
    """One block of N-BEATS: layers, then an expansion of backcast and forecast.

    Parameters
    ----------
    kind
        "G" learns the basis of the expansion; "T" uses polynomials, "S" harmonics.
    """

    def __init__(
        self,
        kind: str,
        context_length: int,
        prediction_length: int,
        width: int,
        num_layers: int,
        expansion: int,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(context_length, width), nn.ReLU()]
        for _ in range(num_layers - 1):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.kind = kind
        self.context_length = context_length
        if kind == "G":
            self.theta = nn.Linear(width, 2 * expansion, bias=False)
            self.backcast = nn.Linear(expansion, context_length)
            self.forecast = nn.Linear(expansion, prediction_length)
        else:
            basis = _basis(kind, context_length, prediction_length, expansion)
            self.theta = nn.Linear(width, len(basis), bias=False)
            self.register_buffer("basis", basis)

    def forward(self, context: Tensor) -> "tuple[Tensor, Tensor]":
        theta = self.theta(self.layers(context))
        if self.kind == "G":
            back, fore = torch.relu(theta).chunk(2, dim=1)
            return self.backcast(back), self.forecast(fore)
        both = theta @ self.basis
        return both[:, : self.context_length], both[:, self.context_length :]


def _basis(kind: str, context_length: int, prediction_length: int, size: int) -> Tensor:
    """Return polynomials or harmonics over context and prediction range as rows."""
    time = torch.arange(-context_length, prediction_length, dtype=torch.float64)
    if kind == "T":
        time = time / max(context_length, prediction_length)
        rows = [time**power for power in range(size)]
    else:
        time = time / prediction_length
        half = max(prediction_length // 2, 1)
        angles = [2 * torch.pi * k * time for k in range(half)]
        rows = [torch.cos(a) for a in angles] + [torch.sin(a) for a in angles]
    return torch.stack(rows).float()


class NBEATSNetwork(NBEATSHead):
    """N-BEATS for backends without one: the sum of residual blocks."""

    @validated()
    def __init__(
        self,
        context_length: int,
        prediction_length: int,
        periodicity: int,
        num_stacks: int = 30,
        widths: list[int] | None = None,
        num_blocks: list[int] | None = None,
        num_block_layers: list[int] | None = None,
        expansion_coefficient_lengths: list[int] | None = None,
        stack_types: list[str] | None = None,
        loss_function: str = "MAPE",
        scaling: bool = True,
    ) -> None:
        super().__init__(periodicity, loss_function, scaling)
        widths = widths or [512] * num_stacks
        num_blocks = num_blocks or [1] * num_stacks
        num_block_layers = num_block_layers or [4] * num_stacks
        expansions = expansion_coefficient_lengths or [32] * num_stacks
        kinds = stack_types or ["G"] * num_stacks
        self.blocks = nn.ModuleList(
            NBEATSBlock(
                kinds[stack],
                context_length,
                prediction_length,
                widths[stack],
                num_block_layers[stack],
                expansions[stack],
            )
            for stack in range(num_stacks)
            for _ in range(num_blocks[stack])
        )

    def predict(self, context: Tensor) -> Tensor:
        residual, total = context, None
        for block in self.blocks:
            backcast, forecast = block(residual)
            residual = residual - backcast
            total = forecast if total is None else total + forecast
        assert total is not None
        return total


def nbeats_network(**arguments: Any) -> nn.Module:
    """Return the backend's own N-BEATS, or this package's if the backend has none.

    Parameters
    ----------
    **arguments
        As for `NBEATSNetwork`.
    """
    make = NBEATSNetwork if backend.nbeats is None else backend.nbeats
    return make(**arguments)
