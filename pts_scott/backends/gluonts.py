"""The current GluonTS stack: its networks and its predictor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from gluonts.dataset.common import Dataset
from gluonts.itertools import Cyclic, IterableSlice, PseudoShuffled
from gluonts.model.forecast_generator import SampleForecastGenerator
from gluonts.torch.distributions import StudentTOutput
from gluonts.torch.model.deep_npts import DeepNPTSEstimator
from gluonts.torch.model.estimator import PyTorchLightningEstimator, TrainOutput
from gluonts.torch.model.predictor import PyTorchPredictor
from gluonts.torch.model.simple_feedforward import SimpleFeedForwardModel
from gluonts.transform import (
    Chain,
    ExpectedNumInstanceSampler,
    SelectFields,
    Transformation,
    TransformedDataset,
)
from torch import nn

from pts_scott._utils.arguments import check_names
from pts_scott._utils.rng import isolated_rng
from pts_scott.backends.gluonts_losses import (
    LibraryLosses,
    NPTSLosses,
    check_steps,
    freeze_unregistered,
    mark_as_seen,
    model_of,
)
from pts_scott.data.loader_arguments import warn_unused_loader
from pts_scott.data.pipeline import Pipeline, prepared_entries
from pts_scott.errors import ArgumentError, about_validation_data
from pts_scott.models.networks import NBEATSNetwork

NAME = "gluonts"

#: Bases of the estimators whose training can be replaced.
LIBRARY_ESTIMATORS: tuple[type, ...] = (PyTorchLightningEstimator, DeepNPTSEstimator)

#: Arguments of estimators about training, and where the trainer has them.
TRAINER_DECIDES = {
    "lr": "learning_rate",
    "weight_decay": "weight_decay",
    "patience": "scheduler",
    "batch_size": "batch_size",
    "num_batches_per_epoch": "num_batches_per_epoch",
    "epochs": "epochs",
    "trainer_kwargs": "trainer_kwargs",
}


class TrainerBase:
    """GluonTS has no trainer class to inherit from."""


def simple_feedforward(
    context_length: int,
    prediction_length: int,
    hidden_dimensions: list[int],
    distr_output: Any | None,
    batch_norm: bool,
) -> nn.Module:
    """GluonTS' own feed-forward network."""
    return SimpleFeedForwardModel(
        prediction_length=prediction_length,
        context_length=context_length,
        hidden_dimensions=hidden_dimensions,
        distr_output=distr_output or StudentTOutput(),
        batch_norm=batch_norm,
    )


def nbeats(**kwargs: Any) -> nn.Module:
    """N-BEATS: GluonTS has none for torch, so it is this package's."""
    return NBEATSNetwork(**kwargs)


def make_predictor(
    network: nn.Module,
    input_names: list[str],
    input_transform: Transformation,
    prediction_length: int,
    freq: str,
    batch_size: int,
    device: torch.device,
) -> PyTorchPredictor:
    """A GluonTS predictor around a trained network."""
    distr_output = getattr(network, "distr_output", None)
    return PyTorchPredictor(
        input_names=input_names,
        prediction_net=network,
        batch_size=batch_size,
        prediction_length=prediction_length,
        input_transform=input_transform,
        forecast_generator=(
            SampleForecastGenerator()
            if distr_output is None
            else distr_output.forecast_generator
        ),
        device=str(device),
    )


def train_model(
    estimator: Any,
    training_data: Dataset,
    validation_data: Dataset | None = None,
    from_predictor: PyTorchPredictor | None = None,
    ckpt_path: str | None = None,
    **unused: Any,
) -> Any:
    """GluonTS' ``train_model`` with the estimator's ``trainer`` in place of its loop.

    Parameters
    ----------
    estimator
        Any ``PyTorchLightningEstimator`` that has a `ScottTrainer` as ``trainer``.
    training_data, validation_data
        Entries with ``start`` and ``target``, and what else the model asks for.
    from_predictor
        Predictor whose parameters training begins with.
    ckpt_path
        Checkpoints of GluonTS' loop cannot be continued.
    **unused
        ``shuffle_buffer_length`` and ``cache_data``, which have no effect.

    Returns
    -------
    TrainOutput, or for DeepNPTS the trained network, as its own ``train_model`` does.
    """
    if ckpt_path is not None:
        raise ArgumentError(
            "ckpt_path continues a run of GluonTS' own loop; to go on from trained "
            "parameters, use train_from(predictor, training_data)."
        )
    check_names(
        f"{type(estimator).__name__}.train",
        unused,
        ("training_data", "validation_data", "shuffle_buffer_length", "cache_data"),
    )
    warn_unused_loader(unused)
    if isinstance(estimator, DeepNPTSEstimator):
        return _train_npts(estimator, training_data, validation_data)
    trainer = estimator.trainer
    seed = trainer.next_seed()
    transformation = estimator.create_transformation()
    with isolated_rng(seed, trainer.device):
        module = estimator.create_lightning_module()
        if from_predictor is not None:
            module.load_state_dict(from_predictor.network.state_dict())
            mark_as_seen(module)
        data = _ReadOnce(training_data, transformation)
        windows = _windows(estimator.create_training_data_loader(data, module), data)
        validation = None
        if validation_data is not None:
            data = _ReadOnce(validation_data, transformation)
            loader = estimator.create_validation_data_loader(data, module)
            with about_validation_data():
                validation = _windows(loader, data)
        network = LibraryLosses(model_of(module), windows.fields)
        network.see_first(windows)
        check_steps(module, network, windows)
        with network.own_scales(windows):
            trainer.fit(network, windows, validation, seed=seed)
    return TrainOutput(
        transformation=transformation,
        trained_net=module,
        trainer=trainer.lightning,
        predictor=estimator.create_predictor(transformation, module),
    )


