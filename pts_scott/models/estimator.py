"""Base of this package's estimators: from a dataset to a trained GluonTS predictor."""

from __future__ import annotations

from typing import Any

import numpy as np
from gluonts.dataset.common import Dataset
from gluonts.model.estimator import Estimator
from gluonts.model.predictor import Predictor
from gluonts.transform import (
    AddObservedValuesIndicator,
    AsNumpyArray,
    Chain,
    InstanceSplitter,
    TestSplitSampler,
    Transformation,
)
from torch import nn

from pts_scott._utils.arguments import check_names, one_of, whole_number
from pts_scott._utils.rng import isolated_rng
from pts_scott.backends import backend
from pts_scott.data.arrow import map_if_arrow
from pts_scott.data.loader_arguments import LOADER_ARGUMENTS, warn_unused_loader
from pts_scott.data.offsets import parse_offset
from pts_scott.data.window_index import CONTEXTS, WindowIndex
from pts_scott.datasets.catalogue import as_dataset
from pts_scott.errors import ArgumentError, DataError, about_validation_data
from pts_scott.models.trainer_argument import trainer_or_default
from pts_scott.training.trainer import ScottTrainer

FORECAST_BATCH = 32


class ScottEstimator(Estimator):
    """Base of this package's estimators, which train a network on windows.

    To train a network of your own like the others, subclass it and implement
    `create_network`.

    Parameters
    ----------
    freq
        Frequency of the series, as a pandas alias.
    prediction_length
        Number of steps to forecast.
    context_length
        Number of steps that the model sees; None for three times the prediction length.
    trainer
        How to train; None for ``ScottTrainer()``.
    stride
        Steps between the forecast starts of neighbouring training windows.
    context
        "full" or "padded": whether training windows may begin before their series.
    """

    #: Fields that the trained network takes to make a forecast.
    input_names: tuple[str, ...] = ("past_target", "past_observed_values")
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
        self.trainer = trainer_or_default(trainer)
        self.stride = whole_number("stride", stride)
        self.context = one_of("context", context, CONTEXTS)

    def create_network(self, dimensions: int | None) -> nn.Module:
        """Return an untrained network; subclasses implement this.

        Parameters
        ----------
        dimensions
            Dimensions of the target; None for univariate series.

        Returns
        -------
        nn.Module
            A network with ``loss(past_target, future_target, …)``, one loss per window,
            whose ``forward`` takes the fields ``input_names`` and makes the forecast.
        """
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
            Entries with ``start`` and ``target``, a DataFrame, or what `load` returns.
        validation_data
            Entries whose last windows are used for ``val_loss``, as in GluonTS.
        **loader
            Arguments of the libraries' data loaders (``num_workers``,
            ``prefetch_factor``, ``shuffle_buffer_length``, ``cache_data``). Windows are
            gathered as tensors from memory, so they have no effect; a warning says so.

        Returns
        -------
        Predictor
            A predictor of the backend's own class.

        Raises
        ------
        DataError
            If the data cannot be used, e.g. because series are too short.
        ModelError
            If the network breaks an assumption of the method, e.g. by BatchNorm.
        """
        return self._train(training_data, validation_data, None, loader)

    def train_from(
        self,
        predictor: Predictor,
        training_data: Dataset,
        validation_data: Dataset | None = None,
        **loader: Any,
    ) -> Predictor:
        """Continue training from the parameters of a predictor.

        Parameters
        ----------
        predictor
            A predictor trained by an estimator with the same arguments.
        training_data, validation_data, **loader
            As for `train`.

        Returns
        -------
        Predictor
            A new predictor; the given one stays as it is.
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
        """Train on windows that `create_windows` returned.

        Parameters
        ----------
        windows
            The windows to train on; several runs can share them.
        validation
            Windows on which ``val_loss`` is measured, all of them.
        from_predictor
            Predictor whose parameters training starts from; None for new ones.

        Returns
        -------
        Predictor
            A predictor of the backend's own class.
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
        """Return the windows of a dataset that this estimator trains on.

        Parameters
        ----------
        dataset
            As for `train`.

        Returns
        -------
        WindowIndex
            For `train_windows`, `diagnose`, and ``Stratifier.describe``.
        """
        return WindowIndex.from_dataset(
            map_if_arrow(as_dataset(dataset, self.freq), self.freq),
            self.freq,
            self.context_length,
            self.prediction_length,
            stride=self.stride,
            context=self.context,
        )

    def create_transformation(self, dimensions: int | None = None) -> Transformation:
        """Return the transformation from an entry to the network's inputs.

        Parameters
        ----------
        dimensions
            Dimensions of the target; None for univariate series.
        """
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
        """Return the backend's predictor of a trained network.

        Parameters
        ----------
        network
            The network.
        dimensions
            Dimensions of the target; None for univariate series.
        """
        return backend.make_predictor(
            network=network,
            input_names=list(self.input_names),
            input_transform=self.create_transformation(dimensions),
            prediction_length=self.prediction_length,
            freq=self.freq,
            # Mini-batches may be as small as one window, which makes forecasts slow.
            batch_size=max(self.trainer.batch_size, FORECAST_BATCH),
            device=self.trainer.device,
        )


def _load_parameters(network: nn.Module, predictor: Predictor) -> None:
    trained = getattr(predictor, "prediction_net", None)
    try:
        network.load_state_dict(trained.state_dict())  # type: ignore[union-attr]
    except (AttributeError, RuntimeError) as error:
        raise ArgumentError(
            f"the parameters of the given {type(predictor).__name__} do not fit "
            f"{type(network).__name__}; pass a predictor that an estimator with the same "
            "arguments has trained."
        ) from error
