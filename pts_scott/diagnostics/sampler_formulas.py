"""Variance of each gradient estimator, computed from measured variances of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from pts_scott.diagnostics.group_variance import Estimate, sum_of_group_means
from pts_scott.strata.partition import Strata

# What is measured per window: ∇f(θ), ∇f(θ_s) and ∇f(θ) − c ∇f(θ_s), θ_s the snapshot.
CURRENT, SNAPSHOT, CHANGE = range(3)


@dataclass(frozen=True)
class SamplerVariance:
    """Variance of one gradient estimator at given cost: a row of the probe's table.

    Parameters
    ----------
    sampler
        "uniform", "stratified", "scott" or "scsg".
    stratifier
        Label of the strata; "" for the uniform sampler. SCSG does not use the strata,
        but its anchor has as many windows as theirs.
    strata
        B; 1 for the uniform sampler.
    gradients
        n, gradients per step: the cost, the same in every row.
    batch_size
        Windows in the mini-batch of a step: n, or M for an inner step.
    variance
        E‖estimate − ∇f(θ)‖²; NaN if the cost cannot be met.
    standard_error
        Standard error of ``variance``, from the spread over groups of the sample; 0 if
        exact, NaN if the sample is too small to be split.
    relative
        ``variance`` divided by that of the uniform sampler.
    loop_relative
        The same for the mean of the K steps that share an anchor. The error of an
        anchor is the same in all of them and does not average out; that of other
        samplers does.
    within
        The share of σ² that lies within the strata at θ, Σ w_i σ_i² / σ²; 1 for the
        uniform sampler.
    note
        Why there is no variance, or why it is hypothetical; "" otherwise.
    """

    sampler: str
    stratifier: str
    strata: int
    gradients: int
    batch_size: float
    variance: float
    standard_error: float
    relative: float
    loop_relative: float
    within: float
    note: str


@dataclass(frozen=True)
class StepSettings:
    """Settings of a step, at which estimators are compared.

    Parameters
    ----------
    gradients
        n, the cost of a step.
    anchor_batch_size
        b, windows per stratum in an anchor.
    inner_steps
        K, inner steps per anchor; may be a mean.
    coefficient
        c of the control variate.
    """

    gradients: int
    anchor_batch_size: int
    inner_steps: float
    coefficient: float

    def inner_batch_size(self, count: int) -> tuple[float, str]:
        """Return M of an inner step that costs n with B = ``count``, and a note."""
        share = count * self.anchor_batch_size / self.inner_steps
        size = (self.gradients - share) / 2
        if size > 0:
            return size, _fraction_note("M", size)
        return math.nan, (
            f"its share of the anchor costs Bb/K = {share:g} gradients of "
            f"{self.gradients} per step: allow more gradients or inner steps"
        )


class SamplerFormulas:
    """The variances of all estimators, given those of per-window gradients.

    Parameters
    ----------
    settings
        The step.
    everywhere
        Variances among all windows, of shape (1, groups, quantities); the quantities
        are CURRENT or, with a snapshot, CURRENT, SNAPSHOT and CHANGE.
    exact
        Whether variances have no sampling error.
    """

    def __init__(self, settings: StepSettings, everywhere: Tensor, exact: bool) -> None:
        self._settings, self._everywhere, self._exact = settings, everywhere, exact
        self._uniform = self._estimate(everywhere[..., CURRENT] / settings.gradients)

    def uniform(self) -> SamplerVariance:
        """Return the row of the uniform sampler."""
        n, variance = self._settings.gradients, self._uniform
        relative = _ratio(variance.value, variance.value)
        return SamplerVariance(
            sampler="uniform",
            stratifier="",
            strata=1,
            gradients=n,
            batch_size=float(n),
            variance=variance.value,
            standard_error=variance.standard_error,
            relative=relative,
            loop_relative=relative,
            within=1.0,
            note="",
        )

    def stratified(
        self, label: str, strata: Strata, inside: Tensor
    ) -> Iterator[SamplerVariance]:
        """Yield the rows of the samplers that depend on a partition.

        Parameters
        ----------
        label, strata
            The partition.
        inside
            Variances within each stratum, of shape (strata, groups, quantities).
        """
        settings, uniform = self._settings, self._uniform.value
        n, b, c = settings.gradients, settings.anchor_batch_size, settings.coefficient
        weights, count = strata.weights.cpu()[:, None], len(strata)
        within = self._estimate(weights * inside[..., CURRENT]).value

        def row(
            sampler: str, size: float, variance: Estimate, note: str, anchor: float = 0.0
        ) -> SamplerVariance:
            # In the mean of K steps the anchor's error stays, the rest shrinks to 1/K.
            lasting = (settings.inner_steps - 1) * anchor
            return SamplerVariance(
                sampler=sampler,
                stratifier=label,
                strata=count,
                gradients=n,
                batch_size=size,
                variance=variance.value,
                standard_error=variance.standard_error,
                relative=_ratio(variance.value, uniform),
                loop_relative=_ratio(variance.value + lasting, uniform),
                within=_ratio(within, uniform * n),
                note=note,
            )

        squares = weights.square()
        stratified = self._estimate(squares * inside[..., CURRENT] * (count / n))
        yield row("stratified", float(n), stratified, _fraction_note("n/B", n / count))
        if inside.shape[-1] == 1:  # no snapshot, so no control variate
            return

        size, note = settings.inner_batch_size(count)
        anchor = self._estimate(squares * inside[..., SNAPSHOT] * (c**2 / b))
        inner = self._everywhere[..., CHANGE] / size
        yield row("scott", size, self._estimate(inner) + anchor, note, anchor.value)
        # The same groups measure both terms of SCSG, so they are added before estimating.
        uniform_anchor = self._everywhere[..., SNAPSHOT] * c**2 / (count * b)
        variance = self._estimate(inner + uniform_anchor)
        yield row("scsg", size, variance, note, self._estimate(uniform_anchor).value)

    def _estimate(self, values: Tensor) -> Estimate:
        return sum_of_group_means(values, exact=self._exact)


def _ratio(value: float, base: float) -> float:
    return value / base if base else math.nan


def _fraction_note(name: str, size: float) -> str:
    """Return a warning if a sampler would draw less than one window."""
    if size >= 1:
        return ""
    return f"{name} = {size:.2g} is less than one window: for comparison only"
