"""GluonTS' models with one loss per window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gluonts.torch.model.mqf2.module import MQF2MultiHorizonModel
from gluonts.torch.scaler import MeanScaler
from torch import Tensor, nn

from pts_scott.backends.window_sample import sample_batch
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.losses import loss_fields


class GluonTSLosses(nn.Module):
    """One loss per window of a GluonTS model, whose own losses may have more dimensions.

    Parameters
    ----------
    wrapped
        A model with ``loss(…)``, as GluonTS' models have.
    available
        Names of the fields that windows have.
    """

    def __init__(self, wrapped: nn.Module, available: Sequence[str]) -> None:
        super().__init__()
        self.wrapped = wrapped
        self.loss_fields = loss_fields(wrapped, available)

    def loss(self, **batch: Tensor) -> Tensor:
        """Average the losses of each window, as GluonTS averages over all of them."""
        if isinstance(self.wrapped, MQF2MultiHorizonModel):
            # It returns one loss per split of a window, ordered by window.
            losses = self.wrapped.loss(**batch, aggregate_by=lambda x, dim: x)
            return losses.reshape(len(batch["past_target"]), -1).mean(1)  # type: ignore[no-any-return]
        return average_by_window(self.wrapped.loss(**batch))  # type: ignore[operator]

    def initialize_from(self, windows: WindowIndex) -> None:
        """Initialise layers that take their first values from a batch.

        Layers that are initialised already, because training continues, stay unchanged.
        """
        if isinstance(self.wrapped, MQF2MultiHorizonModel):
            self.loss(**sample_batch(windows, self.loss_fields))

    @contextmanager
    def fixed_default_scale(self, windows: WindowIndex) -> Iterator[None]:
        """Scale contexts without an observation by a constant taken from the data.

        By default GluonTS' mean scaler uses the mean of the batch for them, which makes
        the loss of a window depend on the other windows of its batch.
        """
        scalers = [
            scaler
            for module in self.wrapped.modules()
            for scaler in vars(module).values()
            if isinstance(scaler, MeanScaler) and scaler.default_scale is None
        ]
        names = ("past_target", "past_observed_values")
        if scalers and set(names) <= set(windows.fields):
            target, observed = sample_batch(windows, names).values()
            level = (target * observed).abs().sum() / observed.sum().clamp(min=1)
            for scaler in scalers:
                scaler.default_scale = float(level)
        try:
            yield
        finally:
            for scaler in scalers:
                scaler.default_scale = None


def average_by_window(losses: Tensor) -> Tensor:
    """Average losses over all dimensions but the first, which is that of windows."""
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


def mark_initialized(module: nn.Module) -> None:
    """Mark MQF2's layers as initialised, which the library's files do not record.

    Otherwise the next batch would overwrite their trained values.
    """
    for part in module.modules():
        if getattr(part, "initialized", None) is False:
            part.initialized = True  # type: ignore[assignment]
