"""Estimators of the paper's four models, with the same arguments on both backends."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

from gluonts.time_feature import get_seasonality
from torch import nn

from pts_scott._utils.arguments import (
    named_arguments,
    one_of,
    real_number,
    switch,
    whole_number,
    whole_numbers,
)
from pts_scott.backends import backend
from pts_scott.backends.point_network import POINT_LOSSES
from pts_scott.errors import ArgumentError
from pts_scott.models.estimator import ScottEstimator
from pts_scott.models.networks import LSTMNetwork, VARNetwork, nbeats_network
from pts_scott.training.trainer import ScottTrainer


class SimpleFeedForwardEstimator(ScottEstimator):
    """The backend's own feed-forward network, trained by negative log likelihood.

    Parameters
    ----------
    freq, prediction_length, context_length, trainer, stride, context
        See `ScottEstimator`.
    hidden_dimensions
        Sizes of the hidden layers; None for the paper's four of 80.
    distr_output
        Distribution to fit, of the backend's own classes; None for Student's t.
    batch_norm
        Whether the network has BatchNorm, with which training is refused.
    """

    input_names = ("past_target",)

    @named_arguments
    def __init__(
        self,
        freq: str,
        prediction_length: int,
        context_length: int | None = None,
        trainer: ScottTrainer | None = None,
        hidden_dimensions: Sequence[int] | None = None,
        distr_output: Any | None = None,
        batch_norm: bool = False,
        stride: int = 1,
        context: str = "full",
    ) -> None:
        super().__init__(
            freq, prediction_length, context_length, trainer, stride, context
        )
        sizes = [80] * 4 if hidden_dimensions is None else hidden_dimensions
        self.hidden_dimensions = whole_numbers("hidden_dimensions", sizes)
        self.distr_output = distr_output
        self.batch_norm = switch("batch_norm", batch_norm)

    def create_network(self, dimensions: int | None) -> nn.Module:
        return backend.simple_feedforward(
            self.context_length,
            self.prediction_length,
            self.hidden_dimensions,
            self.distr_output,
            self.batch_norm,
        )


class NBEATSEstimator(ScottEstimator):
    """N-BEATS, trained by MAPE, sMAPE or MASE; PyTorchTS' own network on PyTorchTS.

    Parameters
    ----------
    freq, prediction_length, context_length, trainer, stride, context
        See `ScottEstimator`.
    num_stacks
        Number of stacks.
    widths
        Width of the layers; like the next four, one for each stack, or one for all.
    num_blocks
        Number of blocks.
    num_block_layers
        Layers per block.
    expansion_coefficient_lengths
        Length of the expansion.
    stack_types
        "G" generic, "T" trend or "S" seasonal.
    loss_function
        "MAPE", "sMAPE" or "MASE".
    scaling
        Divide each window by the mean of its own context before the network and
        multiply the forecast by it. False is PyTorchTS' own behaviour.
    """

    @named_arguments
    def __init__(
        self,
        freq: str,
        prediction_length: int,
        context_length: int | None = None,
        trainer: ScottTrainer | None = None,
        num_stacks: int = 30,
        widths: Sequence[int] | int = 512,
        num_blocks: Sequence[int] | int = 1,
        num_block_layers: Sequence[int] | int = 4,
        expansion_coefficient_lengths: Sequence[int] | int = 32,
        stack_types: Sequence[str] | str = "G",
        loss_function: str = "MAPE",
        scaling: bool = True,
        stride: int = 1,
        context: str = "full",
    ) -> None:
        super().__init__(
            freq, prediction_length, context_length, trainer, stride, context
        )
        self.num_stacks = whole_number("num_stacks", num_stacks)
        sizes = {
            "widths": widths,
            "num_blocks": num_blocks,
            "num_block_layers": num_block_layers,
            "expansion_coefficient_lengths": expansion_coefficient_lengths,
        }
        self.sizes = {
            name: [whole_number(name, n) for n in self._per_stack(name, value)]
            for name, value in sizes.items()
        }
        self.stack_types = [
            one_of("stack_types", kind, ("G", "T", "S"))
            for kind in self._per_stack("stack_types", stack_types)
        ]
        self.loss_function = one_of("loss_function", loss_function, POINT_LOSSES)
        self.scaling = switch("scaling", scaling)
        self.periodicity = get_seasonality(freq)
        if loss_function == "MASE" and self.periodicity >= self.context_length:
            raise ArgumentError(
                f"loss_function='MASE' compares with the value {self.periodicity} steps "
                f"earlier, but context_length is {self.context_length}; make it longer "
                f"than {self.periodicity}."
            )

    def _per_stack(self, name: str, value: Any) -> list[Any]:
        single = isinstance(value, str | numbers.Number)
        values = [value] if single else list(value)
        values = values * self.num_stacks if len(values) == 1 else values
        if len(values) != self.num_stacks:
            raise ArgumentError(
                f"{name} has {len(values)} values for {self.num_stacks} stacks; give one "
                "for each stack, or one for all."
            )
        return values

    def create_network(self, dimensions: int | None) -> nn.Module:
        return nbeats_network(
            context_length=self.context_length,
            prediction_length=self.prediction_length,
            periodicity=self.periodicity,
            num_stacks=self.num_stacks,
            **self.sizes,
            stack_types=self.stack_types,
            loss_function=self.loss_function,
            scaling=self.scaling,
        )


class LSTMEstimator(ScottEstimator):
    """An LSTM over the context, trained by mean squared error.

    Parameters
    ----------
    freq, prediction_length, context_length, trainer, stride, context
        See `ScottEstimator`.
    hidden_size
        Size of each layer.
    num_layers
        Number of LSTM layers.
    dropout
        Dropout between the layers; both passes of an inner step use the same mask.
    scaling
        Divide each window by the mean of its own context.
    """

    multivariate = True

    @named_arguments
    def __init__(
        self,
        freq: str,
        prediction_length: int,
        context_length: int | None = None,
        trainer: ScottTrainer | None = None,
        hidden_size: int = 100,
        num_layers: int = 2,
        dropout: float = 0.0,
        scaling: bool = True,
        stride: int = 1,
        context: str = "full",
    ) -> None:
        super().__init__(
            freq, prediction_length, context_length, trainer, stride, context
        )
        self.hidden_size = whole_number("hidden_size", hidden_size)
        self.num_layers = whole_number("num_layers", num_layers)
        self.dropout = real_number("dropout", dropout, maximum=1.0)
        self.scaling = switch("scaling", scaling)

    def create_network(self, dimensions: int | None) -> nn.Module:
        return LSTMNetwork(
            prediction_length=self.prediction_length,
            dimensions=dimensions,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            dropout=self.dropout,
            scaling=self.scaling,
        )


class VAREstimator(ScottEstimator):
    """A linear map from context to prediction, trained by mean squared error.

    Parameters
    ----------
    freq, prediction_length, context_length, trainer, stride, context
        See `ScottEstimator`.
    scaling
        Divide each window by the mean of its own context.
    """

    multivariate = True

    @named_arguments
    def __init__(
        self,
        freq: str,
        prediction_length: int,
        context_length: int | None = None,
        trainer: ScottTrainer | None = None,
        scaling: bool = True,
        stride: int = 1,
        context: str = "full",
    ) -> None:
        super().__init__(
            freq, prediction_length, context_length, trainer, stride, context
        )
        self.scaling = switch("scaling", scaling)

    def create_network(self, dimensions: int | None) -> nn.Module:
        return VARNetwork(
            context_length=self.context_length,
            prediction_length=self.prediction_length,
            dimensions=dimensions,
            scaling=self.scaling,
        )
