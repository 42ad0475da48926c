"""The PyTorchTS stack: its networks, its predictor, and its trainer's interface."""

# No postponed annotations here: GluonTS' ``validated`` reads them as types.
import warnings
from typing import Any, List, Optional

import torch
from gluonts.core.component import validated
from gluonts.torch.model.predictor import PyTorchPredictor
from gluonts.torch.modules.distribution_output import DistributionOutput
from gluonts.transform import InstanceSplitter, Transformation
from pts import Trainer
from pts.model.n_beats.n_beats_network import NBEATSNetwork as LibraryNBEATS
from pts.model.n_beats.n_beats_network import NBEATSTrainingNetwork
from pts.model.simple_feedforward import (
    SimpleFeedForwardPredictionNetwork,
    SimpleFeedForwardTrainingNetwork,
)
from pts.modules import MeanScaler, StudentTOutput
from torch import Tensor, nn

from pts_scott.errors import WindowLossError
from pts_scott.networks import (
    NBEATSHead,
    context_scale,
    mape_loss,
    mase_loss,
    observed_mean,
    smape_loss,
)
from pts_scott.windows import WindowIndex

NAME = "pytorchts"


class TrainerBase(Trainer):  # type: ignore[misc]
    """What makes a trainer one that PyTorchTS' estimators accept and call."""

    def __init__(self) -> None:
        """Settings are those of ``ScottTrainer``; PyTorchTS' own are not used."""

    def __call__(
        self, net: nn.Module, train_iter: Any, validation_iter: Optional[Any] = None
    ) -> None:
        """Train a network of PyTorchTS' own estimators, in place of their loop.

        Parameters
        ----------
        net
            The training network; SimpleFeedForward's and N-BEATS' can be trained.
        train_iter, validation_iter
            The loaders that the estimator made. Their windows are found again in the
            dataset behind them and gathered as tensors.

        Raises
        ------
        WindowLossError
            If the network gives no loss for each window.
        """
        losses = _window_losses(net)
        validation = None
        if validation_iter is not None:
            validation = _windows_behind(validation_iter).last()
        self.fit(losses, _windows_behind(train_iter), validation)  # type: ignore[attr-defined]


