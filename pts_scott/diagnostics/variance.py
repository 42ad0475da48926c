"""Variance of the gradient estimators at given parameters, at equal cost.

What is measured is the variance of the gradients of single windows, among all windows
and within strata; that of every estimator follows from it. Gradients are compared with
the mean of their group before a norm is taken, so that nothing cancels between large
sums, and a group's mean is all that is kept of it: memory does not grow with windows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pts_scott._utils.arguments import real_number, switch, whole_number
from pts_scott.data.window_index import WindowIndex, require_windows
from pts_scott.diagnostics.window_gradients import WindowGradients, constant, undisturbed
from pts_scott.engine.gradients import Losses, Tensors, own_tensors
from pts_scott.errors import ArgumentError
from pts_scott.strata.partition import Strata

GROUP = 64  # windows of a group, of which one estimate of a variance is made

NOW, THEN, CHANGE = range(3)  # ∇f(θ), ∇f(θ_s) and ∇f(θ) − c ∇f(θ_s), for θ_s a snapshot


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
        n, gradients a step: the cost, the same in every row.
    batch_size
        Windows of a step's own mini-batch: n, or M for an inner step.
    variance
        E‖estimate − ∇f(θ)‖²; NaN where the cost cannot be met.
    standard_error
        Of ``variance``, from the spread over groups of the sample; 0 if exact, NaN for
        a sample too small to be split.
    relative
        ``variance`` over that of the uniform sampler.
    loop_relative
        The same for the mean of the K steps that an anchor serves. The error of an
        anchor is the same in all of them and does not average out; that of other
        samplers does.
    within
        The share of σ² that lies within the strata at θ, Σ w_i σ_i² / σ²; 1 for the
        uniform sampler.
    note
        Why there is no variance, or what is unreal about it; "" for nothing.
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


class VarianceProbe:
    """Measures the variance of gradient estimators at the parameters of a network.

    With n gradients a step, B strata of weights w_i, and the variance σ² of a window's
    gradient (σ_i² within stratum i), the estimators and their variances are

    - uniform, n windows from anywhere: σ²/n;
    - stratified, n/B windows from each stratum: Σ w_i² σ_i² B/n. The windows a stratum
      may be a fraction, so that partitions of any B can be compared at any n;
    - scott, the inner step v = ∇f_ξ(θ) − c (∇f_ξ(θ_s) − anchor) with M uniform windows
      in ξ and b from each stratum in the anchor: τ²/M + c² Σ w_i² σ_i²(θ_s)/b, where τ²
      is the variance of ∇f_ξ(θ) − c ∇f_ξ(θ_s) for one window ξ. An anchor serves K inner
      steps, so that a step costs 2M + Bb/K; M is what makes this n, and may be a
      fraction;
    - scsg, the same with an anchor of Bb uniform windows: τ²/M + c² σ²(θ_s)/(Bb).

    The network is measured in evaluation mode, without dropout, which belongs to the
    noise of every estimator alike. Nothing of it is changed, nor any global random
    state.

    Parameters
    ----------
    losses
        The window losses of the network.
    windows
        The windows that estimators draw from.
    strata
        Partitions of these windows, by label.
    gradients
        n, the cost of a step.
    anchor_batch_size
        b, windows of an anchor from each stratum.
    inner_steps
        K, inner steps an anchor serves.
    coefficient
        c; 1 is the paper's method.
    sample
        Windows drawn from all. They are split into groups of some 64, or at least into
        halves, each of which gives an estimate of its own; what remains is left out.
    per_stratum
        Windows drawn from each stratum that has more than one, split in the same way.
        With less than four there is no standard error.
    exact
        Use every window once and draw none: no sampling error, for small data.
    generator
        Draws the windows; on their device.

    Raises
    ------
    ArgumentError

    Examples
    --------
    >>> strata = {"weekday": Stratifier.calendar("weekday").stratify(windows)}
    >>> probe = VarianceProbe(
    ...     Losses(network), windows, strata, gradients=64, generator=torch.Generator()
    ... )                                                        # doctest: +SKIP
    >>> probe.measure()                                          # doctest: +SKIP
    """

    def __init__(
        self,
        losses: Losses,
        windows: WindowIndex,
        strata: Mapping[str, Strata],
        *,
        gradients: int,
        anchor_batch_size: int = 1,
        inner_steps: int = 20,
        coefficient: float = 1.0,
        sample: int = 2048,
        per_stratum: int = 8,
        exact: bool = False,
        generator: torch.Generator,
    ) -> None:
        self._windows = require_windows(windows)
        self._strata = _checked_strata(strata, windows)
        self._gradients = whole_number("gradients", gradients)
        self._anchor_batch_size = whole_number("anchor_batch_size", anchor_batch_size)
        self._inner_steps: float = whole_number("inner_steps", inner_steps)
        self._coefficient = real_number("coefficient", coefficient, maximum=1.0)
        self._sample = _split(whole_number("sample", sample, minimum=2))
        self._per_stratum = _split(whole_number("per_stratum", per_stratum, minimum=2))
        self._exact = switch("exact", exact)
        self._generator = generator
        self._window_gradients = WindowGradients(losses)
        #: Windows whose gradient was computed, for one measurement and the next.
        self.count = 0

    def measure(
        self,
        snapshot: Tensors | None = None,
        *,
        inner_steps: float | None = None,
        coefficient: float | None = None,
    ) -> pd.DataFrame:
        """The variance of each estimator at the network's present parameters.

        Parameters
        ----------
        snapshot
            θ_s, in the order of ``Gradients.parameters``: where the anchor was taken.
            None leaves out the estimators with a control variate.
        inner_steps, coefficient
            K and c of this measurement, in place of the probe's. K may be the mean of
            what anchors have served.

        Returns
        -------
        pandas.DataFrame
            A row for each sampler and partition, with the columns of `SamplerVariance`.
        """
        if inner_steps is not None or coefficient is not None:
            other = copy.copy(self)
            if inner_steps is not None:
                other._inner_steps = real_number(
                    "inner_steps", inner_steps, exclusive=True
                )
            if coefficient is not None:
                other._coefficient = real_number("coefficient", coefficient, maximum=1.0)
            table = other.measure(snapshot)
            self.count = other.count
            return table
        with undisturbed(self._window_gradients.losses, self._windows.device):
            points = self._points(snapshot)
            everywhere = self._spread_everywhere(points)
            rows = [self._uniform_row(everywhere)]
            for label, strata in self._strata.items():
                inside = self._spread_inside(strata, points)
                rows += self._stratified_rows(label, strata, everywhere, inside)
        names = [field.name for field in fields(SamplerVariance)]
        return pd.DataFrame([asdict(row) for row in rows], columns=names)

    def _points(self, snapshot: Tensors | None) -> list[Tensors]:
        """θ, and θ_s if there is one."""
        now = tuple(map(constant, self._window_gradients.losses.trainable().values()))
        if snapshot is None:
            return [now]
        if [s.shape for s in snapshot] != [p.shape for p in now]:
            raise ArgumentError(
                "the snapshot does not have the shapes of the network's trained "
                "parameters; give their values in the order of Gradients.parameters, "
                "e.g. Scott.snapshot."
            )
        return [now, tuple(map(constant, snapshot))]

    # -- what is measured: variances, of shape (strata, groups, NOW … CHANGE) ---------

    def _spread_everywhere(self, points: list[Tensors]) -> Tensor:
        if self._exact:
            every = torch.arange(len(self._windows), device=self._windows.device)
            return self._variances([every], points)[None]
        groups, size = self._sample
        drawn = self._windows.draw(groups * size, self._generator)
        return self._variances(drawn.split(size), points)[None]

    def _spread_inside(self, strata: Strata, points: list[Tensors]) -> Tensor:
        groups, size = (1, 0) if self._exact else self._per_stratum
        quantities = 2 * len(points) - 1
        spread = torch.zeros(len(strata), groups, quantities, dtype=torch.float64)
        several = (strata.sizes > 1).cpu()  # one window alone has no variance
        if not bool(several.any()):
            return spread
        if self._exact:
            parts = strata.order.split(strata.sizes.tolist())
            chosen = [part for part in parts if len(part) > 1]
        else:
            drawn = strata.draw(groups * size, self._generator).reshape(len(strata), -1)
            chosen = list(drawn[several.to(drawn.device)].flatten().split(size))
        values = self._variances(chosen, points)
        spread[several] = values.reshape(-1, groups, quantities)
        return spread

    def _variances(self, groups: Sequence[Tensor], points: list[Tensors]) -> Tensor:
        """The variance within each group of windows, of shape (groups, NOW … CHANGE)."""
        sizes = [len(group) for group in groups]
        squares = [_GroupSquares(sizes) for _ in range(2 * len(points) - 1)]
        for part in torch.cat(list(groups)).split(self._window_gradients.chunk):
            for total, rows in zip(squares, self._gradients_at(points, part)):
                total.add(rows)
        # A group is all windows there are, or a sample of them.
        freedom = torch.tensor(sizes, dtype=torch.float64) - (0 if self._exact else 1)
        found = torch.stack([torch.stack(total.squares) for total in squares], dim=1)
        return found.cpu() / freedom[:, None]

    def _gradients_at(self, points: list[Tensors], windows: Tensor) -> Iterator[Tensors]:
        """Gradients of some windows, a row each: NOW, THEN and CHANGE.

        Each is good until the next.
        """
        batch = self._windows.gather(windows, self._window_gradients.losses.fields)
        self.count += len(windows) * len(points)
        now = self._window_gradients(points[0], batch)
        yield now
        for snapshot in points[1:]:
            then = self._window_gradients(snapshot, batch)
            yield then
            change = own_tensors(now)  # in place: to fetch memory takes longer than this
            torch._foreach_sub_(change, then, alpha=self._coefficient)
            yield tuple(change)

    # -- what follows from it ---------------------------------------------------------

    def _uniform_row(self, everywhere: Tensor) -> SamplerVariance:
        n = self._gradients
        estimate = self._mean(everywhere[..., NOW] / n)
        error = estimate.standard_error
        relative = _ratio(estimate.value, estimate.value)
        return SamplerVariance(
            sampler="uniform",
            stratifier="",
            strata=1,
            gradients=n,
            batch_size=float(n),
            variance=estimate.value,
            standard_error=error,
            relative=relative,
            loop_relative=relative,
            within=1.0,
            note="",
        )

    def _stratified_rows(
        self, label: str, strata: Strata, everywhere: Tensor, inside: Tensor
    ) -> Iterator[SamplerVariance]:
        n, b, c = self._gradients, self._anchor_batch_size, self._coefficient
        weights, count = strata.weights.cpu()[:, None], len(strata)
        uniform = self._mean(everywhere[..., NOW] / n).value
        within = _ratio(self._mean(weights * inside[..., NOW]).value, uniform * n)

        def row(
            sampler: str, size: float, variance: _Estimate, note: str, anchor: float = 0.0
        ) -> SamplerVariance:
            # Of K steps, what is left of the rest is 1/K; of the anchor's error, all.
            lasting = (self._inner_steps - 1) * anchor
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
                within=within,
                note=note,
            )

        squares = weights.square()
        stratified = self._mean(squares * inside[..., NOW] * (count / n))
        yield row("stratified", float(n), stratified, _fraction_note("n/B", n / count))
        if inside.shape[-1] == 1:
            return

        size, note = self._inner_batch_size(count)
        anchor = self._mean(squares * inside[..., THEN] * (c**2 / b))
        inner = self._mean(everywhere[..., CHANGE] / size)
        yield row("scott", size, inner + anchor, note, anchor.value)
        # Here the same groups measure both parts, which therefore vary together.
        both = everywhere[..., CHANGE] / size + everywhere[..., THEN] * c**2 / (count * b)
        uniform_anchor = self._mean(everywhere[..., THEN] * c**2 / (count * b))
        yield row("scsg", size, self._mean(both), note, uniform_anchor.value)

    def _inner_batch_size(self, count: int) -> tuple[float, str]:
        """M of an inner step that costs n with its share of the anchor, and a note."""
        share = count * self._anchor_batch_size / self._inner_steps
        size = (self._gradients - share) / 2
        if size > 0:
            return size, _fraction_note("M", size)
        return math.nan, (
            f"its share of the anchor costs a step Bb/K = {share:g} gradients of "
            f"{self._gradients}: allow more gradients or inner steps"
        )

    def _mean(self, values: Tensor) -> _Estimate:
        """Sum over strata of the mean over independent groups, and its error squared."""
        value = float(values.mean(dim=1).sum())
        if self._exact:
            return _Estimate(value, 0.0 * value)  # NaN stays NaN
        groups = values.shape[1]
        if groups == 1:
            return _Estimate(value, math.nan)
        return _Estimate(value, float(values.var(dim=1).sum()) / groups)


class _GroupSquares:
    """Squared distances from the mean of their group, for rows that come in parts.

    The groups follow each other, and a part may end within one.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self._group = _Group()
        #: The sum for each group that is complete.
        self.squares: list[Tensor] = []

    def add(self, rows: Tensors) -> None:
        """Add the next rows: tensors of shape (R, …)."""
        begin, end = 0, len(rows[0])
        while begin < end:
            size = self._sizes[len(self.squares)]
            stop = min(end, begin + size - self._group.count)
            self._group.add([t[begin:stop] for t in rows])
            begin = stop
            if self._group.count == size:
                self.squares.append(self._group.squares)
                self._group = _Group()


