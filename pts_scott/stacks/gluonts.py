"""The current GluonTS stack: its networks and its predictor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from gluonts.dataset.common import Dataset
from gluonts.model.forecast_generator import SampleForecastGenerator
from gluonts.torch.distributions import StudentTOutput
from gluonts.torch.model.deep_npts import DeepNPTSEstimator
from gluonts.torch.model.estimator import PyTorchLightningEstimator, TrainOutput
from gluonts.torch.model.mqf2.module import MQF2MultiHorizonModel
from gluonts.torch.model.predictor import PyTorchPredictor
from gluonts.torch.model.simple_feedforward import SimpleFeedForwardModel
from gluonts.torch.scaler import MeanScaler
from gluonts.transform import (
    Chain,
    ExpectedNumInstanceSampler,
    SelectFields,
    Transformation,
    TransformedDataset,
)
from torch import Tensor, nn

from pts_scott._arguments import check_names
from pts_scott.errors import ArgumentError, ModelError, WindowLossError
from pts_scott.gradients import loss_fields
from pts_scott.networks import NBEATSNetwork
from pts_scott.pipelines import Pipeline
from pts_scott.randomness import isolated
from pts_scott.windows import WindowIndex

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

STATISTICS = 1024  # windows, for what is taken from the data before training


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


class LibraryLosses(nn.Module):
    """One loss a window of a GluonTS model, whose own losses may have more dimensions.

    Parameters
    ----------
    wrapped
        A model with ``loss(…)``, as those of GluonTS have.
    available
        Fields that windows have.
    """

    def __init__(self, wrapped: nn.Module, available: Sequence[str]) -> None:
        super().__init__()
        self.wrapped = wrapped
        self.loss_fields = loss_fields(wrapped, available)

    def loss(self, **batch: Tensor) -> Tensor:
        """The mean of each window's losses, as GluonTS takes the mean over all."""
        if isinstance(self.wrapped, MQF2MultiHorizonModel):
            # It has a loss for each split of a window, one window after the other.
            losses = self.wrapped.loss(**batch, aggregate_by=lambda x, dim: x)
            return losses.reshape(len(batch["past_target"]), -1).mean(1)  # type: ignore[no-any-return]
        losses = self.wrapped.loss(**batch)  # type: ignore[operator]
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses

    def see_first(self, windows: WindowIndex) -> None:
        """Show many windows to layers that take their first values from a batch."""
        if isinstance(self.wrapped, MQF2MultiHorizonModel):
            self.loss(**_some(windows, self.loss_fields))

    @contextmanager
    def own_scales(self, windows: WindowIndex) -> Iterator[None]:
        """Scale a context without an observation by the data, not by its neighbours.

        GluonTS' mean scaler takes the mean of the batch for such a one, which ties
        windows together; in this block it takes that of many windows.
        """
        scalers = [
            scaler
            for module in self.wrapped.modules()
            for scaler in vars(module).values()
            if isinstance(scaler, MeanScaler) and scaler.default_scale is None
        ]
        names = ("past_target", "past_observed_values")
        if scalers and set(names) <= set(windows.fields):
            target, observed = _some(windows, names).values()
            level = (target * observed).abs().sum() / observed.sum().clamp(min=1)
            for scaler in scalers:
                scaler.default_scale = float(level)
        try:
            yield
        finally:
            for scaler in scalers:
                scaler.default_scale = None


def _some(windows: WindowIndex, fields: Sequence[str]) -> Any:
    """Many windows, spread evenly."""
    last = len(windows) - 1
    numbers = torch.linspace(0, last, STATISTICS, dtype=torch.float64).long()
    return windows.gather(numbers.unique(), fields)


