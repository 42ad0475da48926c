"""The PyTorchTS stack: its networks, its predictor, and its trainer's interface."""

# No postponed annotations here: GluonTS' ``validated`` reads them as types.
from typing import Any, List, Optional

import torch
from gluonts.core.component import validated
from gluonts.torch.model.predictor import PyTorchPredictor
from gluonts.torch.modules.distribution_output import DistributionOutput
from gluonts.transform import Transformation
from pts import Trainer
from pts.model.n_beats.n_beats_network import NBEATSNetwork as LibraryNBEATS
from pts.model.simple_feedforward import SimpleFeedForwardPredictionNetwork
from pts.modules import MeanScaler, StudentTOutput
from torch import Tensor, nn

from pts_scott.errors import WindowLossError
from pts_scott.networks import NBEATSHead, context_scale, observed_mean

NAME = "pytorchts"


class TrainerBase(Trainer):  # type: ignore[misc]
    """What makes a trainer one that PyTorchTS' estimators accept and call."""

    def __init__(self) -> None:
        """Settings are those of ``ScottTrainer``; PyTorchTS' own are not used."""

    def __call__(
        self, net: nn.Module, train_iter: Any, validation_iter: Any | None = None
    ) -> None:
        """Called by PyTorchTS' own estimators, whose networks return a batch's mean.

        Raises
        ------
        WindowLossError
            Always: strata have weights, which a mean over the batch cannot carry.
        """
        raise WindowLossError(
            f"{type(net).__name__} returns the mean loss of a batch, and the method "
            "needs one loss a window. Use the estimators of pts_scott "
            "(SimpleFeedForwardEstimator, NBEATSEstimator, LSTMEstimator, VAREstimator), "
            "which train the same networks, or call trainer.fit(network, windows) with "
            "a network that has loss(past_target, future_target)."
        )


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