class _Group:
    """Mean, and sum of squared distances from it, of rows that come in parts.

    Parts are put together by the update of Chan, Golub and LeVeque, in which large
    numbers are not subtracted from each other; so the mean may have the precision of
    the gradients. Sums are in float64.
    """

    def __init__(self) -> None:
        self.count = 0
        self.squares = torch.zeros((), dtype=torch.float64)
        self._mean: list[Tensor] = []

    def add(self, rows: list[Tensor]) -> None:
        """Add some rows: tensors of shape (R, …)."""
        size, before = len(rows[0]), self.count
        self.count += size
        if size > 1:
            mean = [t.mean(dim=0) for t in rows]
            distances = (t - m for t, m in zip(rows, mean, strict=True))
            self.squares = self.squares + _squared_norm(distances)
        else:
            mean = [t[0].clone() for t in rows]
        if not before:
            self._mean = mean
            return
        torch._foreach_sub_(mean, self._mean)  # how far it is from the mean so far
        self.squares = self.squares + _squared_norm(mean) * (before * size / self.count)
        torch._foreach_add_(self._mean, mean, alpha=size / self.count)


def _squared_norm(tensors: Iterable[Tensor]) -> Tensor:
    """‖g‖² over all tensors, summed up in float64."""
    return torch.stack([t.norm() for t in tensors]).double().square().sum()


