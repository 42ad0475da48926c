"""Faults: losses that are not finite, or fail, and the windows behind them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pts_scott._utils.text import shorten
from pts_scott.data.window_index import WindowIndex
from pts_scott.diagnostics.window_gradients import undisturbed
from pts_scott.engine.gradients import Gradients, Losses, largest_square, squared_norm

AT_ONCE = 256  # windows of one pass, and those whose gradients are taken one by one
AT_MOST = 2**16  # windows that are looked at: an anchor may have all there are


def culprits(gradients: Gradients, windows: WindowIndex, numbers: Tensor) -> Tensor:
    """Some of the windows whose own loss, or gradient, is not finite, or far too large.

    Parameters
    ----------
    gradients
        Of the network, at whose parameters they are looked at.
    windows
        The index.
    numbers
        The windows to look at, the most likely ones first.
    """
    losses = gradients.losses
    with undisturbed(losses, numbers.device):
        for part in numbers[:AT_MOST].split(AT_ONCE):
            part = part.unique()
            with torch.no_grad():
                finite = losses(windows.gather(part, losses.fields)).isfinite()
            if not bool(finite.all()):
                return part[~finite]
        looked_at = numbers[:AT_ONCE].unique()
        found = [_finite_gradient(gradients, windows, n[None]) for n in looked_at]
        return looked_at[~torch.tensor(found, device=numbers.device)]


def failing(
    losses: Losses, windows: WindowIndex, numbers: Tensor
) -> tuple[Tensor, Exception] | None:
    """A window on whose loss the network fails, and how; None if there is none.

    Parameters
    ----------
    losses
        The window losses of the network.
    windows
        The index.
    numbers
        The windows to look at, the most likely ones first.
    """
    with undisturbed(losses, numbers.device), torch.no_grad():
        for part in numbers[:AT_MOST].split(AT_ONCE):
            try:
                losses(windows.gather(part, losses.fields))
            except Exception:
                for number in part.split(1):
                    try:
                        losses(windows.gather(number, losses.fields))
                    except Exception as error:
                        return number, error
    return None


def has_diverged(gradients: Gradients, windows: WindowIndex, probes: Tensor) -> bool:
    """Return whether windows that were finite before training are not any more.

    What is wrong with them now comes from the parameters and not from the data.

    Parameters
    ----------
    gradients, windows
        Of the run.
    probes
        Windows whose losses and gradients were finite before training.
    """
    losses = gradients.losses
    with undisturbed(losses, windows.device):
        for number in probes.split(1):
            try:
                loss = losses(windows.gather(number, losses.fields))
                if not bool(loss.isfinite().all()):
                    return True
                if not _finite_gradient(gradients, windows, number):
                    return True
            except Exception:  # the network checks its own numbers, and fails
                return True
    return False


def probe_loss(gradients: Gradients, windows: WindowIndex, probes: Tensor) -> float:
    """Return the mean loss of some windows in evaluation mode; NaN for none."""
    losses = gradients.losses
    if not len(probes):
        return math.nan
    with undisturbed(losses, windows.device), torch.no_grad():
        return float(losses(windows.gather(probes, losses.fields)).double().mean())


def _finite_gradient(gradients: Gradients, windows: WindowIndex, number: Tensor) -> bool:
    losses = gradients.losses
    loss = losses(windows.gather(number, losses.fields)).sum()
    found = torch.autograd.grad(loss, gradients.parameters, allow_unused=True)
    dense = [g.to_dense() if g.is_sparse else g for g in found if g is not None]
    return math.isfinite(squared_norm(dense, largest_square(gradients.parameters)))


def name_windows(windows: WindowIndex, numbers: Tensor) -> str:
    """Series and forecast start of some windows, for a message."""
    if not len(numbers):
        return "no single window that was looked at, but their sum"
    series, rows = windows.rows(numbers.cpu().numpy())
    moments = windows.series.timeline.moments[rows]
    return shorten(
        [
            f"{windows.series.item_ids[i]} from {moment}"
            for i, moment in zip(series, moments, strict=True)
        ]
    )
