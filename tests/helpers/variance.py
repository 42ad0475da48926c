"""A variance probe for tests, and the variances by brute force."""

from __future__ import annotations

import torch

from pts_scott import Stratifier, WindowIndex
from pts_scott.diagnostics.variance import VarianceProbe
from pts_scott.engine.losses import Losses

COEFFICIENT = 0.7
# With 9 strata: two windows from each, or M = (18 − 9 · 2 / 3) / 2 = 6 in an inner step.
SETTINGS = {
    "gradients": 18,
    "anchor_batch_size": 2,
    "inner_steps": 3,
    "coefficient": COEFFICIENT,
}
BATCH, B_PER_STRATUM = 6, 2


def partition(windows: WindowIndex):
    """Nine strata."""
    return (Stratifier.periodic(3) * Stratifier.series()).stratify(windows)


def probe_of(losses, windows, strata=None, seed=0, **kwargs) -> VarianceProbe:
    strata = {"parts": partition(windows)} if strata is None else strata
    generator = torch.Generator().manual_seed(seed)
    return VarianceProbe(
        losses, windows, strata, **{**SETTINGS, "generator": generator, **kwargs}
    )


def point(losses: Losses) -> tuple[torch.Tensor, ...]:
    """Return a copy of the current parameters."""
    return tuple(p.detach().clone() for p in losses.trainable().values())


def moved(losses: Losses, size: float = 0.3) -> tuple[torch.Tensor, ...]:
    """Return a snapshot at some distance from the parameters."""
    generator = torch.Generator().manual_seed(2)
    return tuple(
        p + size * torch.randn(p.shape, generator=generator).to(p) for p in point(losses)
    )


def _autograd(loss, parameters):
    return torch.autograd.grad(loss, parameters, materialize_grads=True)


def gradient_table(losses, windows, at) -> torch.Tensor:
    """Return the gradients of all windows by autograd, one row per window."""
    rows = []
    before = point(losses)
    parameters = list(losses.trainable().values())
    try:
        with torch.no_grad():
            torch._foreach_copy_(parameters, list(at))
        for number in range(len(windows)):
            loss = losses(windows.gather(torch.tensor([number])))[0]
            rows.append(torch.cat([g.flatten() for g in _autograd(loss, parameters)]))
    finally:
        with torch.no_grad():
            torch._foreach_copy_(parameters, list(before))
    return torch.stack(rows)


def total(rows: torch.Tensor) -> float:
    """Return the variance of all rows, summed over columns."""
    return float(rows.var(dim=0, unbiased=False).sum())


def members(strata) -> list[torch.Tensor]:
    """Return the windows of each stratum."""
    return list(strata.order.split(strata.sizes.tolist()))


def brute_force(now, then, strata) -> dict[str, float]:
    """Return the four variances, from the gradients of all windows."""
    n, b, k, c = SETTINGS.values()
    size = (n - len(strata) * b / k) / 2
    weights = strata.weights.tolist()

    def inside(table):
        return sum(w**2 * total(table[m]) for w, m in zip(weights, members(strata)))

    change = total(now - c * then) / size
    return {
        "uniform": total(now) / n,
        "stratified": inside(now) * len(strata) / n,
        "scott": change + c**2 * inside(then) / b,
        "scsg": change + c**2 * total(then) / (len(strata) * b),
    }
