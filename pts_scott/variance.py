"""Variance of the gradient estimators at given parameters, at equal cost.

Half the squared distance between the gradients of two windows, drawn independently,
has the mean σ² = E‖∇f_ξ(θ) − ∇f(θ)‖². What is measured here is a mean over such pairs,
drawn from all windows or from one stratum. The distance of a pair is the norm of one
gradient, that of the difference of the two losses: no mean gradient has to be kept,
nothing cancels between large sums, and memory does not grow with the windows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from pts_scott._arguments import real_number, switch, whole_number
from pts_scott.errors import ArgumentError, WindowLossError
from pts_scott.gradients import Losses, Tensors, own_tensors
from pts_scott.randomness import isolated
from pts_scott.strata import Strata
from pts_scott.windows import Batch, WindowIndex, require_windows

PASS_NUMBERS = 2**23  # numbers in the gradients of one pass: 32 MB in float32
PASS_ROWS = 256  # rows of one pass where a network has few parameters

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
        Of ``variance``, from the spread over pairs; 0 if exact, NaN for a single pair.
    relative
        ``variance`` over that of the uniform sampler.
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
        Windows drawn from all, in pairs (of an odd number one is left out).
    per_stratum
        Windows drawn from each stratum that has more than one, in pairs as well.
    exact
        Use every window once and draw none: no sampling error, for small data. It
        keeps mean gradients in float64.
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
        self._inner_steps = whole_number("inner_steps", inner_steps)
        self._coefficient = real_number("coefficient", coefficient, maximum=1.0)
        self._pairs = whole_number("sample", sample, minimum=2) // 2
        self._pairs_inside = whole_number("per_stratum", per_stratum, minimum=2) // 2
        self._exact = switch("exact", exact)
        self._generator = generator
        self._rows = _RowGradients(losses)
        #: Windows whose gradient was computed, for one measurement and the next.
        self.count = 0

    def measure(self, snapshot: Tensors | None = None) -> pd.DataFrame:
        """The variance of each estimator at the network's present parameters.

        Parameters
        ----------
        snapshot
            θ_s, in the order of ``Gradients.parameters``: where the anchor was taken.
            None leaves out the estimators with a control variate.

        Returns
        -------
        pandas.DataFrame
            A row for each sampler and partition, with the columns of `SamplerVariance`.
        """
        with _undisturbed(self._rows.losses, self._windows.device):
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
        now = tuple(map(_constant, self._rows.losses.trainable().values()))
        if snapshot is None:
            return [now]
        if [s.shape for s in snapshot] != [p.shape for p in now]:
            raise ArgumentError(
                "the snapshot does not have the shapes of the network's trained "
                "parameters; give their values in the order of Gradients.parameters, "
                "e.g. Scott.snapshot."
            )
        return [now, tuple(map(_constant, snapshot))]

    # -- what is measured: squared distances, of shape (strata, pairs, NOW … CHANGE) --

    def _spread_everywhere(self, points: list[Tensors]) -> Tensor:
        if self._exact:
            every = torch.arange(len(self._windows), device=self._windows.device)
            return self._population(every, points)[None, None]
        drawn = self._windows.draw(2 * self._pairs, self._generator)
        return self._half_squares(drawn.reshape(-1, 2), points)[None]

    def _spread_inside(self, strata: Strata, points: list[Tensors]) -> Tensor:
        pairs = 1 if self._exact else self._pairs_inside
        spread = torch.zeros(len(strata), pairs, 2 * len(points) - 1, dtype=torch.float64)
        several = (strata.sizes > 1).cpu()  # one window alone has no variance
        if self._exact:
            parts = strata.order.split(strata.sizes.tolist())
            for place in several.nonzero().flatten().tolist():
                spread[place] = self._population(parts[place], points)
        elif bool(several.any()):
            drawn = strata.draw(2 * pairs, self._generator).reshape(-1, pairs, 2)
            drawn = drawn[several.to(drawn.device)].reshape(-1, 2)
            values = self._half_squares(drawn, points)
            spread[several] = values.reshape(-1, pairs, spread.shape[-1])
        return spread

    def _half_squares(self, pairs: Tensor, points: list[Tensors]) -> Tensor:
        """½‖g − g'‖² for each pair of windows; its mean is the variance of g."""
        parts = []
        for part in pairs.split(self._rows.chunk):
            norms = [_squared_norms(g) for g in self._row_gradients(part, points)]
            parts.append(torch.stack(norms, dim=1) / 2)
        return torch.cat(parts).cpu()

    def _population(self, windows: Tensor, points: list[Tensors]) -> Tensor:
        """The variance of g over all given windows."""
        populations = [_Population() for _ in range(2 * len(points) - 1)]
        for part in windows[:, None].split(self._rows.chunk):
            for population, g in zip(populations, self._row_gradients(part, points)):
                population.add(_flat(g))
        return torch.tensor([p.variance for p in populations], dtype=torch.float64)

    def _row_gradients(self, windows: Tensor, points: list[Tensors]) -> Iterator[Tensors]:
        """Gradients of windows (R, 1), or of pairs (R, 2): NOW, THEN and CHANGE.

        Each is good until the next.
        """
        batch = self._windows.gather(windows.flatten(), self._rows.losses.fields)
        batch = {name: v.unflatten(0, windows.shape) for name, v in batch.items()}
        self.count += windows.numel() * len(points)
        now = self._rows(points[0], batch)
        yield now
        for snapshot in points[1:]:
            then = self._rows(snapshot, batch)
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
            "uniform", "", 1, n, float(n), estimate.value, error, relative, 1.0, ""
        )

    def _stratified_rows(
        self, label: str, strata: Strata, everywhere: Tensor, inside: Tensor
    ) -> Iterator[SamplerVariance]:
        n, b, c = self._gradients, self._anchor_batch_size, self._coefficient
        weights, count = strata.weights.cpu()[:, None], len(strata)
        uniform = self._mean(everywhere[..., NOW] / n).value
        within = _ratio(self._mean(weights * inside[..., NOW]).value, uniform * n)

        def row(
            sampler: str, size: float, variance: _Estimate, note: str
        ) -> SamplerVariance:
            value, error = variance.value, variance.standard_error
            relative = _ratio(value, uniform)
            return SamplerVariance(
                sampler, label, count, n, size, value, error, relative, within, note
            )

        squares = weights.square()
        stratified = self._mean(squares * inside[..., NOW] * (count / n))
        yield row("stratified", float(n), stratified, _fraction_note("n/B", n / count))
        if inside.shape[-1] == 1:
            return

        size, note = self._inner_batch_size(count)
        anchor = self._mean(squares * inside[..., THEN] * (c**2 / b))
        inner = self._mean(everywhere[..., CHANGE] / size)
        yield row("scott", size, inner + anchor, note)
        # Here the same pairs measure both parts, which therefore vary together.
        both = everywhere[..., CHANGE] / size + everywhere[..., THEN] * c**2 / (count * b)
        yield row("scsg", size, self._mean(both), note)

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
        """Sum over strata of the mean over independent pairs, and its error squared."""
        value = float(values.mean(dim=1).sum())
        if self._exact:
            return _Estimate(value, 0.0 * value)  # NaN stays NaN
        pairs = values.shape[1]
        if pairs == 1:
            return _Estimate(value, math.nan)
        return _Estimate(value, float(values.var(dim=1).sum()) / pairs)


