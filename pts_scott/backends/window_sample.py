"""A large batch of windows, for layers and scalers that are initialised from data."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pts_scott._utils.spacing import evenly_spaced
from pts_scott.data.window_index import WindowIndex

SAMPLE_SIZE = 1024


def sample_batch(
    windows: WindowIndex, fields: Sequence[str] | None = None
) -> dict[str, Tensor]:
    """Gather at most 1,024 windows, spread evenly over all of them.

    Parameters
    ----------
    windows
        The windows of a training run.
    fields
        Names of the fields to gather; None for all.
    """
    numbers = evenly_spaced(len(windows), SAMPLE_SIZE).to(windows.device)
    return windows.gather(numbers, fields)
