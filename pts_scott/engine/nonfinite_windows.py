"""Find the windows that cause a fault: a non-finite loss or gradient, or an error."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pts_scott._utils.text import shorten
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.isolation import evaluation_passes
from pts_scott.engine.losses import Losses
from pts_scott.engine.tensors import largest_square, squared_norm

AT_ONCE = 256  # windows of one pass, and those whose gradients are taken one by one
AT_MOST = 2**16  # windows that are searched: an anchor may contain all windows


def nonfinite_windows(losses: Losses, windows: WindowIndex, numbers: Tensor) -> Tensor:
    """Return some of the windows whose own loss or gradient is non-finite or too large.

    Parameters
    ----------
    losses
        The window losses, at the current parameters.
    windows
        The index.
    numbers
        The windows to search, the most likely ones first.
    """
    with evaluation_passes(losses, numbers.device):
        for part in numbers[:AT_MOST].split(AT_ONCE):
            part = part.unique()
            with torch.no_grad():
                finite = losses(windows.gather(part, losses.fields)).isfinite()
            if not bool(finite.all()):
                return part[~finite]
        searched = numbers[:AT_ONCE].unique()
        found = [_has_finite_gradient(losses, windows, n[None]) for n in searched]
        return searched[~torch.tensor(found, device=numbers.device)]


def failing_window(
    losses: Losses, windows: WindowIndex, numbers: Tensor
) -> tuple[Tensor, Exception] | None:
    """Return a window on whose loss the network raises, and the error; None otherwise.

    Parameters
    ----------
    losses
        The window losses of the network.
    windows
        The index.
    numbers
        The windows to search, the most likely ones first.
    """
    with evaluation_passes(losses, numbers.device), torch.no_grad():
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


def has_diverged(losses: Losses, windows: WindowIndex, probes: Tensor) -> bool:
    """Return whether windows that were finite before training no longer are.

    If so, the parameters are the cause, and not the data.

    Parameters
    ----------
    losses, windows
        Of the run.
    probes
        Windows whose losses and gradients were finite before training.
    """
    with evaluation_passes(losses, windows.device):
        for number in probes.split(1):
            try:
                loss = losses(windows.gather(number, losses.fields))
                if not bool(loss.isfinite().all()):
                    return True
                if not _has_finite_gradient(losses, windows, number):
                    return True
            except Exception:  # the network checks its own numbers, and raises
                return True
    return False


def probe_loss(losses: Losses, windows: WindowIndex, probes: Tensor) -> float:
    """Return the mean loss of some windows in evaluation mode; NaN for none."""
    if not len(probes):
        return math.nan
    with evaluation_passes(losses, windows.device), torch.no_grad():
        found = losses(windows.gather(probes, losses.fields))
    return float(found.cpu().double().mean())  # MPS has no double precision


def _has_finite_gradient(losses: Losses, windows: WindowIndex, number: Tensor) -> bool:
    parameters = tuple(losses.trainable().values())
    loss = losses(windows.gather(number, losses.fields)).sum()
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    dense = [g.to_dense() if g.is_sparse else g for g in found if g is not None]
    return math.isfinite(squared_norm(dense, largest_square(parameters)))


def name_windows(windows: WindowIndex, numbers: Tensor) -> str:
    """Name the series and forecast start of some windows, for a message."""
    if not len(numbers):
        return "no single window that was checked, but their sum"
    series, rows = windows.rows(numbers.cpu().numpy())
    moments = windows.series.timeline.moments[rows]
    return shorten(
        [
            f"{windows.series.item_ids[i]} from {moment}"
            for i, moment in zip(series, moments, strict=True)
        ]
    )
