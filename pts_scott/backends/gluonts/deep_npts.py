"""DeepNPTS, whose estimator has its own training loop instead of Lightning's."""

from __future__ import annotations

import warnings
from typing import Any

from gluonts.dataset.common import Dataset
from gluonts.torch.model.deep_npts import DeepNPTSEstimator
from gluonts.torch.model.predictor import PyTorchPredictor
from gluonts.transform import ExpectedNumInstanceSampler, SelectFields, Transformation
from torch import Tensor, nn

from pts_scott._utils.rng import isolated_rng
from pts_scott.backends.gluonts.losses import average_by_window
from pts_scott.data.instance_index import InstanceIndex
from pts_scott.data.pipeline import Pipeline
from pts_scott.data.window_index import WindowIndex
from pts_scott.errors import ScottWarning


class DeepNPTSTraining:
    """Mixin that replaces DeepNPTS' ``train``, which ignores its validation data."""

    def train(
        self: Any,
        training_data: Dataset,
        validation_data: Dataset | None = None,
        cache_data: bool = False,
    ) -> PyTorchPredictor:
        """Train, and measure ``val_loss`` if there are validation data."""
        network = self.train_model(training_data, validation_data, cache_data=cache_data)
        return self.get_predictor(network)


class DeepNPTSLosses(nn.Module):
    """One loss per window of DeepNPTS, as its estimator computes it.

    Parameters
    ----------
    wrapped
        The network, which forecasts one step.
    estimator
        The estimator, for its field names and its scaling of the loss.
    """

    def __init__(self, wrapped: nn.Module, estimator: DeepNPTSEstimator) -> None:
        super().__init__()
        self.wrapped = wrapped
        self._inputs = tuple(estimator.features_fields)
        self._target, self._past = estimator.target_field, estimator.past_target_field
        self._scaling = estimator.loss_scaling
        self.loss_fields = (*self._inputs, self._target)

    def loss(self, **batch: Tensor) -> Tensor:
        """Return the negative log likelihood of the step after each context."""
        distribution = self.wrapped(**{name: batch[name] for name in self._inputs})
        target = batch[self._target]
        if target.numel() == distribution.batch_shape.numel():
            # The smooth network's distribution has no dimension for its single step.
            target = target.reshape(distribution.batch_shape)
        losses = -distribution.log_prob(target)
        if self._scaling is not None:
            losses = losses / self._scaling(batch[self._past])[1]
        return average_by_window(losses)


def deep_npts_windows(estimator: Any, dataset: Dataset) -> InstanceIndex:
    """Return the windows of a dataset that a DeepNPTS estimator trains on."""
    return Pipeline.read(training_transformation(estimator)).windows(dataset)


def train_deep_npts(
    estimator: Any, windows: WindowIndex, validation: WindowIndex | None
) -> nn.Module:
    """Train the network of a DeepNPTS estimator with the estimator's ``trainer``."""
    trainer = estimator.trainer
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
        _freeze_unregistered_embeddings(network)
        trainer.fit(DeepNPTSLosses(network, estimator), windows, validation, seed=seed)
    return network


def training_transformation(estimator: Any) -> Transformation:
    """Return the transformation from entries to windows, as DeepNPTS' own loop has it."""
    sampler = ExpectedNumInstanceSampler(
        num_instances=1.0, min_past=estimator.context_length, min_future=1
    )
    return (
        estimator.input_transform()
        + estimator.instance_splitter(sampler, is_train=True)
        + SelectFields([*estimator.features_fields, estimator.target_field])
    )


def _freeze_unregistered_embeddings(network: nn.Module) -> None:
    """Freeze DeepNPTS' embeddings, which GluonTS keeps in a plain list."""
    embedder = network.embedder
    assert isinstance(embedder, nn.Module)
    if isinstance(embedder.embedders, nn.Module):  # registered, in a later version
        return
    for embedding in embedder.embedders:  # type: ignore[union-attr]
        embedding.requires_grad_(False)
    warnings.warn(
        "GluonTS keeps DeepNPTS' embeddings in a plain list, so they are neither trained "
        "nor saved, not even by GluonTS' own training: a deserialised predictor "
        "forecasts with different embeddings.",
        ScottWarning,
        stacklevel=4,
    )
