"""The choice of a sampler: which strata and shares give gradients of the least variance.

Every candidate is compared at the same cost, one gradient per window, by the variance of
its samples on windows that neither its strata nor its shares were fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pts_scott.data.window_index import WindowIndex
from pts_scott.diagnostics.allocation_variance import (
    RelativeVariance,
    StratumMoments,
    relative_variance,
    within_share,
)
from pts_scott.method.allocation import spread_shares
from pts_scott.method.samplers import SAMPLES_TOGETHER
from pts_scott.strata.partition import Strata
from pts_scott.strata.policy import Policy

WINDOWS_PER_STRATUM = 8  # measured windows that strata have on average, at least
CHANGED_PART = 4  # one in so many windows is measured twice, for a control variate
REFERENCE_WINDOWS = 4096  # from which the weights of strata in a fold are estimated


class Measured(NamedTuple):
    """Windows drawn uniformly, and sketches of their gradients: (windows, dimensions)."""

    numbers: np.ndarray
    sketches: Tensor

    def part(self, places: Tensor) -> Measured:
        """Return some of the windows."""
        return Measured(self.numbers[places.numpy()], self.sketches[places])


class Layout(NamedTuple):
    """How samples are drawn from strata: their shares a_i, and their order."""

    shares: Tensor
    order: Tensor


class Judgement(NamedTuple):
    """What one half of the windows says about a partition: the values of a finding."""

    strata: int
    proportional: RelativeVariance
    spread: RelativeVariance
    within: float


@dataclass(frozen=True)
class Finding:
    """The variances of one partition, relative to uniform mini-batches.

    Parameters
    ----------
    label
        Name of the partition.
    strata
        B.
    proportional, spread
        The variances with proportional and with spread allocation.
    within
        The share of the gradients' variance that lies within strata; NaN if unknown.
    """

    label: str
    strata: int
    proportional: RelativeVariance
    spread: RelativeVariance
    within: float = math.nan

    @property
    def best(self) -> tuple[str, RelativeVariance]:
        """The better allocation, with its variance."""
        pairs = (("spread", self.spread), ("proportional", self.proportional))
        return min(pairs, key=lambda pair: pair[1].value)


def findings_table(findings: Sequence[Finding]) -> pd.DataFrame:
    """Return findings as a table with one row per partition and allocation."""
    rows = [
        {
            "strata": finding.label,
            "count": finding.strata,
            "allocation": allocation,
            "variance": found.value,
            "standard_error": found.standard_error,
        }
        for finding in findings
        for allocation, found in (
            ("proportional", finding.proportional),
            ("spread", finding.spread),
        )
    ]
    names = ["strata", "count", "allocation", "variance", "standard_error"]
    return pd.DataFrame(rows, columns=names)


class SamplerChoice:
    """Compares samplers of one size over candidate partitions.

    Parameters
    ----------
    windows
        The index.
    policies
        Candidate policies by label. Those that need gradients are fitted anew at each
        comparison.
    size
        M, windows in a sample.
    """

    def __init__(
        self, windows: WindowIndex, policies: Mapping[str, Policy], size: int
    ) -> None:
        self._windows = windows
        # Samples are stratified together with their neighbours, and judged by their mean.
        self._size = SAMPLES_TOGETHER * size
        self.policies = dict(policies)
        self._strata: dict[str, Strata] = {}

    def compare(self, measured: Measured, reference: np.ndarray) -> list[Finding]:
        """Return the variances of all candidates that there are windows enough for.

        Parameters
        ----------
        measured
            Windows and their gradients; each half is judged by what the other tells.
        reference
            More windows drawn uniformly, from which weights are estimated.
        """
        halves = torch.arange(len(measured.numbers)) % 2 == 0
        first, second = (measured.part(torch.nonzero(h)[:, 0]) for h in (halves, ~halves))
        findings = []
        for label, policy in self.policies.items():
            if policy.needs_gradients:
                parts = [
                    self._judge_learned(policy, fit, judge, reference)
                    for fit, judge in ((first, second), (second, first))
                ]
            else:
                strata = self.strata(label)
                most = len(measured.numbers) // WINDOWS_PER_STRATUM
                if not 2 <= len(strata) <= most:
                    continue
                parts = [
                    self._judge(strata, fit, judge)
                    for fit, judge in ((first, second), (second, first))
                ]
            if any(part is None for part in parts):
                continue
            counts, plain, spread, within = zip(*parts, strict=True)  # type: ignore[arg-type]
            findings.append(
                Finding(
                    label,
                    max(counts),
                    RelativeVariance.mean(*plain),
                    RelativeVariance.mean(*spread),
                    sum(within) / len(within),
                )
            )
        return findings

    def strata(self, label: str) -> Strata:
        """Return the partition of a policy that needs no gradients, made once."""
        if label not in self._strata:
            self._strata[label] = self.policies[label].stratify(self._windows)
        return self._strata[label]

    def add(self, label: str, strata: Strata) -> None:
        """Use a partition that exists already."""
        self._strata[label] = strata

    def layout(self, strata: Strata, measured: Measured, allocation: str) -> Layout:
        """Return the layout of samples, from all measured windows."""
        members = torch.from_numpy(strata.members(measured.numbers))
        known = torch.nonzero(members >= 0)[:, 0]
        sketches = measured.sketches[known]
        weights = strata.weights.cpu()
        return self._layout(sketches, members[known], weights, allocation)

    def _layout(
        self, sketches: Tensor, members: Tensor, weights: Tensor, allocation: str
    ) -> Layout:
        moments = StratumMoments.of(sketches, members, len(weights))
        shares = weights
        if allocation == "spread":
            shares = spread_shares(weights, moments.spread(self._size))
        elif allocation == "equal":
            shares = torch.full_like(weights, 1 / len(weights))
        return Layout(shares, moments.order(weights / shares))

    def _judge(self, strata: Strata, fit: Measured, judge: Measured) -> Judgement:
        members = [torch.from_numpy(strata.members(x.numbers)) for x in (fit, judge)]
        return self._compare(fit, judge, members[0], members[1], strata.weights.cpu())

    def _judge_learned(
        self, policy: Policy, fit: Measured, judge: Measured, reference: np.ndarray
    ) -> Judgement | None:
        rows = fit.sketches.numpy()
        fitted = policy.fit_gradients(self._windows, fit.numbers, rows)
        numbers = np.concatenate([fit.numbers, judge.numbers, reference])
        codes = fitted.codes_at(self._windows, numbers)
        found, places = np.unique(codes, return_inverse=True)
        if len(found) < 2:
            return None
        members = torch.from_numpy(places.reshape(-1))
        weights = torch.bincount(members).double() / len(members)
        ends = len(fit.numbers), len(fit.numbers) + len(judge.numbers)
        mine, theirs = members[: ends[0]], members[ends[0] : ends[1]]
        return self._compare(fit, judge, mine, theirs, weights)

    def _compare(
        self,
        fit: Measured,
        judge: Measured,
        fitted: Tensor,
        judged: Tensor,
        weights: Tensor,
    ) -> Judgement:
        """Judge both allocations by windows that their layouts do not depend on."""
        found = []
        for allocation in ("proportional", "spread"):
            layout = self._layout(fit.sketches, fitted, weights, allocation)
            found.append(
                relative_variance(judge.sketches, judged, weights, *layout, self._size)
            )
        within = within_share(judge.sketches, judged, weights)
        return Judgement(len(weights), found[0], found[1], within)
