"""Measurements of a diagnosis: different windows, the objective, and faults."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.planted import noisy_rows
from helpers.series import dataset, wave_windows
from helpers.training import TinyNetwork, tiny_network
from torch import Tensor, nn

from pts_scott import Stratifier, WindowIndex
from pts_scott.diagnostics.diagnosis_probe import DiagnosisProbe, _distinct
from pts_scott.engine.losses import Losses
from pts_scott.errors import DataError, ModelError, ScottWarning
from pts_scott.method.objective import Objective


def probe_of(
    network: nn.Module, windows: WindowIndex | None = None, count: int = 64, **kwargs
) -> DiagnosisProbe:
    policies = kwargs.pop("policies", {"series": Stratifier.series()})
    settings = {"batch_size": 8, "count": count, "objective": None, "seed": 0, **kwargs}
    return DiagnosisProbe(
        Losses(network), windows or wave_windows(), policies, **settings
    )


def planted_windows(*spreads: float) -> WindowIndex:
    return WindowIndex.from_dataset(
        dataset(noisy_rows(spreads), "h"), "h", 6, 2, dtype=torch.float64
    )


@pytest.mark.parametrize("count", [5, 30, 117, 1000])
def test_drawn_windows_are_different(windows, count):
    assert len(windows) == 117
    drawn = _distinct(windows, count, torch.Generator().manual_seed(0))
    assert len(drawn) == len(drawn.unique()) == min(count, len(windows))


@pytest.mark.parametrize("count", [20, 40])
def test_every_window_is_drawn_equally_often(windows, count):
    generator, rounds = torch.Generator().manual_seed(0), 2000
    counts = torch.zeros(len(windows))
    for _ in range(rounds):
        counts[_distinct(windows, count, generator)] += 1
    share = count / len(windows)
    error = np.sqrt(rounds * share * (1 - share))
    # The largest of 117 deviations exceeds 4.5 standard errors once in a thousand.
    assert float((counts - rounds * share).abs().max()) < 4.5 * error


def test_within_is_the_share_of_variance_inside_strata():
    # Gradients of one series are nearly zero, so its stratum has no variance: σ² is that
    # within the other stratum (half of its variance) and between the two means.
    windows = planted_windows(0.001, 3.0)
    network = tiny_network()
    probe = probe_of(network, windows, count=len(windows))
    probe.measure(0, None)
    (found,) = probe.diagnosis.points[0].findings
    batch = windows.gather(torch.arange(len(windows)))
    rows = []
    for n in range(len(windows)):
        network.zero_grad()
        one = {k: batch[k][n : n + 1] for k in ("past_target", "future_target")}
        network.loss(**one).sum().backward()
        rows.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    gradients = torch.stack(rows)
    halves = gradients.chunk(2)
    inside = sum(float(h.var(dim=0).sum()) for h in halves) / 2
    expected = inside / float(gradients.var(dim=0).sum())
    # Two halves of 293 windows, and sketches of 512 dimensions: a few per cent.
    assert found.within == pytest.approx(expected, abs=0.1)
    assert found.strata == 2


def test_snapshot_at_the_same_parameters_leaves_no_change():
    network = tiny_network()
    probe = probe_of(network)
    probe.measure(10, probe.parameters())
    assert probe.diagnosis.points[0].change.value == pytest.approx(0.0, abs=1e-12)


def test_zero_snapshot_changes_gradients_as_calculated():
    # One weight, f = (w x − y)²: g(w) − g(0) = 2 w x², whose variance relative to that
    # of 2 (w x − y) x follows from the windows. A sketch of one number is exact.
    class OneWeight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(1, 1, bias=False, dtype=torch.float64)
            nn.init.constant_(self.map.weight, 0.7)

        def loss(self, past_target: Tensor, future_target: Tensor) -> Tensor:
            error = self.map(past_target[:, -1:]) - future_target[:, :1]
            return error.square().sum(dim=1)

    windows = wave_windows()
    probe = probe_of(OneWeight(), windows, count=4 * len(windows))
    probe.measure(10, (torch.zeros(1, 1, dtype=torch.float64),))
    change = probe.diagnosis.points[0].change
    batch = windows.gather(torch.arange(len(windows)))
    x, y = batch["past_target"][:, -1], batch["future_target"][:, 0]
    expected = float((0.7 * x * x).var() / ((0.7 * x - y) * x).var())
    # A quarter of the windows is measured twice.
    assert abs(change.value - expected) < 3 * change.standard_error
    assert change.standard_error < 0.3 * expected


def test_objective_weights_gradients():
    windows = planted_windows(1.0, 1.0)
    strata = Stratifier.series().stratify(windows)
    labels = strata.labels(range(2))
    objective = Objective.of({labels[0]: 0.0, labels[1]: 1.0}, windows, strata)
    plain, weighted = (
        probe_of(tiny_network(), windows, count=500, objective=o)
        for o in (None, objective)
    )
    for probe in (plain, weighted):
        probe.measure(0, None)
    # One of the two strata does not count, so spread allocation avoids it.
    shares = [p.diagnosis.points[0].findings[0].spread.value for p in (plain, weighted)]
    assert shares[0] > 0.9
    assert shares[1] < 0.7


def test_candidates_with_too_many_strata_are_left_out():
    policies = {"series": Stratifier.series(), "finest": Stratifier.finest()}
    probe = probe_of(tiny_network(), policies=policies)
    probe.measure(0, None)
    assert probe.diagnosis.left_out == ("finest",)


def test_too_few_windows_are_refused():
    windows = wave_windows(stride=8)
    with pytest.raises(DataError, match=f"has {len(windows)} windows.*at least 64"):
        probe_of(tiny_network(), windows)


class Faulty(TinyNetwork):
    """A network whose loss is not finite where the last value exceeds a limit."""

    limit = 1.0

    def loss(self, past_target: Tensor, future_target: Tensor) -> Tensor:
        factor = torch.where(past_target[:, -1] > self.limit, torch.inf, 1.0)
        return super().loss(past_target, future_target) * factor


def test_nonfinite_gradients_are_left_out_with_a_warning():
    probe = probe_of(Faulty().double(), count=1000)
    probe._losses.network.limit = 2.5
    with pytest.warns(ScottWarning, match="of 117 gradients of Faulty after 3 steps"):
        probe.measure(3, None)
    point = probe.diagnosis.points[0]
    assert 58 < point.windows < 117
    assert np.isfinite(point.noise.value)


def test_point_without_finite_gradients_is_left_out():
    probe = probe_of(Faulty().double(), count=1000)
    probe._losses.network.limit = -100.0
    with pytest.warns(ScottWarning, match="and so is this point of training"):
        probe.measure(3, None)
    with pytest.raises(ModelError, match="most gradients of Faulty are not finite"):
        probe.diagnosis  # noqa: B018


def test_equal_gradients_have_no_candidates():
    windows = WindowIndex.from_dataset(
        dataset(np.full((2, 80), 3.0), "h"), "h", 6, 2, dtype=torch.float64
    )
    probe = probe_of(tiny_network(), windows)
    probe.measure(0, None)
    found = probe.diagnosis
    assert found.points[0].findings == ()
    assert "no strata could be compared" in found.advice
