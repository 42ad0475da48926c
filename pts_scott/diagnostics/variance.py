"""Variance of the gradient estimators at given parameters and equal cost.

The probe measures the variance of per-window gradients, among all windows and within
strata; the variance of every estimator follows from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pts_scott._utils.arguments import real_number, switch, whole_number
from pts_scott.data.window_index import WindowIndex, require_windows
from pts_scott.diagnostics.group_variance import GroupSquares, split_sample
from pts_scott.diagnostics.sampler_formulas import (
    SamplerFormulas,
    SamplerVariance,
    StepSettings,
)
from pts_scott.diagnostics.window_gradients import WindowGradients
from pts_scott.engine.isolation import constant, evaluation_passes
from pts_scott.engine.losses import Losses
from pts_scott.engine.tensors import own_tensors
from pts_scott.errors import ArgumentError
from pts_scott.method.protocol import Tensors
from pts_scott.strata.partition import Strata


@dataclass(frozen=True)
class _Points:
    """Parameters at which gradients are measured: θ, and θ_s with c if there is one."""

    current: Tensors
    snapshot: Tensors | None
    coefficient: float

    @property
    def quantities(self) -> int:
        """Number of quantities per window: CURRENT, or CURRENT, SNAPSHOT and CHANGE."""
        return 1 if self.snapshot is None else 3


class VarianceProbe:
    """Probe of the variance of gradient estimators at the parameters of a network.

    With n gradients per step, B strata of weights w_i, and the variance σ² of a window's
    gradient (σ_i² within stratum i), the estimators and their variances are

    - uniform, n windows from anywhere: σ²/n;
    - stratified, n/B windows per stratum: Σ w_i² σ_i² B/n. The windows per stratum may
      be a fraction, so that partitions of any B can be compared at any n;
    - scott, the inner step v = ∇f_ξ(θ) − c (∇f_ξ(θ_s) − anchor) with M uniform windows
      in ξ and b per stratum in the anchor: τ²/M + c² Σ w_i² σ_i²(θ_s)/b, where τ²
      is the variance of ∇f_ξ(θ) − c ∇f_ξ(θ_s) for one window ξ. K inner steps share an
      anchor, so a step costs 2M + Bb/K; M is chosen such that this is n, and may be a
      fraction;
    - scsg, the same with an anchor of Bb uniform windows: τ²/M + c² σ²(θ_s)/(Bb).

    The network is measured in evaluation mode, without dropout, which adds to the noise
    of every estimator alike. Neither the network nor global random state is changed.

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
        b, windows per stratum in an anchor.
    inner_steps
        K, inner steps per anchor.
    coefficient
        c; 1 is the paper's method.
    sample
        Windows drawn from all. They are split into groups of about 64, or at least into
        halves, each of which yields an estimate; a remainder is not used.
    per_stratum
        Windows drawn from each stratum that has more than one, split in the same way.
        With fewer than four there is no standard error.
    exact
        Use every window once instead of drawing: no sampling error, for small data.
    generator
        Draws the windows; on the CPU.

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
        self._settings = StepSettings(
            gradients=whole_number("gradients", gradients),
            anchor_batch_size=whole_number("anchor_batch_size", anchor_batch_size),
            inner_steps=whole_number("inner_steps", inner_steps),
            coefficient=real_number("coefficient", coefficient, maximum=1.0),
        )
        self._sample = split_sample(whole_number("sample", sample, minimum=2))
        self._per_stratum = split_sample(
            whole_number("per_stratum", per_stratum, minimum=2)
        )
        self._exact = switch("exact", exact)
        self._generator = generator
        self._window_gradients = WindowGradients(losses)
        #: Windows whose gradient was computed, in all measurements so far.
        self.count = 0

    def measure(
        self,
        snapshot: Tensors | None = None,
        *,
        inner_steps: float | None = None,
        coefficient: float | None = None,
    ) -> pd.DataFrame:
        """Measure the variance of each estimator at the network's current parameters.

        Parameters
        ----------
        snapshot
            θ_s, in the order of ``Gradients.parameters``: the parameters at which the
            anchor was taken. None leaves out the estimators with a control variate.
        inner_steps, coefficient
            K and c of this measurement, in place of the probe's. K may be the mean
            number of steps per anchor.

        Returns
        -------
        pandas.DataFrame
            One row per sampler and partition, with the columns of `SamplerVariance`.
        """
        settings = self._settings
        if inner_steps is not None:
            steps = real_number("inner_steps", inner_steps, exclusive=True)
            settings = dataclasses.replace(settings, inner_steps=steps)
        if coefficient is not None:
            number = real_number("coefficient", coefficient, maximum=1.0)
            settings = dataclasses.replace(settings, coefficient=number)
        with evaluation_passes(self._window_gradients.losses, self._windows.device):
            points = self._points(snapshot, settings.coefficient)
            everywhere = self._variances_everywhere(points)
            formulas = SamplerFormulas(settings, everywhere, self._exact)
            rows = [formulas.uniform()]
            for label, strata in self._strata.items():
                inside = self._variances_inside(strata, points)
                rows += formulas.stratified(label, strata, inside)
        names = [field.name for field in dataclasses.fields(SamplerVariance)]
        return pd.DataFrame([dataclasses.asdict(row) for row in rows], columns=names)

    def _points(self, snapshot: Tensors | None, coefficient: float) -> _Points:
        current = tuple(map(constant, self._window_gradients.losses.trainable().values()))
        if snapshot is None:
            return _Points(current, None, coefficient)
        if [s.shape for s in snapshot] != [p.shape for p in current]:
            raise ArgumentError(
                "the snapshot does not have the shapes of the network's trained "
                "parameters; give their values in the order of Gradients.parameters, "
                "e.g. Scott.snapshot."
            )
        return _Points(current, tuple(map(constant, snapshot)), coefficient)

    def _variances_everywhere(self, points: _Points) -> Tensor:
        """Return variances among all windows, of shape (1, groups, quantities)."""
        if self._exact:
            every = torch.arange(len(self._windows), device=self._windows.device)
            return self._variances([every], points)[None]
        groups, size = self._sample
        drawn = self._windows.draw(groups * size, self._generator)
        return self._variances(drawn.split(size), points)[None]

    def _variances_inside(self, strata: Strata, points: _Points) -> Tensor:
        """Return variances within strata, of shape (strata, groups, quantities)."""
        groups, size = (1, 0) if self._exact else self._per_stratum
        shape = (len(strata), groups, points.quantities)
        variances = torch.zeros(shape, dtype=torch.float64)
        several = (strata.sizes > 1).cpu()  # a single window has no variance
        if not bool(several.any()):
            return variances
        if self._exact:
            parts = strata.order.split(strata.sizes.tolist())
            chosen = [part for part in parts if len(part) > 1]
        else:
            drawn = strata.draw(groups * size, self._generator).reshape(len(strata), -1)
            chosen = list(drawn[several.to(drawn.device)].flatten().split(size))
        values = self._variances(chosen, points)
        variances[several] = values.reshape(-1, groups, points.quantities)
        return variances

    def _variances(self, groups: Sequence[Tensor], points: _Points) -> Tensor:
        """Return the variance within each group, of shape (groups, quantities)."""
        sizes = [len(group) for group in groups]
        squares = [GroupSquares(sizes) for _ in range(points.quantities)]
        for part in torch.cat(list(groups)).split(self._window_gradients.chunk):
            for total, rows in zip(squares, self._gradients_at(points, part)):
                total.add(rows)
        # A group is either the whole population, or a sample of it.
        freedom = torch.tensor(sizes, dtype=torch.float64) - (0 if self._exact else 1)
        found = torch.stack([torch.stack(total.squares) for total in squares], dim=1)
        return found.cpu() / freedom[:, None]

    def _gradients_at(self, points: _Points, windows: Tensor) -> Iterator[Tensors]:
        """Yield per-window gradients: CURRENT and, with a snapshot, SNAPSHOT and CHANGE.

        Each is valid until the next is requested.
        """
        batch = self._windows.gather(windows, self._window_gradients.losses.fields)
        self.count += len(windows)
        current = self._window_gradients(points.current, batch)
        yield current
        if points.snapshot is None:
            return
        self.count += len(windows)
        earlier = self._window_gradients(points.snapshot, batch)
        yield earlier
        change = own_tensors(current)  # in place: allocating would take longer
        torch._foreach_sub_(change, earlier, alpha=points.coefficient)
        yield tuple(change)


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
                "returned by stratifier.stratify(windows)."
            )
        if int(partition.sizes.sum()) != len(windows):
            raise ArgumentError(
                f"strata[{label!r}] has {int(partition.sizes.sum())} windows, but there "
                f"are {len(windows)}; stratify the windows that are probed."
            )
    return dict(strata)