class NPTSTraining:
    """DeepNPTS' own ``train``, which forgets the validation data that it takes."""

    def train(
        self: Any,
        training_data: Dataset,
        validation_data: Dataset | None = None,
        cache_data: bool = False,
    ) -> PyTorchPredictor:
        """Train, and choose by validation data if there are any."""
        network = self.train_model(training_data, validation_data, cache_data=cache_data)
        return self.get_predictor(network)


def mixins(estimator: type) -> tuple[type, ...]:
    """What an estimator class needs besides a trainer.

    Raises
    ------
    ArgumentError
        If it has a way to train of its own, which would never be called.
    """
    if not estimator.train_model.__module__.startswith("gluonts."):  # type: ignore[attr-defined]
        raise ArgumentError(
            f"{estimator.__name__} has a train_model of its own, in whose place "
            "ScottTrainer would train. Put what it does to the data into "
            "create_transformation or create_training_data_loader, and leave it out."
        )
    return (NPTSTraining,) if issubclass(estimator, DeepNPTSEstimator) else ()


def _train_npts(
    estimator: Any, training_data: Dataset, validation_data: Dataset | None
) -> nn.Module:
    """DeepNPTS, which has a loop of its own in place of Lightning's."""
    trainer = estimator.trainer
    sampler = ExpectedNumInstanceSampler(
        num_instances=1.0, min_past=estimator.context_length, min_future=1
    )
    fields = [*estimator.features_fields, estimator.target_field]
    pipeline = Pipeline.read(
        estimator.input_transform()
        + estimator.instance_splitter(sampler, is_train=True)
        + SelectFields(fields)
    )
    windows, validation = pipeline.windows(training_data), None
    if validation_data is not None:
        with about_validation_data():
            validation = pipeline.windows(validation_data).last()
    seed = trainer.next_seed()
    with isolated_rng(seed, trainer.device):
        network: nn.Module = estimator.network_type(
            context_length=estimator.context_length,
            num_hidden_nodes=estimator.num_hidden_nodes,
            cardinality=estimator.cardinality,
            embedding_dimension=estimator.embedding_dimension,
            num_time_features=estimator.num_time_features,
            input_scaling=estimator.input_scaling,
            dropout_rate=estimator.dropout_rate,
            batch_norm=estimator.batch_norm,
        )
        freeze_unregistered(network)
        trainer.fit(NPTSLosses(network, estimator), windows, validation, seed=seed)
    return network


def _windows(loader: Any, dataset: _ReadOnce) -> Any:
    """The windows that a loader would draw from the dataset behind it.

    Parameters
    ----------
    loader
        As GluonTS' estimators make it: a slice of transformations of transformations.
    dataset
        What it was made for. An estimator may have put something of its own between.
    """
    parts: list[Transformation] = []
    while True:
        if type(loader) is TransformedDataset:
            parts.insert(0, loader.transformation)
            loader = loader.base_dataset
        elif type(loader) in (IterableSlice, PseudoShuffled, Cyclic):
            loader = loader.iterable
        else:
            break
    return Pipeline.read(Chain(parts)).windows(dataset.round(loader))


class _ReadOnce:
    """A dataset that ends, though loaders go round in it for ever.

    Parameters
    ----------
    dataset
        Entries with ``start`` and ``target``.
    transformation
        The estimator's own, which prepares them.
    """

    class _EndError(Exception):
        """Somebody begins anew."""

    def __init__(self, dataset: Dataset, transformation: Transformation) -> None:
        self._dataset, self._transformation = dataset, transformation
        self._rounds: int | None = None  # in the stream that goes round, if it does

    def __iter__(self) -> Iterator[Any]:
        if self._rounds is not None:
            self._rounds += 1
            if self._rounds > 1:
                raise self._EndError
        yield from prepared_entries(self._dataset, [self._transformation])

    def round(self, stream: Iterable[Any]) -> Iterator[Any]:
        """The entries of a stream that goes round in this dataset, each once."""
        first, self._rounds = None, 0
        try:
            for entry in stream:
                if entry is first:  # it has kept them, and gives them again
                    return
                first = entry if first is None else first
                yield entry
        except self._EndError:
            return
        finally:
            self._rounds = None


def made_whole(predictor: PyTorchPredictor) -> PyTorchPredictor:
    """A predictor that was read back, with what the library's files do not say."""
    mark_as_seen(predictor.network)
    return predictor


def with_trainer(arguments: dict[str, Any], trainer: Any) -> dict[str, Any]:
    """The arguments of a library's estimator; GluonTS' know no trainer."""
    return arguments
