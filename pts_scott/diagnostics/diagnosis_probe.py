"""Measurements of a diagnosis: the gradients of uniform windows at points of training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from pts_scott._utils.rng import Generators
from pts_scott.data.window_index import WindowIndex
from pts_scott.diagnostics.allocation_variance import RelativeVariance, uniform_variance
from pts_scott.diagnostics.diagnosis import Diagnosis, Point
from pts_scott.diagnostics.gradient_sketches import GradientSketches
from pts_scott.diagnostics.noise_scale import NoiseScale
from pts_scott.diagnostics.sampler_choice import (
    CHANGED_PART,
    REFERENCE_WINDOWS,
    Measured,
    SamplerChoice,
)
from pts_scott.engine.losses import Losses
from pts_scott.errors import DataError, ModelError, ScottWarning
from pts_scott.method.objective import Objective
from pts_scott.method.protocol import Tensors
from pts_scott.strata.policy import Policy

MIN_WINDOWS = 64  # with fewer, no partition can be judged by windows not used to make it
DIMENSIONS = 512  # of a sketch: more than probes along a run use, for the noise scale


class DiagnosisProbe:
    """Measures gradients of a network, and collects the points of a diagnosis.

    Neither the network nor global random state is changed.

    Parameters
    ----------
    losses, windows
        The network, and the windows that it is trained on.
    policies
        Candidate policies by label.
    batch_size
        M.
    count
        Windows to measure at each point; all, if there are fewer.
    objective
        The weights of the windows in the loss; None if each counts alike.
    seed
        Seed of the drawn windows and of the sketches.

    Raises
    ------
    DataError
        If there are too few windows.
    """

    def __init__(
        self,
        losses: Losses,
        windows: WindowIndex,
        policies: Mapping[str, Policy],
        batch_size: int,
        count: int,
        objective: Objective | None,
        seed: int,
    ) -> None:
        if len(windows) < MIN_WINDOWS:
            raise DataError(
                f"the dataset has {len(windows)} windows, and a diagnosis needs at least "
                f"{MIN_WINDOWS}: use longer series, or shorten context_length or "
                "prediction_length."
            )
        self._losses, self._windows = losses, windows
        self._batch_size, self._count = batch_size, count
        self._objective = objective
        self._choice = SamplerChoice(windows, policies, batch_size)
        self._sketches = GradientSketches(losses, seed % 2**31, DIMENSIONS)
        self._generator = Generators.from_seed(seed).probe
        self._points: list[Point] = []

    @property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis, from all points so far.

        Raises
        ------
        ModelError
            If gradients were finite at no point.
        """
        if not self._points:
            raise ModelError(
                f"most gradients of {self._losses.name} are not finite, so there is "
                "nothing to compare. Divide the series by a number that brings their "
                "values near 1, and check that none jumps by many orders of magnitude."
            )
        last = {finding.label for finding in self._points[-1].findings}
        left_out = tuple(label for label in self._choice.policies if label not in last)
        points = tuple(self._points)
        return Diagnosis(self._losses.name, self._batch_size, points, left_out)

    def parameters(self) -> Tensors:
        """Return a copy of the network's trained parameters."""
        return tuple(p.detach().clone() for p in self._losses.trainable().values())

    def measure(self, step: int, earlier: Tensors | None) -> Point | None:
        """Add a point at the network's current parameters.

        Parameters
        ----------
        step
            Steps made so far.
        earlier
            The parameters some steps ago, for the control variate; None for none.

        Returns
        -------
        Point or None
            The point; None if most gradients are not finite, so that there is none.
        """
        numbers = _distinct(self._windows, self._count, self._generator)
        sketches = self._weighted(self._sketches(self._windows, numbers), numbers)
        finite = sketches.isfinite().all(dim=1)
        if not bool(finite.all()):
            self._warn(step, finite)
            if 2 * int(finite.sum()) <= len(numbers):
                return None
            numbers, sketches = numbers[finite.to(numbers.device)], sketches[finite]
        change = None if earlier is None else self._change(numbers, sketches, earlier)
        findings = []
        if uniform_variance(sketches) > 0:
            drawn = self._windows.draw(REFERENCE_WINDOWS, self._generator)
            measured = Measured(numbers.cpu().numpy(), sketches)
            findings = self._choice.compare(measured, drawn.cpu().numpy())
        noise = NoiseScale.of(sketches)
        point = Point(step, len(numbers), tuple(findings), noise, change)
        self._points.append(point)
        return point

    def _weighted(self, sketches: Tensor, numbers: Tensor) -> Tensor:
        """Return the gradients of the windows' part of the objective."""
        if self._objective is None:
            return sketches
        return self._objective.weighted(sketches, numbers)

    def _warn(self, step: int, finite: Tensor) -> None:
        count = int((~finite).sum())
        consequence = ""
        if 2 * count >= len(finite):
            consequence = ", and so is this point of training"
        warnings.warn(
            f"{count} of {len(finite)} gradients of {self._losses.name} after {step} "
            f"steps are not finite and are left out{consequence}.",
            ScottWarning,
            stacklevel=2,
        )

    def _change(
        self, numbers: Tensor, sketches: Tensor, earlier: Tensors
    ) -> RelativeVariance:
        """Return δ of a control variate whose snapshot has the earlier parameters."""
        few = numbers[: max(MIN_WINDOWS // 2, len(numbers) // CHANGED_PART)]
        before = self._weighted(self._sketches.at(earlier, self._windows, few), few)
        return _variance_ratio(sketches[: len(few)] - before, sketches[: len(few)])


def _variance_ratio(rows: Tensor, base: Tensor) -> RelativeVariance:
    """Return the ratio of two variances, from paired rows, and its standard error."""
    squares, divisors = (
        (x - x.mean(dim=0)).square().sum(dim=1).double() for x in (rows, base)
    )
    mean = float(divisors.mean())
    if not mean > 0:
        return RelativeVariance(math.nan, math.nan)
    ratio = float(squares.mean()) / mean
    influence = (squares - ratio * divisors) / mean
    return RelativeVariance(ratio, float(influence.std()) / math.sqrt(len(rows)))


def _distinct(windows: WindowIndex, count: int, generator: torch.Generator) -> Tensor:
    """Draw different windows uniformly, in random order; all, if there are fewer.

    A window that was drawn twice could be among those that strata are fitted to, and
    among those that judge them.
    """
    if 4 * count >= len(windows):
        order = torch.randperm(len(windows), generator=generator)
        return order[:count].to(windows.device)
    # Of 2n draws from more than 4n windows, more than n are different.
    drawn = windows.draw(2 * count, generator).unique()
    order = torch.randperm(len(drawn), generator=generator)
    return drawn[order[:count].to(drawn.device)]
