"""Series with and without planted differences between their gradients."""

from __future__ import annotations

import numpy as np


def noisy_rows(
    spreads: tuple[float, ...], length: int = 300, seed: int = 0
) -> np.ndarray:
    """Return series around the level 10, each with its own spread of white noise.

    Windows of a series with a large spread have large gradients.
    """
    noise = np.random.default_rng(seed).standard_normal((len(spreads), length))
    return 10 + np.array(spreads)[:, None] * noise
