"""Point forecasts with one loss per window: scaling, losses and base classes.

A library's network is wrapped in these classes where it has no loss per window. Each
window is scaled by the mean of its own context only, so neither its forecast nor its loss
depends on the other windows of a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

POINT_LOSSES = ("MAPE", "sMAPE", "MASE")


def context_scale(past_target: Tensor, past_observed_values: Tensor) -> Tensor:
    """Return the mean of |context| over its observed steps, as (M, 1) or (M, 1, D).

    A context of zeros, or without an observed step, has scale 1.
    """
    count = past_observed_values.sum(dim=1, keepdim=True).clamp(min=1)
    scale = (past_target.abs() * past_observed_values).sum(dim=1, keepdim=True) / count
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def observed_mean(values: Tensor, observed: Tensor) -> Tensor:
    """Average the observed values of each window; 0 where nothing is observed."""
    values = torch.where(observed > 0, values, torch.zeros_like(values))
    count = observed.flatten(1).sum(dim=1).clamp(min=1)
    return values.flatten(1).sum(dim=1) / count


def mape_loss(forecast: Tensor, future_target: Tensor, observed: Tensor) -> Tensor:
    """Return the MAPE of each window as PyTorchTS defines it; targets of 0 count as 0."""
    error = (future_target - forecast).abs()
    return _percentage(error, future_target.abs(), observed, 100)


def smape_loss(forecast: Tensor, future_target: Tensor, observed: Tensor) -> Tensor:
    """Return the sMAPE of each window as PyTorchTS defines it."""
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
    """Return the absolute error over the seasonal naive error of the window's context.

    PyTorchTS takes the seasonal error over context and future, and divides it once more
    by the number of steps; here the future does not enter the scale of the loss. A
    context without seasonal error has scale 1.
    """
    both = past_observed_values[:, periodicity:] * past_observed_values[:, :-periodicity]
    change = (past_target[:, periodicity:] - past_target[:, :-periodicity]).abs()
    scale = observed_mean(change, both)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return observed_mean((future_target - forecast).abs(), observed) / scale


class PointNetwork(nn.Module):
    """Base of networks that forecast one value per step and are trained with MSE.

    Parameters
    ----------
    scaling
        Divide each window by the mean of its own context before the network and
        multiply the forecast by it.
    """

    def __init__(self, scaling: bool) -> None:
        super().__init__()
        self.scaling = scaling

    def predict(self, context: Tensor) -> Tensor:
        """Map scaled contexts (M, C[, D]) to scaled forecasts (M, P[, D])."""
        raise NotImplementedError

    def scale(self, past_target: Tensor, past_observed_values: Tensor) -> Tensor:
        """Return the scale of each window; 1 if scaling is off."""
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
        """Return the mean squared error of each window, in units of its scale."""
        scale = self.scale(past_target, past_observed_values)
        error = self.predict(past_target / scale) - future_target / scale
        return observed_mean(error.square(), future_observed_values)


class NBEATSHead(PointNetwork):
    """Scaling and losses of N-BEATS; subclasses provide the blocks.

    Parameters
    ----------
    periodicity
        Steps of one season, for MASE.
    loss_function
        "MAPE", "sMAPE" or "MASE".
    scaling
        See `PointNetwork`.
    """

    def __init__(self, periodicity: int, loss_function: str, scaling: bool) -> None:
        super().__init__(scaling)
        self.periodicity = periodicity
        self.loss_function = loss_function

    def loss(
        self,
        past_target: Tensor,
        past_observed_values: Tensor,
        future_target: Tensor,
        future_observed_values: Tensor,
    ) -> Tensor:
        """Return the MAPE, sMAPE or MASE of each window."""
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
