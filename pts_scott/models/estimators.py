"""Estimators: the paper's four models, with the same arguments on both stacks."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
from gluonts.dataset.common import Dataset
from gluonts.model.estimator import Estimator
from gluonts.model.predictor import Predictor
from gluonts.time_feature import get_seasonality
from gluonts.transform import (
    AddObservedValuesIndicator,
    AsNumpyArray,
    Chain,
    InstanceSplitter,
    TestSplitSampler,
    Transformation,
)
from torch import nn

from pts_scott._utils.arguments import (
    check_names,
    named_arguments,
    one_of,
    real_number,
    switch,
    whole_number,
    whole_numbers,
)
from pts_scott._utils.rng import isolated_rng
from pts_scott.backends import backend
from pts_scott.data.arrow import map_if_arrow
from pts_scott.data.loader_arguments import LOADER_ARGUMENTS, warn_unused_loader
from pts_scott.data.offsets import parse_offset
from pts_scott.data.window_index import CONTEXTS, WindowIndex
from pts_scott.errors import ArgumentError, DataError, about_validation_data
from pts_scott.models.networks import POINT_LOSSES, LSTMNetwork, VARNetwork
from pts_scott.training.trainer import ScottTrainer

FORECAST_BATCH = 32
POINT_INPUTS = ("past_target", "past_observed_values")


class ScottEstimator(Estimator):
    """Base of the estimators: from a dataset to a trained GluonTS predictor.

    Parameters
    ----------
    freq
        Frequency of the series, as pandas spells it.
    prediction_length
        Steps to forecast.
    context_length
        Steps that the model sees; None for three times the prediction length.
    trainer
        How to train; None for ``ScottTrainer()``.
    stride
        Steps between the forecast starts of neighbouring training windows.
    context
        "full" or "padded": whether training windows may begin before their series.
    """

    #: Fields that the trained network takes to make a forecast.
    input_names: tuple[str, ...] = POINT_INPUTS
    #: Whether the model can forecast several dimensions together.
    multivariate = False

    def __init__(
        self,
        freq: str,
        prediction_length: int,
        context_length: int | None,
        trainer: ScottTrainer | None,
        stride: int,
        context: str,
    ) -> None:
        super().__init__()
        parse_offset(freq)
        self.freq = freq
        self.prediction_length = whole_number("prediction_length", prediction_length)
        self.context_length = (
            3 * self.prediction_length
            if context_length is None
            else whole_number("context_length", context_length)
        )
        if not isinstance(trainer, ScottTrainer | None):
            raise ArgumentError(
                f"trainer={trainer!r}: expected a ScottTrainer, e.g. "
                "trainer=ScottTrainer(method='scott')."
            )
        self.trainer = trainer if trainer is not None else ScottTrainer()
        self.stride = whole_number("stride", stride)
        self.context = one_of("context", context, CONTEXTS)

    def create_network(self, dimensions: int | None) -> nn.Module:
        """The untrained network; ``dimensions`` is None for univariate series."""
        raise NotImplementedError

    def train(
        self,
        training_data: Dataset,
        validation_data: Dataset | None = None,
        **loader: Any,
    ) -> Predictor:
        """Train on all windows of ``training_data``.

        Parameters
        ----------
        training_data
            Entries with ``start`` and ``target``.
        validation_data
            Its last window of each series gives ``val_loss``, as in GluonTS.
        **loader
            What the libraries' own data loaders take (``num_workers``,
            ``prefetch_factor``, ``shuffle_buffer_length``, ``cache_data``). Windows are
            gathered as tensors from memory, so they have no effect; a warning says so.

        Returns
        -------
        Predictor
            A predictor of the stack's own class.
        """
        return self._train(training_data, validation_data, None, loader)

    def train_from(
        self,
        predictor: Predictor,
        training_data: Dataset,
        validation_data: Dataset | None = None,
        **loader: Any,
    ) -> Predictor:
        """Train from the parameters of a predictor on.

        Parameters
        ----------
        predictor
            What an estimator with the same arguments has trained before.
        training_data, validation_data, **loader
            As for `train`.
        """
        return self._train(training_data, validation_data, predictor, loader)

    def _train(
        self,
        training_data: Dataset,
        validation_data: Dataset | None,
        predictor: Predictor | None,
        loader: dict[str, Any],
    ) -> Predictor:
        known = ("training_data", "validation_data", "cache_data", *LOADER_ARGUMENTS)
        check_names(f"{type(self).__name__}.train", loader, known)
        warn_unused_loader(loader)
        windows = self.create_windows(training_data)
        validation = None
        if validation_data is not None:
            with about_validation_data():
                validation = self.create_windows(validation_data).last()
        return self.train_windows(windows, validation, predictor)

    def train_windows(
        self,
        windows: WindowIndex,
        validation: WindowIndex | None = None,
        from_predictor: Predictor | None = None,
    ) -> Predictor:
        """Train on windows that were made before, by `create_windows`.

        Parameters
        ----------
        windows
            The windows to train on; several trainings can share them.
        validation
            Windows that give ``val_loss``, all of them.
        from_predictor
            Whose parameters training begins with; None for new ones.
        """
        dimensions = windows.series.dimensions
        if dimensions is not None and not self.multivariate:
            raise DataError(
                f"{type(self).__name__} forecasts univariate series, but the targets "
                f"have {dimensions} dimensions; pass one entry for each dimension."
            )
        seed = self.trainer.next_seed()
        with isolated_rng(seed, self.trainer.device):
            network = self.create_network(dimensions)
            if from_predictor is not None:
                _load_parameters(network, from_predictor)
            self.trainer.fit(network, windows, validation, seed=seed)
        return self.create_predictor(network, dimensions)

    def create_windows(self, dataset: Dataset) -> WindowIndex:
        """The windows of a dataset as this estimator trains on them."""
        return WindowIndex.from_dataset(
            map_if_arrow(dataset, self.freq),
            self.freq,
            self.context_length,
            self.prediction_length,
            stride=self.stride,
            context=self.context,
        )

    def create_transformation(self, dimensions: int | None = None) -> Transformation:
        """From a dataset's entry to what the network takes to forecast."""
        return Chain(
            [
                AsNumpyArray(
                    "target",
                    expected_ndim=1 if dimensions is None else 2,
                    dtype=np.float32,
                ),
                AddObservedValuesIndicator(
                    target_field="target", output_field="observed_values"
                ),
                InstanceSplitter(
                    target_field="target",
                    is_pad_field="is_pad",
                    start_field="start",
                    forecast_start_field="forecast_start",
                    instance_sampler=TestSplitSampler(),
                    past_length=self.context_length,
                    future_length=self.prediction_length,
                    time_series_fields=["observed_values"],
                ),
            ]
        )

    def create_predictor(self, network: nn.Module, dimensions: int | None) -> Predictor:
        """The trained network as a predictor of the stack."""
        return backend.make_predictor(
            network=network,
            input_names=list(self.input_names),
            input_transform=self.create_transformation(dimensions),
            prediction_length=self.prediction_length,
            freq=self.freq,
            # Mini-batches may be as small as one window, at which forecasts would crawl.
            batch_size=max(self.trainer.batch_size, FORECAST_BATCH),
            device=self.trainer.device,
        )