class NPTSLosses(nn.Module):
    """One loss a window of DeepNPTS, as its estimator computes it.

    Parameters
    ----------
    wrapped
        The network of one step.
    estimator
        Whose fields and scaling of the loss are used.
    """

    def __init__(self, wrapped: nn.Module, estimator: DeepNPTSEstimator) -> None:
        super().__init__()
        self.wrapped = wrapped
        self._inputs = tuple(estimator.features_fields)
        self._target, self._past = estimator.target_field, estimator.past_target_field
        self._scaling = estimator.loss_scaling
        self.loss_fields = (*self._inputs, self._target)

    def loss(self, **batch: Tensor) -> Tensor:
        """Negative log likelihood of the step after each context."""
        distribution = self.wrapped(**{name: batch[name] for name in self._inputs})
        target = batch[self._target]
        if target.numel() == distribution.batch_shape.numel():
            # The smooth network's has no dimension for the one step that it predicts.
            target = target.reshape(distribution.batch_shape)
        losses = -distribution.log_prob(target)
        if self._scaling is not None:
            losses = losses / self._scaling(batch[self._past])[1]
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


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
        ``shuffle_buffer_length`` and ``cache_data``, accepted and not needed.

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
    if isinstance(estimator, DeepNPTSEstimator):
        return _train_npts(estimator, training_data)
    trainer = estimator.trainer
    seed = trainer.next_seed()
    transformation = estimator.create_transformation()
    with isolated(seed, trainer.device):
        module = estimator.create_lightning_module()
        if from_predictor is not None:
            module.load_state_dict(from_predictor.network.state_dict())
        batches = estimator.create_training_data_loader([], module)
        windows = _windows(batches, transformation, training_data)
        validation = None
        if validation_data is not None:
            batches = estimator.create_validation_data_loader([], module)
            validation = _windows(batches, transformation, validation_data)
        network = LibraryLosses(_model(module), windows.fields)
        network.see_first(windows)
        _check_training_step(module, network, windows)
        with network.own_scales(windows):
            trainer.fit(network, windows, validation, seed=seed)
    return TrainOutput(
        transformation=transformation,
        trained_net=module,
        trainer=trainer.lightning,
        predictor=estimator.create_predictor(transformation, module),
    )


def _train_npts(estimator: DeepNPTSEstimator, training_data: Dataset) -> nn.Module:
    """DeepNPTS, which has a loop of its own in place of Lightning's."""
    trainer = estimator.trainer
    sampler = ExpectedNumInstanceSampler(
        num_instances=1.0, min_past=estimator.context_length, min_future=1
    )
    fields = [*estimator.features_fields, estimator.target_field]
    chain = (
        estimator.input_transform()
        + estimator.instance_splitter(sampler, is_train=True)
        + SelectFields(fields)
    )
    windows = Pipeline.read(chain).windows(training_data)
    seed = trainer.next_seed()
    with isolated(seed, trainer.device):
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
        trainer.fit(NPTSLosses(network, estimator), windows, seed=seed)
    return network


def _windows(loader: Any, transformation: Transformation, dataset: Dataset) -> Any:
    """The windows that a loader would draw from a dataset."""
    parts: list[Transformation] = []
    while True:
        if isinstance(loader, TransformedDataset):
            parts.insert(0, loader.transformation)
            loader = loader.base_dataset
        elif hasattr(loader, "iterable"):
            loader = loader.iterable
        else:
            break
    pipeline = Pipeline.read(Chain(parts))
    return pipeline.windows(transformation.apply(dataset, is_train=True))


def _model(module: nn.Module) -> nn.Module:
    model = getattr(module, "model", None)
    if not isinstance(model, nn.Module) or not callable(getattr(model, "loss", None)):
        raise WindowLossError(
            f"{type(module).__name__} has no model with a loss of one number a window, "
            "as the modules of GluonTS have: module.model.loss(past_target, …)."
        )
    others = {id(p) for p in module.parameters()} - {id(p) for p in model.parameters()}
    if others:
        raise ModelError(
            f"{type(module).__name__} has parameters outside of its model, which the "
            "model's loss cannot train."
        )
    return model


def _check_training_step(
    module: Any, network: LibraryLosses, windows: WindowIndex
) -> None:
    """See that a user's own training step has the loss of its model."""
    if type(module).training_step.__module__.startswith("gluonts."):
        return
    batch = _some(windows, windows.fields)
    own = {name: batch[name].clone() for name in network.loss_fields}
    device, training = windows.device, module.training
    module.eval()
    module.log = lambda *_, **__: None  # nobody listens yet
    try:
        with torch.no_grad():
            with isolated(0, device):
                found = network.loss(**own).mean()
            with isolated(0, device):
                expected = module.training_step(batch, 0)
    finally:
        del module.log
        module.train(training)
    expected = expected["loss"] if isinstance(expected, dict) else expected
    if not torch.allclose(found, expected.to(found), rtol=1e-3):
        raise WindowLossError(
            f"{type(module).__name__}.training_step gives {float(expected):.6g}, and the "
            f"mean of its model's loss is {float(found):.6g}; strata have weights, so "
            "the method needs model.loss(…) to return what is trained, one loss a window."
        )


def with_trainer(arguments: dict[str, Any], trainer: Any) -> dict[str, Any]:
    """The arguments of a library's estimator; GluonTS' know no trainer."""
    return arguments
