"""Variance of allocated samples, from the gradients of a uniform sample of windows.

A sample of n windows has one window in each n-th of [0, 1), over which the strata are
laid out by their shares a_i. In the k-th of them, stratum i is hit with probability p_ki,
and a window counts r_i/n with r_i = w_i/a_i. With s_i the mean of ‖g‖² in stratum i and
μ_i the mean of g, the variance times n is

    Σ_i w_i r_i s_i − (1/n) Σ_k ‖Σ_i p_ki r_i μ_i‖².

Uniform mini-batches have one stratum: s − ‖μ‖². For n = 1 it is the variance of
importance sampling; if every stratum fills whole n-ths, that of stratified sampling.
Gradients are given by sketches, rows of shape (windows, dimensions), in whose space all
of this is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

#: Windows that the pooled spread counts as, where a stratum has few of its own.
PSEUDO_WINDOWS = 4


@dataclass(frozen=True)
class StratumMoments:
    """What a uniform sample of windows tells about the gradients in each stratum.

    Parameters
    ----------
    counts
        Windows of the sample in each stratum.
    squares
        Their sum of ‖g‖².
    means
        Their mean sketch.
    noise
        The variance of that mean: what ‖mean‖² exceeds ‖μ_i‖² by, on average.
    """

    counts: Tensor
    squares: Tensor
    means: Tensor
    noise: Tensor

    @classmethod
    def of(cls, sketches: Tensor, members: Tensor, strata: int) -> StratumMoments:
        """Return the moments of a sample, given the stratum of each window."""
        counts = torch.bincount(members, minlength=strata).double()

        def sums(values: Tensor) -> Tensor:
            shape = (strata, *values.shape[1:])
            return torch.zeros(shape, dtype=torch.float64).index_add_(0, members, values)

        some = counts.clamp(min=1)
        means, squares = sums(sketches) / some[:, None], sums(_square_norms(sketches))
        inside = (squares - counts * _square_norms(means)).clamp(min=0)
        noise = inside / ((counts - 1).clamp(min=1) * some)
        return cls(counts, squares, means, noise)

    def spread(self, size: int) -> Tensor:
        """Return ρ_i of each stratum, shrunk towards the pooled value.

        ρ_i² = σ_i² + φ‖μ_i‖², where φ = min(1, B/n) is about the part of the n-ths that
        several strata share: there, the means of strata add to the variance, too.

        Parameters
        ----------
        size
            n, windows in the samples that are to be drawn.
        """
        strata, counts = len(self.counts), self.counts
        phi = min(1.0, strata / size)
        evidence = (counts - 1).clamp(min=0)
        inside = self.squares - counts * _square_norms(self.means)
        inside = inside.clamp(min=0)  # σ_i² times the evidence for it
        own = (1 - phi) * inside + phi * self.squares * evidence / counts.clamp(min=1)
        pooled = float(phi * self.squares.sum() / counts.sum())
        if float(evidence.sum()):
            pooled += float((1 - phi) * inside.sum() / evidence.sum())
        else:
            pooled += float((1 - phi) * self.squares.sum() / counts.sum())
        total = own + PSEUDO_WINDOWS * pooled
        return (total / (evidence + PSEUDO_WINDOWS)).sqrt()

    def order(self, ratio: Tensor) -> Tensor:
        """Return the strata in an order in which neighbours resemble each other.

        Strata that share an n-th add the variance between their means. The order is that
        of r_i·μ_i along their first principal direction.
        """
        points = ratio[:, None] * self.means
        centred = points - points.mean(dim=0)
        _, _, directions = torch.linalg.svd(centred, full_matrices=False)
        along = centred @ directions[0]
        return torch.argsort(along, stable=True)


@dataclass(frozen=True)
class RelativeVariance:
    """Variance of a sampler, as a share of that of uniform mini-batches of its size.

    Parameters
    ----------
    value
        The share.
    standard_error
        Its standard error.
    """

    value: float
    standard_error: float

    @property
    def is_gain(self) -> bool:
        """Whether it is lower than that of uniform mini-batches, beyond doubt."""
        return 1.0 - self.value > 2.0 * self.standard_error

    @classmethod
    def mean(cls, *parts: RelativeVariance) -> RelativeVariance:
        """Return the mean of estimates from different windows."""
        error = math.sqrt(sum(p.standard_error**2 for p in parts)) / len(parts)
        return cls(sum(p.value for p in parts) / len(parts), error)


def slot_probabilities(shares: Tensor, order: Tensor, size: int) -> Tensor:
    """Return p_ki, the probability of stratum i in the k-th n-th: (n, B)."""
    ends = shares[order].cumsum(0)
    ends[-1] = 1.0
    begins = torch.cat([ends.new_zeros(1), ends[:-1]])
    edges = torch.arange(size + 1, dtype=torch.float64)[:, None] / size
    inside = torch.minimum(ends, edges[1:]) - torch.maximum(begins, edges[:-1])
    probabilities = torch.zeros(size, len(shares), dtype=torch.float64)
    probabilities[:, order] = size * inside.clamp(min=0)
    return probabilities


def relative_variance(
    sketches: Tensor,
    members: Tensor,
    weights: Tensor,
    shares: Tensor,
    order: Tensor,
    size: int,
) -> RelativeVariance:
    """Return the variance of an allocation, relative to uniform sampling.

    Parameters
    ----------
    sketches, members
        Gradients of windows drawn uniformly, which neither shares nor order depend on,
        and the stratum of each window.
    weights, shares, order
        w_i, a_i, and the order in which strata are laid out.
    size
        n.
    """
    uniform = uniform_variance(sketches)
    if not uniform > 0:
        return RelativeVariance(math.nan, math.nan)
    ratio, count = weights / shares, len(members)
    moments = StratumMoments.of(sketches, members, len(weights))
    squares = _square_norms(sketches)
    parts = ratio[members] * squares
    hits = slot_probabilities(shares, order, size) * ratio
    slots = hits @ moments.means  # the mean of each n-th
    noise = hits.square() @ moments.noise
    value = float(parts.mean()) - float((_square_norms(slots) - noise).mean())
    value /= uniform
    # What each window adds to the ratio, to first order, and the noise of squared means.
    lever = (hits.T @ slots / size)[members] * (count / moments.counts[members])[:, None]
    inner = 2 * (lever * (sketches - moments.means[members])).sum(dim=1)
    mean = sketches.mean(dim=0)
    own = squares - 2 * (sketches - mean) @ mean
    influence = (parts - inner - value * own) / uniform
    square = float(influence.var()) / count
    square += 2 * float(noise.square().sum()) / (size * uniform) ** 2
    return RelativeVariance(value, math.sqrt(square))


def within_share(sketches: Tensor, members: Tensor, weights: Tensor) -> float:
    """Return Σ w_i σ_i²/σ², the share of the variance that lies within strata.

    Strata with fewer than two of the windows are left out.
    """
    moments = StratumMoments.of(sketches, members, len(weights))
    several, uniform = moments.counts >= 2, uniform_variance(sketches)
    total = float(weights[several].sum())
    if not (uniform > 0 and total > 0):
        return math.nan
    inside = (moments.noise * moments.counts)[several]  # σ_i²
    return float((weights[several] * inside).sum()) / (total * uniform)


def uniform_variance(sketches: Tensor) -> float:
    """Return σ², the variance of the gradient of one uniform window."""
    return float(sketches.var(dim=0).sum())


def mean_square(sketches: Tensor) -> float:
    """Return ‖μ‖² of all windows: products of different windows, without their noise."""
    count = len(sketches)
    total = float(sketches.sum(dim=0).square().sum())
    return (total - float(_square_norms(sketches).sum())) / (count * (count - 1))


def control_variate_variance(best: float, change: float) -> float:
    """Return the variance of SCott over an outer loop at equal cost, relative to uniform.

    With x the anchor's share of a step's cost, it is (2 + x)·(V/x + δ): V of the anchor's
    sampler, divided by the windows of an anchor, and δ of the difference of the two
    gradients of an inner step. The best x, √(2V/δ), gives (√V + √(2δ))², which is never
    below V: what a control variate can gain, its anchor's sampler gains alone, with one
    gradient per window.

    Parameters
    ----------
    best
        V, the relative variance of the sampler that draws the anchor.
    change
        δ, the variance of ∇f_j(θ) − ∇f_j(θ_s) relative to that of ∇f_j(θ).
    """
    return (math.sqrt(max(best, 0.0)) + math.sqrt(2 * max(change, 0.0))) ** 2


def _square_norms(rows: Tensor) -> Tensor:
    return rows.square().sum(dim=1)
