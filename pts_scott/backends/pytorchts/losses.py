"""PyTorchTS' training networks with one loss per window in place of the batch's mean."""

from __future__ import annotations

import warnings

import torch
from pts.model import get_module_forward_input_names
from pts.modules import MeanScaler
from pts.modules.flows import BatchNorm
from torch import Tensor, nn

from pts_scott.backends.point_network import context_scale
from pts_scott.backends.pytorchts.network_losses import WINDOW_LOSSES, WindowLoss
from pts_scott.errors import ScottWarning, WindowLossError


class ContextScaler(MeanScaler):  # type: ignore[misc]
    """PyTorchTS' mean scaler, except that a context of zeros has scale 1.

    PyTorchTS uses the mean scale of the batch for it.
    """

    def compute_scale(self, data: Tensor, observed_indicator: Tensor) -> Tensor:
        if not self.time_first:
            data, observed_indicator = data.mT, observed_indicator.mT
        scale = context_scale(data, observed_indicator).squeeze(1)
        return torch.max(scale, self.minimum_scale).detach()

    @classmethod
    def like(cls, scaler: MeanScaler) -> ContextScaler:
        """Return a scaler with the settings of another one."""
        return cls(
            minimum_scale=float(scaler.minimum_scale),
            keepdim=scaler.keepdim,
            time_first=scaler.time_first,
        )


class PyTorchTSLosses(nn.Module):
    """One loss per window of a training network of PyTorchTS.

    The network's mean scalers are replaced by `ContextScaler`, and the BatchNorm of flows
    uses fixed statistics: those of the windows passed to ``fit_statistics``.

    Parameters
    ----------
    wrapped
        The training network.
    """

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.loss_fields = tuple(get_module_forward_input_names(wrapped))
        self._loss = _window_loss(wrapped)
        for module in list(wrapped.modules()):
            for name, child in module.named_children():
                if type(child) is MeanScaler:
                    setattr(module, name, ContextScaler.like(child))
        self.wrapped = wrapped
        self._norms = [m for m in wrapped.modules() if isinstance(m, BatchNorm)]

    def loss(self, **batch: Tensor) -> Tensor:
        """Return one loss per window."""
        return self._loss(self.wrapped, batch)

    def train(self, mode: bool = True) -> PyTorchTSLosses:
        super().train(mode)
        for norm in self._norms:
            norm.eval()
        return self

    def fit_statistics(self, batch: dict[str, Tensor]) -> None:
        """Fix the statistics of the flows' BatchNorm to those of a batch.

        Statistics of each mini-batch would make the loss of a window depend on the other
        windows. With fixed statistics these layers are activation normalisation; their
        scales and shifts are trained as before.
        """
        if not self._norms:
            return
        for norm in self._norms:
            norm.train()
        with torch.no_grad():
            self._loss(self.wrapped, {k: v.clone() for k, v in batch.items()})
            for norm in self._norms:
                norm.running_mean.copy_(norm.batch_mean)
                norm.running_var.copy_(norm.batch_var)
                norm.eval()


def _window_loss(network: nn.Module) -> WindowLoss:
    """Return the function that computes the losses of a network."""
    for kind, loss in WINDOW_LOSSES.items():
        # A subclass with its own forward may have a different loss.
        if isinstance(network, kind) and type(network).forward is kind.forward:
            return loss
    warnings.warn(
        f"{type(network).__name__} is not a known network of PyTorchTS: its loss is "
        "computed for one window at a time, which is correct but slow.",
        ScottWarning,
        stacklevel=4,
    )
    return losses_of_single_windows


def losses_of_single_windows(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the network's loss of each window, computed in batches of one."""
    size = len(next(iter(batch.values())))
    losses = []
    for n in range(size):
        output = net(**{name: values[n : n + 1] for name, values in batch.items()})
        loss = output[0] if isinstance(output, (list, tuple)) else output
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise WindowLossError(
                f"{type(net).__name__} does not return a loss first; PyTorchTS' training "
                "networks return the loss of a batch, or a tuple that begins with it."
            )
        losses.append(loss.reshape(()))
    return torch.stack(losses)
