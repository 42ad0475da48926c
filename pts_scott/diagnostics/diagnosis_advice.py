"""Advice: one sentence that follows from the measured variances and the noise scale."""

from __future__ import annotations

import math

from pts_scott.diagnostics.noise_scale import NoiseScale, rounded
from pts_scott.diagnostics.sampler_choice import Finding

MIN_GAIN = 0.1  # a smaller share of the variance is not worth a recommendation
MIN_SAVED_STEPS = 0.05  # a smaller share of the steps is not noticed yet


def advise(
    best: Finding | None,
    candidates: int,
    noise: NoiseScale,
    batch_size: int,
    step: int,
) -> str:
    """Return one sentence of advice.

    Parameters
    ----------
    best
        The partition of the lowest variance; None if none is known.
    candidates
        Number of partitions that were compared.
    noise
        The gradient noise scale.
    batch_size
        M.
    step
        Steps of training before the measurement.
    """
    scale = batch_size_clause(noise, batch_size, step)
    if best is None:
        return f"Nothing to gain: no strata could be compared; {scale}."
    allocation, variance = best.best
    equivalent = batch_size / max(variance.value, variance.standard_error, 1e-3)
    name = f"{best.label} with {allocation} allocation"
    value = f"{variance.value:.2f} ± {variance.standard_error:.2f}"
    if not variance.is_gain or variance.value > 1 - MIN_GAIN:
        amount = "Hardly anything" if variance.is_gain else "Nothing"
        return (
            f"{amount} to gain from strata: the best of {candidates}, {name}, has "
            f"{value} of the variance of uniform mini-batches; {scale}."
        )
    advice = (
        f"Draw from {name}: mini-batches of {batch_size} then have {value} of the "
        f"variance of uniform ones, as if batch_size were {equivalent:.0f} at the cost "
        f"of {batch_size}; method='auto' does this by itself"
    )
    if saved_steps(variance.value, noise.value, batch_size) < MIN_SAVED_STEPS:
        # As at the start of training, where all gradients point the same way.
        advice += (
            f", and it will pay once the noise scale ({rounded(noise.value)} after "
            f"{step} steps) is no longer far below batch_size"
        )
    return f"{advice}."


def saved_steps(variance: float, noise: float, batch_size: int) -> float:
    """Return the share of steps that a lower variance saves, by the noise scale.

    The number of steps to a given loss is proportional to 1 + v·S/M, with v the relative
    variance and S the noise scale (McCandlish et al., 2018).
    """
    if math.isinf(noise):
        return 1 - variance
    ratio = noise / batch_size
    return 1 - (1 + variance * ratio) / (1 + ratio)


def batch_size_clause(noise: NoiseScale, batch_size: int, step: int) -> str:
    """Return what the noise scale says about the batch size."""
    if math.isnan(noise.value):
        return "all measured gradients are zero, so there is nothing to learn"
    if math.isinf(noise.value):
        return (
            f"the noise scale is above {rounded(noise.low)} after {step} steps, so a "
            "larger batch_size needs fewer steps"
        )
    scale = f"the noise scale is {rounded(noise.value)} after {step} steps, so"
    if noise.value <= batch_size:
        limit = rounded(max(noise.value, 1.0))
        further = f"steps={10 * max(step, 1)} looks further ahead"
        return f"{scale} a batch_size above {limit} buys little so far ({further})"
    return f"{scale} a larger batch_size, up to about that, needs fewer steps"
