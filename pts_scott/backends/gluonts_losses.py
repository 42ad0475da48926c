"""GluonTS' models, with one loss a window, and what is asked of them before training."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from gluonts.torch.model.deep_npts import DeepNPTSEstimator
from gluonts.torch.model.mqf2.module import MQF2MultiHorizonModel
from gluonts.torch.scaler import MeanScaler
from torch import Tensor, nn

from pts_scott._utils.rng import isolated_rng
from pts_scott._utils.spacing import evenly_spaced
from pts_scott._utils.text import cause
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.buffers import Buffers
from pts_scott.engine.losses import loss_fields
from pts_scott.errors import ModelError, ScottWarning, WindowLossError

STATISTICS = 1024  # windows, for what is taken from the data before training


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
        """Show many windows to layers that take their first values from a batch.

        Those that have seen some already, and go on from there, stay as they are.
        """
        if isinstance(self.wrapped, MQF2MultiHorizonModel):
            self.loss(**some_windows(windows, self.loss_fields))

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
            target, observed = some_windows(windows, names).values()
            level = (target * observed).abs().sum() / observed.sum().clamp(min=1)
            for scaler in scalers:
                scaler.default_scale = float(level)
        try:
            yield
        finally:
            for scaler in scalers:
                scaler.default_scale = None


def some_windows(windows: WindowIndex, fields: Sequence[str]) -> Any:
    """Many windows, spread evenly."""
    return windows.gather(evenly_spaced(len(windows), STATISTICS), fields)


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


def freeze_unregistered(network: nn.Module) -> None:
    """Freeze DeepNPTS' embeddings, which GluonTS holds in a plain list."""
    embedder = network.embedder
    assert isinstance(embedder, nn.Module)
    if isinstance(embedder.embedders, nn.Module):  # registered, in a version to come
        return
    for embedding in embedder.embedders:  # type: ignore[union-attr]
        embedding.requires_grad_(False)
    warnings.warn(
        "GluonTS holds DeepNPTS' embeddings in a plain list, so they are neither trained "
        "nor saved, by GluonTS' own training either: a predictor that is read from its "
        "files forecasts with other embeddings.",
        ScottWarning,
        stacklevel=4,
    )


def model_of(module: nn.Module) -> nn.Module:
    """The model of a Lightning module, which has the loss.

    Raises
    ------
    WindowLossError, ModelError
    """
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


def check_steps(module: Any, network: LibraryLosses, windows: WindowIndex) -> None:
    """See that what a user's own module trains and validates by is its model's loss."""
    if not type(module).validation_step.__module__.startswith("gluonts."):
        warnings.warn(
            f"{type(module).__name__}.validation_step is not called: val_loss is the "
            "mean of the model's loss over the validation windows.",
            ScottWarning,
            stacklevel=5,
        )
    if type(module).training_step.__module__.startswith("gluonts."):
        return
    batch = some_windows(windows, windows.fields)
    before = module.training
    module.log = lambda *_, **__: None  # nobody listens yet
    try:
        for training in (False, True):
            module.train(training)
            _check_training_step(module, network, batch)
    finally:
        del module.log
        module.train(before)


def _check_training_step(module: Any, network: LibraryLosses, batch: Any) -> None:
    own = {name: batch[name].clone() for name in network.loss_fields}
    device = next(iter(own.values())).device
    buffers = Buffers(module)
    with torch.no_grad():
        with isolated_rng(0, device):
            found = network.loss(**own).mean()
        buffers.restore()
        try:
            with isolated_rng(0, device):
                expected = module.training_step(batch, 0)
        except Exception as error:
            raise WindowLossError(
                f"{type(module).__name__}.training_step could not be tried on a batch "
                f"({cause(error)}), to see whether it trains by the loss of its model. "
                "It has to do without Lightning's trainer."
            ) from error
        finally:
            buffers.restore()
    expected = expected["loss"] if isinstance(expected, dict) else expected
    if not torch.allclose(found, expected.to(found), rtol=1e-3):
        raise WindowLossError(
            f"{type(module).__name__}.training_step gives {float(expected):.6g}, and the "
            f"mean of its model's loss is {float(found):.6g}; strata have weights, so "
            "the method needs model.loss(…) to return what is trained, one loss a window."
        )


def mark_as_seen(module: nn.Module) -> None:
    """Say of MQF2's layers that they have seen data, which the library's files do not.

    Otherwise the next batch would replace what they have learned.
    """
    for part in module.modules():
        if getattr(part, "initialized", None) is False:
            part.initialized = True  # type: ignore[assignment]
