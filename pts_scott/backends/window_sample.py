"""A large batch of windows, for layers and scalers that are initialised from data."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pts_scott.data.windows import WindowIndex, spread

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
    numbers = spread(len(windows), SAMPLE_SIZE).to(windows.device)
    return windows.gather(numbers, fields)
