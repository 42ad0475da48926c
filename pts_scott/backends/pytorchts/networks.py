"""PyTorchTS' own networks of the paper's models, with one loss per window."""

# No postponed annotations here: GluonTS' ``validated`` reads them as types.
from collections.abc import Callable
from typing import Any

from gluonts.core.component import validated
from gluonts.torch.modules.distribution_output import DistributionOutput
from pts.model.n_beats.n_beats_network import NBEATSNetwork as LibraryNBEATS
from pts.model.simple_feedforward import SimpleFeedForwardPredictionNetwork
from pts.modules import StudentTOutput
from torch import Tensor, nn

from pts_scott.backends.point_network import NBEATSHead, observed_mean
from pts_scott.backends.pytorchts.losses import ContextScaler


class SimpleFeedForwardNetwork(SimpleFeedForwardPredictionNetwork):  # type: ignore[misc]
    """PyTorchTS' feed-forward network with one loss per window."""

    @validated()
    def __init__(
        self,
        context_length: int,
        prediction_length: int,
        num_hidden_dimensions: list[int],
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
        """Return the negative log likelihood of each window, over its observed steps."""
        nll = -self.get_distr(past_target).log_prob(future_target)
        return observed_mean(nll, future_observed_values)


class NBEATSNetwork(NBEATSHead):
    """PyTorchTS' N-BEATS with one loss per window."""

    @validated()
    def __init__(
        self,
        context_length: int,
        prediction_length: int,
        periodicity: int,
        num_stacks: int,
        widths: list[int],
        num_blocks: list[int],
        num_block_layers: list[int],
        expansion_coefficient_lengths: list[int],
        stack_types: list[str],
        loss_function: str = "MAPE",
        scaling: bool = True,
    ) -> None:
        super().__init__(periodicity, loss_function, scaling)
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


nbeats: Callable[..., nn.Module] | None = NBEATSNetwork


def simple_feedforward(
    context_length: int,
    prediction_length: int,
    hidden_dimensions: list[int],
    distr_output: Any | None,
    batch_norm: bool,
) -> nn.Module:
    """Return PyTorchTS' own feed-forward network, with one loss per window."""
    return SimpleFeedForwardNetwork(
        context_length=context_length,
        prediction_length=prediction_length,
        num_hidden_dimensions=hidden_dimensions,
        distr_output=distr_output or StudentTOutput(),
        batch_normalization=batch_norm,
    )