class SimpleFeedForwardEstimator(ScottEstimator):
    """The stack's own feed-forward network, trained by negative log likelihood.

    Parameters
    ----------
    freq, prediction_length, context_length, trainer, stride, context
        See `ScottEstimator`.
    hidden_dimensions
        Sizes of the hidden layers; None for the paper's four of 80.
    distr_output
        Distribution to fit, of the stack's own classes; None for Student's t.
    batch_norm
        Whether the network has BatchNorm, which training refuses.
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
    """N-BEATS, trained by MAPE, sMAPE or MASE; PyTorchTS' own network where it is.

    Parameters
    ----------
    freq, prediction_length, context_length, trainer, stride, context
        See `ScottEstimator`.
    num_stacks
        Number of stacks.
    widths, num_blocks, num_block_layers, expansion_coefficient_lengths, stack_types
        For each stack, or one value for all: width of its layers (512), blocks (1),
        layers a block (4), length of the expansion (32), and kind: "G" generic,
        "T" trend or "S" seasonal.
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
            name: [whole_number(name, n) for n in self._for_each_stack(name, value)]
            for name, value in sizes.items()
        }
        self.stack_types = [
            one_of("stack_types", kind, ("G", "T", "S"))
            for kind in self._for_each_stack("stack_types", stack_types)
        ]
        self.loss_function = one_of("loss_function", loss_function, POINT_LOSSES)
        self.scaling = switch("scaling", scaling)
        self.periodicity = get_seasonality(freq)
        if loss_function == "MASE" and self.periodicity >= self.context_length:
            raise ArgumentError(
                f"loss_function='MASE' compares with the value {self.periodicity} steps "
                f"before, but context_length is {self.context_length}; make it longer."
            )

    def _for_each_stack(self, name: str, value: Any) -> list[Any]:
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
        return backend.nbeats(
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
    hidden_size, num_layers
        Of the LSTM; the paper's are 100 and 2.
    dropout
        Between the layers; both passes of an inner step see the same mask.
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


def _load_parameters(network: nn.Module, predictor: Predictor) -> None:
    trained = getattr(predictor, "prediction_net", None)
    try:
        network.load_state_dict(trained.state_dict())  # type: ignore[union-attr]
    except (AttributeError, RuntimeError) as error:
        raise ArgumentError(
            "the predictor is not of this estimator: its parameters do not fit "
            f"{type(network).__name__}. Train from one that an estimator with the same "
            "arguments has made."
        ) from error