def _split(count: int) -> tuple[int, int]:
    """Groups, and windows in each, for a sample of ``count`` windows."""
    groups = max(2, count // GROUP) if count >= 4 else 1
    return groups, count // groups


@dataclass(frozen=True)
class _Estimate:
    value: float
    squared_error: float

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.squared_error)

    def __add__(self, other: _Estimate) -> _Estimate:
        """The sum of two estimates from independent draws."""
        return _Estimate(
            self.value + other.value, self.squared_error + other.squared_error
        )


def _ratio(value: float, base: float) -> float:
    return value / base if base else math.nan


def _fraction_note(name: str, size: float) -> str:
    """A word of warning for less than one window."""
    if size >= 1:
        return ""
    return f"{name} = {size:.2g} is less than one window: for comparison only"


def _checked_strata(strata: Any, windows: WindowIndex) -> dict[str, Strata]:
    if not isinstance(strata, Mapping):
        raise ArgumentError(
            f"strata is a {type(strata).__name__}; expected labels and partitions, e.g. "
            "{'weekday': Stratifier.calendar('weekday').stratify(windows)}."
        )
    for label, partition in strata.items():
        if not isinstance(partition, Strata):
            raise ArgumentError(
                f"strata[{label!r}] is a {type(partition).__name__}; expected Strata, as "
                "stratifier.stratify(windows) makes them."
            )
        if int(partition.sizes.sum()) != len(windows):
            raise ArgumentError(
                f"strata[{label!r}] has {int(partition.sizes.sum())} windows, but there "
                f"are {len(windows)}; stratify the windows that are probed."
            )
    return dict(strata)