def _windows_behind(loader: Any) -> WindowIndex:
    """The windows that a loader of PyTorchTS draws from."""
    transformed = loader.dataset.transformed_dataset
    splitters = [
        part
        for part in transformed.transformation.transformations
        if isinstance(part, InstanceSplitter)
    ]
    dataset = transformed.base_dataset
    while hasattr(dataset, "iterable"):  # GluonTS' Cached and Cyclic
        dataset = dataset.iterable
    entries = list(dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        freq = entries[0]["start"].freq if entries else None
    # Like GluonTS' samplers, which let a context begin before its series.
    return WindowIndex.from_dataset(
        entries,
        freq,
        splitters[0].past_length,
        splitters[0].future_length,
        context="padded",
    )


def _window_losses(net: nn.Module) -> nn.Module:
    for library, wrapper in _WRAPPERS.items():
        if isinstance(net, library):
            return wrapper(net)
    raise WindowLossError(
        f"{type(net).__name__} returns the mean loss of a batch; the method needs one "
        "loss a window, because strata have weights. Use an estimator of pts_scott, or "
        "call trainer.fit(network, windows) with a network that has "
        "loss(past_target, future_target)."
    )


class _LibraryFeedForward(nn.Module):
    """One loss a window of PyTorchTS' feed-forward training network."""

    def __init__(self, net: SimpleFeedForwardTrainingNetwork) -> None:
        super().__init__()
        self.net = net

    def loss(self, past_target: Tensor, future_target: Tensor) -> Tensor:
        # As its get_distr, but a context of zeros does not borrow the batch's scale.
        scale = context_scale(past_target, torch.ones_like(past_target))
        if not self.net.mean_scaling:
            scale = torch.ones_like(scale)
        args = self.net.distr_args_proj(self.net.mlp(past_target / scale))
        distribution = self.net.distr_output.distribution(args, scale=scale)
        return -distribution.log_prob(future_target).mean(dim=1)


class _LibraryNBEATS(nn.Module):
    """One loss a window of PyTorchTS' N-BEATS training network."""

    def __init__(self, net: NBEATSTrainingNetwork) -> None:
        super().__init__()
        self.net = net

    def loss(self, past_target: Tensor, future_target: Tensor) -> Tensor:
        forecast = LibraryNBEATS.forward(self.net, past_target)
        observed = torch.ones_like(future_target)
        if self.net.loss_function == "MAPE":
            return mape_loss(forecast, future_target, observed)
        if self.net.loss_function == "sMAPE":
            return smape_loss(forecast, future_target, observed)
        past = torch.ones_like(past_target)
        period = self.net.periodicity
        return mase_loss(forecast, future_target, observed, past_target, past, period)


_WRAPPERS = {
    SimpleFeedForwardTrainingNetwork: _LibraryFeedForward,
    NBEATSTrainingNetwork: _LibraryNBEATS,
}


class ContextScaler(MeanScaler):  # type: ignore[misc]
    """PyTorchTS' mean scaler, but a context of zeros does not borrow its neighbours'."""

    def compute_scale(self, data: Tensor, observed_indicator: Tensor) -> Tensor:
        return context_scale(data, observed_indicator).squeeze(1)


class SimpleFeedForwardNetwork(SimpleFeedForwardPredictionNetwork):  # type: ignore[misc]
    """PyTorchTS' feed-forward network with one loss a window."""

    @validated()
    def __init__(
        self,
        context_length: int,
        prediction_length: int,
        num_hidden_dimensions: List[int],
        distr_output: DistributionOutput,
        batch_normalization: bool,
        num_parallel_samples: int = 100,
    ) -> None:
        super().__init__(
            num_parallel_samples=num_parallel_samples,
            num_hidden_dimensions=num_hidden_dimensions,
            prediction_length=prediction_length,
            context_length=context_length,
            batch_normalization=batch_normalization,
            mean_scaling=True,
            distr_output=distr_output,
        )
        self.scaler = ContextScaler()

    def loss(
        self, past_target: Tensor, future_target: Tensor, future_observed_values: Tensor
    ) -> Tensor:
        """Negative log likelihood of each window, over its observed steps."""
        nll = -self.get_distr(past_target).log_prob(future_target)
        return observed_mean(nll, future_observed_values)


class NBEATSNetwork(NBEATSHead):
    """PyTorchTS' N-BEATS with one loss a window."""

    @validated()
    def __init__(
        self,
        context_length: int,
        prediction_length: int,
        periodicity: int,
        num_stacks: int,
        widths: List[int],
        num_blocks: List[int],
        num_block_layers: List[int],
        expansion_coefficient_lengths: List[int],
        stack_types: List[str],
        loss_function: str = "MAPE",
        scaling: bool = True,
    ) -> None:
        super().__init__()
        self.periodicity = periodicity
        self.loss_function = loss_function
        self.scaling = scaling
        self.network = LibraryNBEATS(
            prediction_length=prediction_length,
            context_length=context_length,
            num_stacks=num_stacks,
            widths=widths,
            num_blocks=num_blocks,
            num_block_layers=num_block_layers,
            expansion_coefficient_lengths=expansion_coefficient_lengths,
            sharing=[False] * num_stacks,
            stack_types=stack_types,
        )

    def predict(self, context: Tensor) -> Tensor:
        forecast: Tensor = self.network(context)
        return forecast


def simple_feedforward(
    context_length: int,
    prediction_length: int,
    hidden_dimensions: List[int],
    distr_output: Optional[Any],
    batch_norm: bool,
) -> nn.Module:
    """PyTorchTS' own feed-forward network."""
    return SimpleFeedForwardNetwork(
        context_length=context_length,
        prediction_length=prediction_length,
        num_hidden_dimensions=hidden_dimensions,
        distr_output=distr_output or StudentTOutput(),
        batch_normalization=batch_norm,
    )


def nbeats(**kwargs: Any) -> nn.Module:
    """PyTorchTS' own N-BEATS."""
    return NBEATSNetwork(**kwargs)


def make_predictor(
    network: nn.Module,
    input_names: List[str],
    input_transform: Transformation,
    prediction_length: int,
    freq: str,
    batch_size: int,
    device: torch.device,
) -> PyTorchPredictor:
    """A GluonTS 0.9 predictor around a trained network."""
    return PyTorchPredictor(
        input_names=input_names,
        prediction_net=network,
        batch_size=batch_size,
        prediction_length=prediction_length,
        freq=freq,
        input_transform=input_transform,
        device=device,
    )
