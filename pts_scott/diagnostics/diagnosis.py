"""The diagnosis of a model and its data: what a better sampler would gain, and where."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from pts_scott.diagnostics.allocation_variance import (
    RelativeVariance,
    control_variate_variance,
)
from pts_scott.diagnostics.diagnosis_advice import advise
from pts_scott.diagnostics.noise_scale import NoiseScale
from pts_scott.diagnostics.sampler_choice import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = [
    "step",
    "sampler",
    "strata",
    "count",
    "allocation",
    "variance",
    "standard_error",
    "within",
    "equivalent_batch_size",
    "noise_scale",
]


@dataclass(frozen=True)
class Point:
    """What was measured at one point of training.

    Parameters
    ----------
    step
        Steps made before.
    windows
        Number of windows whose gradients were measured.
    findings
        The candidate partitions, with their variances.
    noise
        The gradient noise scale.
    change
        Variance of ∇f_j(θ) − ∇f_j(θ_s) relative to that of ∇f_j(θ), with θ_s the
        parameters some steps earlier; None at the start.
    """

    step: int
    windows: int
    findings: tuple[Finding, ...]
    noise: NoiseScale
    change: RelativeVariance | None

    @property
    def best(self) -> Finding | None:
        """The partition with the lowest variance; None if none is known."""
        known = [f for f in self.findings if not math.isnan(f.best[1].value)]
        return min(known, key=lambda finding: finding.best[1].value, default=None)

    @property
    def control_variate(self) -> RelativeVariance | None:
        """Variance of SCott over an outer loop, with the best anchor, at equal cost."""
        if self.change is None or math.isnan(self.change.value):
            return None
        sampler = RelativeVariance(1.0, 0.0)  # uniform anchors can always be had
        if self.best is not None and self.best.best[1].value < 1:
            sampler = self.best.best[1]
        v, d = max(sampler.value, 1e-12), max(self.change.value, 1e-12)
        error = math.hypot(
            (1 + math.sqrt(2 * d / v)) * sampler.standard_error,
            (2 + math.sqrt(2 * v / d)) * self.change.standard_error,
        )
        return RelativeVariance(control_variate_variance(v, d), error)


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What samplers would do to the variance of a model's gradients.

    Printed, it is a table of the last point of training, the noise scale and the advice.

    Parameters
    ----------
    network
        Name of the network.
    batch_size
        M.
    points
        The measurements, in the order of training.
    left_out
        Candidates with too many strata for the measured windows.
    """

    network: str
    batch_size: int
    points: tuple[Point, ...]
    left_out: tuple[str, ...] = ()

    @property
    def table(self) -> pd.DataFrame:
        """One row per point of training and sampler.

        The columns are ``step``; ``sampler`` ("uniform", "stratified" or "control
        variate"); ``strata``, their ``count`` and ``allocation`` (of the anchor for the
        control variate); ``variance`` relative to uniform mini-batches at equal cost and
        its ``standard_error``; ``within``, the share of the variance within strata;
        ``equivalent_batch_size``, that of uniform mini-batches with this variance; and
        ``noise_scale`` of the point.
        """
        rows = [row for point in self.points for row in self._rows(point)]
        return pd.DataFrame(rows, columns=COLUMNS)

    @property
    def noise_scale(self) -> float:
        """The gradient noise scale at the last point: a batch size."""
        return self.points[-1].noise.value

    @property
    def advice(self) -> str:
        """One sentence about what to do, which follows from the last point."""
        last, size = self.points[-1], self.batch_size
        return advise(last.best, len(last.findings), last.noise, size, last.step)

    def figure(self) -> Figure:
        """Draw the variance of each candidate, one panel per point of training."""
        from pts_scott.diagnostics.diagnosis_figure import diagnosis_figure

        return diagnosis_figure(self)

    def __str__(self) -> str:
        last = self.points[-1]
        known = math.isfinite(last.noise.high)
        meaning = " A batch_size above it buys little." if known else ""
        lines = [
            f"{self._title} ({last.windows} windows measured)",
            "",
            _left_aligned(self._summary()),
            "",
            *self._earlier_lines(),
            f"Noise scale: {last.noise}.{meaning}",
            f"Advice: {self.advice}",
        ]
        if self.left_out:
            names = ", ".join(self.left_out)
            lines.insert(-2, f"Not compared, with one stratum or too many: {names}.")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return (
            f"<p><b>{html.escape(self._title)}</b></p>"
            f"{self._summary().to_html(index=False)}"
            f"<p>Noise scale: {self.points[-1].noise}</p>"
            f"<p>{html.escape(self.advice)}</p>"
        )

    @property
    def _title(self) -> str:
        return (
            f"{self.network}, batch_size={self.batch_size}, after "
            f"{self.points[-1].step} steps: variance of a mini-batch, relative to a "
            "uniform one"
        )

    def _earlier_lines(self) -> list[str]:
        """Return what was best at the earlier points, a line for each."""
        lines = []
        for point in self.points[:-1]:
            best = "no strata were compared"
            if point.best is not None:
                allocation, found = point.best.best
                best = f"{point.best.label}, {allocation}: {with_error(found)}"
            lines.append(f"After {point.step} steps: {best}; noise scale {point.noise}.")
        return lines

    def _summary(self) -> pd.DataFrame:
        """Return the last point with one row per partition, as text."""
        names = ["strata", "count", "within", "proportional", "spread"]
        last = self.points[-1]
        rows: list[Sequence[str]] = [("uniform", "1", "1.00", "1.00", "")]
        for finding in last.findings:
            rows.append(
                (
                    finding.label,
                    str(finding.strata),
                    f"{finding.within:.2f}",
                    with_error(finding.proportional),
                    with_error(finding.spread),
                )
            )
        if last.control_variate is not None:
            variance = with_error(last.control_variate)
            is_spread = last.best is not None and last.best.best[0] == "spread"
            cells = ("", variance) if is_spread else (variance, "")
            rows.append(("control variate, best anchor", "", "", *cells))
        return pd.DataFrame(rows, columns=names)

    def _rows(self, point: Point) -> list[dict[str, object]]:
        """Return the rows of one point."""
        uniform = RelativeVariance(1.0, 0.0)
        rows = [self._row(point, "uniform", "", 1, "", uniform, 1.0)]
        for f in point.findings:
            for allocation in ("proportional", "spread"):
                found = getattr(f, allocation)
                name = "stratified"
                rows.append(
                    self._row(point, name, f.label, f.strata, allocation, found, f.within)
                )
        control, best = point.control_variate, point.best
        if control is not None:
            anchor = "", 1, ""
            if best is not None and best.best[1].value < 1:
                anchor = best.label, best.strata, best.best[0]
            rows.append(self._row(point, "control variate", *anchor, control, math.nan))
        return rows

    def _row(
        self,
        point: Point,
        sampler: str,
        strata: str,
        count: int,
        allocation: str,
        found: RelativeVariance,
        within: float,
    ) -> dict[str, object]:
        equivalent = self.batch_size / found.value if found.value > 0 else math.nan
        values = (
            point.step,
            sampler,
            strata,
            count,
            allocation,
            found.value,
            found.standard_error,
            within,
            equivalent,
            point.noise.value,
        )
        return dict(zip(COLUMNS, values, strict=True))


def _left_aligned(table: pd.DataFrame) -> str:
    """Return a table as text, its first column aligned to the left."""
    name = table.columns[0]
    width = table[name].str.len().max()
    table = table.assign(**{name: table[name].str.ljust(width)})
    return table.rename(columns={name: name.ljust(width)}).to_string(index=False)


def with_error(variance: RelativeVariance) -> str:
    """Return a variance and its standard error as text."""
    digits = 2 if variance.value < 100 else 0
    return f"{variance.value:,.{digits}f} ± {variance.standard_error:,.{digits}f}"
