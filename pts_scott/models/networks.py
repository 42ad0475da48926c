"""Networks that both stacks share: VAR, LSTM, and the head of N-BEATS.

Each has ``forward``, which gives one forecast for each window as a sample path,
and ``loss``, which gives one loss for each window. A window is scaled by the mean
of its own context and by nothing else, so neither depends on its neighbours.
"""

import torch
from gluonts.core.component import validated
from torch import Tensor, nn

POINT_LOSSES = ("MAPE", "sMAPE", "MASE")


def context_scale(past_target: Tensor, past_observed_values: Tensor) -> Tensor:
    """Mean of |context| over its observed steps, kept as a step: (M, 1) or (M, 1, D).

    A context of zeros, or without an observed step, has scale 1.
    """
    count = past_observed_values.sum(dim=1, keepdim=True).clamp(min=1)
    scale = (past_target.abs() * past_observed_values).sum(dim=1, keepdim=True) / count
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def observed_mean(values: Tensor, observed: Tensor) -> Tensor:
    """Mean over all but the first dimension of what is observed; 0 where nothing is."""
    values = torch.where(observed > 0, values, torch.zeros_like(values))
    count = observed.flatten(1).sum(dim=1).clamp(min=1)
    return values.flatten(1).sum(dim=1) / count


def mape_loss(forecast: Tensor, future_target: Tensor, observed: Tensor) -> Tensor:
    """MAPE of each window as PyTorchTS defines it; steps with target 0 count as 0."""
    error = (future_target - forecast).abs()
    return _percentage(error, future_target.abs(), observed, 100)


def smape_loss(forecast: Tensor, future_target: Tensor, observed: Tensor) -> Tensor:
    """SMAPE of each window as PyTorchTS defines it."""
    error = (future_target - forecast).abs()
    base = (future_target.abs() + forecast.abs()).detach()
    return _percentage(error, base, observed, 200)


def _percentage(error: Tensor, base: Tensor, observed: Tensor, factor: float) -> Tensor:
    zero = base == 0
    ratio = torch.where(zero, torch.zeros_like(error), error / torch.where(zero, 1, base))
    return factor / error.shape[1] * observed_mean(ratio, observed)


def mase_loss(
    forecast: Tensor,
    future_target: Tensor,
    observed: Tensor,
    past_target: Tensor,
    past_observed_values: Tensor,
    periodicity: int,
) -> Tensor:
    """Absolute error over the seasonal naive error of the window's own context.

    PyTorchTS takes the seasonal error over context and future, and divides it once more
    by the number of steps; the future does not belong into the scale of a loss. A
    context without seasonal error has scale 1.
    """
    both = past_observed_values[:, periodicity:] * past_observed_values[:, :-periodicity]
    change = (past_target[:, periodicity:] - past_target[:, :-periodicity]).abs()
    scale = observed_mean(change, both)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return observed_mean((future_target - forecast).abs(), observed) / scale


class PointNetwork(nn.Module):
    """Base of networks that forecast one value a step and are trained with MSE."""

    scaling: bool

    def predict(self, context: Tensor) -> Tensor:
        """From scaled contexts (M, C[, D]) to scaled forecasts (M, P[, D])."""
        raise NotImplementedError

    def scale(self, past_target: Tensor, past_observed_values: Tensor) -> Tensor:
        """The scale of each window; 1 if scaling is off."""
        if self.scaling:
            return context_scale(past_target, past_observed_values)
        return torch.ones_like(past_target[:, :1])

    def forward(self, past_target: Tensor, past_observed_values: Tensor) -> Tensor:
        scale = self.scale(past_target, past_observed_values)
        return (self.predict(past_target / scale) * scale).unsqueeze(1)

    def loss(
        self,
        past_target: Tensor,
        past_observed_values: Tensor,
        future_target: Tensor,
        future_observed_values: Tensor,
    ) -> Tensor:
        """Mean squared error of each window, in units of its scale."""
        scale = self.scale(past_target, past_observed_values)
        error = self.predict(past_target / scale) - future_target / scale
        return observed_mean(error.square(), future_observed_values)


class VARNetwork(PointNetwork):
    """A linear map from context to prediction range.

    Univariate series share it; a multivariate target gets the full matrix from all
    dimensions of the context to all of the prediction.
    """

    @validated()
    def __init__(
        self,
        context_length: int,
        prediction_length: int,
        dimensions: int | None = None,
        scaling: bool = True,
    ) -> None:
        super().__init__()
        self.prediction_length = prediction_length
        self.dimensions = dimensions
        self.scaling = scaling
        width = dimensions or 1
        self.linear = nn.Linear(context_length * width, prediction_length * width)

    def predict(self, context: Tensor) -> Tensor:
        forecast: Tensor = self.linear(context.flatten(1))
        if self.dimensions is None:
            return forecast
        return forecast.unflatten(1, (self.prediction_length, self.dimensions))


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
        super().__init__()
        self.prediction_length = prediction_length
        self.dimensions = dimensions
        self.scaling = scaling
        width = dimensions or 1
        self.lstm = nn.LSTM(
            width, hidden_size, num_layers, batch_first=True, dropout=dropout
        )
        self.output = nn.Linear(hidden_size, prediction_length * width)

    def predict(self, context: Tensor) -> Tensor:
        # (M, C) gets a last dimension of one; the batch stays first throughout.
        steps = context.unsqueeze(-1) if self.dimensions is None else context
        states, _ = self.lstm(steps)
        forecast: Tensor = self.output(states[:, -1])
        if self.dimensions is None:
            return forecast
        return forecast.unflatten(1, (self.prediction_length, self.dimensions))


class NBEATSHead(PointNetwork):
    """Scaling and losses of N-BEATS around the blocks that a stack provides."""

    loss_function: str
    periodicity: int

    def loss(
        self,
        past_target: Tensor,
        past_observed_values: Tensor,
        future_target: Tensor,
        future_observed_values: Tensor,
    ) -> Tensor:
        """MAPE, sMAPE or MASE of each window."""
        scale = self.scale(past_target, past_observed_values)
        forecast = self.predict(past_target / scale) * scale
        if self.loss_function == "MAPE":
            return mape_loss(forecast, future_target, future_observed_values)
        if self.loss_function == "sMAPE":
            return smape_loss(forecast, future_target, future_observed_values)
        return mase_loss(
            forecast,
            future_target,
            future_observed_values,
            past_target,
            past_observed_values,
            self.periodicity,
        )


class NBEATSBlock(nn.Module):
    """One block: a stack of layers, then an expansion of backcast and forecast.

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
    """Rows of polynomials or harmonics over context and prediction range."""
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
    """N-BEATS for stacks that have none of their own: residual blocks, summed up."""

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
        super().__init__()
        self.periodicity = periodicity
        self.loss_function = loss_function
        self.scaling = scaling
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