def window_gradients(losses: Losses, parameters: Tensors, batch: Batch) -> Tensor:
    """∇f_j(θ) of each window j of a batch, as rows of shape (M, P).

    Parameters
    ----------
    losses
        The window losses of a network, which is used in evaluation mode.
    parameters
        θ, in the order of ``Gradients.parameters``; P numbers in all.
    batch
        The windows.
    """
    rows = _RowGradients(losses)
    size = len(batch[losses.fields[0]])
    with _undisturbed(losses, parameters[0].device):
        point = tuple(map(_constant, parameters))
        batch = {name: _constant(batch[name])[:, None] for name in losses.fields}
        return torch.cat(
            [
                _flat(rows(point, {k: v[i : i + rows.chunk] for k, v in batch.items()}))
                for i in range(0, size, rows.chunk)
            ]
        )


class _RowGradients:
    """Gradients of many rows, a row being one window, or a pair to be subtracted.

    They are taken together by ``vmap``, or one by one where a network does not allow
    that: if it looks at values, changes tensors in place, draws random numbers, or has
    a kernel that ``vmap`` can only call again and again, as the LSTM's.
    """

    def __init__(self, losses: Losses) -> None:
        if not isinstance(losses, Losses):
            raise ArgumentError(
                f"losses is a {type(losses).__name__}; expected Losses(network)."
            )
        self.losses = losses
        trainable = losses.trainable()
        size = sum(p.numel() for p in trainable.values())
        #: Rows for one pass.
        self.chunk = max(1, min(PASS_ROWS, PASS_NUMBERS // max(size, 1)))
        self._names = tuple(trainable)
        self._together = True

    def __call__(self, parameters: Tensors, batch: Batch) -> Tensors:
        """Tensors (R, …), one a parameter, from fields of shape (R, 1 or 2, …)."""
        rows = len(next(iter(batch.values())))
        if self._together and rows > 1:
            try:
                return self._at_once(parameters, batch)
            except Exception:  # what is not vmap's own complaint comes up again below
                self._together = False
        parts = [
            self._alone(parameters, {name: v[row] for name, v in batch.items()})
            for row in range(rows)
        ]
        if rows == 1:  # of a large network, perhaps: no copy
            return tuple(g[None] for g in parts[0])
        return tuple(torch.stack(g) for g in zip(*parts, strict=True))

    def _at_once(self, parameters: Tensors, batch: Batch) -> Tensors:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "There is a performance drop")
            gradients: Tensors = vmap(grad(self._loss), in_dims=(None, 0))(
                parameters, batch
            )
        return gradients

    def _alone(self, parameters: Tensors, batch: Batch) -> Tensors:
        leaves = tuple(p.detach().requires_grad_() for p in parameters)
        return torch.autograd.grad(
            self._loss(leaves, batch), leaves, allow_unused=True, materialize_grads=True
        )

    def _loss(self, parameters: Tensors, batch: Batch) -> Tensor:
        named = dict(zip(self._names, parameters, strict=True))
        loss: Tensor = functional_call(self.losses, named, (batch,))
        size = len(next(iter(batch.values())))
        if loss.shape != (size,):
            raise WindowLossError(
                f"{type(self.losses.network).__name__}.loss gives shape "
                f"{tuple(loss.shape)} for {size} windows; expected one loss a window."
            )
        return loss[0] if size == 1 else loss[0] - loss[1]


class _Population:
    """The variance of rows that come in parts, in float64.

    Parts are put together by the update of Chan, Golub and LeVeque, in which large
    numbers are not subtracted from each other.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean: Tensor | float = 0.0
        self._squares = 0.0

    def add(self, rows: Tensor) -> None:
        """Add some rows, of shape (R, P)."""
        rows = rows.double()
        mean, size, count = rows.mean(dim=0), len(rows), self._count
        self._count += size
        shift = mean - self._mean
        self._squares += float((rows - mean).square().sum())
        self._squares += float(shift.square().sum()) * count * size / self._count
        self._mean = self._mean + shift * (size / self._count)

    @property
    def variance(self) -> float:
        """Mean squared distance of the rows from their mean."""
        return self._squares / self._count


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


@contextmanager
def _undisturbed(losses: Losses, device: torch.device) -> Iterator[None]:
    """Gradients in evaluation mode, wherever they are asked for, and no trace of it."""
    with (
        isolated(0, device),
        losses.mode(training=False),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        yield


def _constant(tensor: Tensor) -> Tensor:
    """Its values, as autograd takes them: not as a tensor of inference mode."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()


def _flat(tensors: Tensors) -> Tensor:
    """Tensors of shape (R, …) as one of shape (R, P)."""
    return torch.cat([t.reshape(len(t), -1) for t in tensors], dim=1)


def _squared_norms(tensors: Tensors) -> Tensor:
    """‖g‖² of each row over all tensors, summed up in float64."""
    norms = [
        torch.linalg.vector_norm(t[:, None], dim=tuple(range(1, t.ndim + 1)))
        for t in tensors
    ]
    return torch.stack(norms).double().square().sum(dim=0)


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
