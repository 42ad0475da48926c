"""The variance probe: equal to brute force and to the variance of drawn estimators."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.memory import DEEP, RESET, run
from helpers.series import wave_windows
from helpers.training import TinyNetwork, tiny_network
from helpers.variance import (
    B_PER_STRATUM,
    BATCH,
    COEFFICIENT,
    brute_force,
    members,
    moved,
    partition,
    point,
    probe_of,
    total,
)
from torch import nn

from pts_scott import Stratifier, WindowIndex
from pts_scott.diagnostics import window_gradients as module
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.losses import Losses
from pts_scott.errors import ArgumentError, WindowLossError
from pts_scott.models.networks import VARNetwork


def test_exact_variances_equal_brute_force_over_all_windows(losses, windows, tables):
    table = probe_of(losses, windows, exact=True).measure(moved(losses))
    expected = brute_force(*tables, partition(windows))
    assert list(table["sampler"]) == list(expected)
    np.testing.assert_allclose(table["variance"], list(expected.values()), rtol=1e-9)
    np.testing.assert_allclose(
        table["relative"], np.array(list(expected.values())) / expected["uniform"]
    )
    assert list(table["stratifier"]) == ["", "parts", "parts", "parts"]
    assert list(table["strata"]) == [1, 9, 9, 9]
    assert set(table["gradients"]) == {18}
    assert list(table["batch_size"]) == [18, 18, BATCH, BATCH]
    assert set(table["standard_error"]) == {0.0}
    assert set(table["note"]) == {""}


def test_control_variate_is_left_out_without_a_snapshot(losses, windows):
    probe = probe_of(losses, windows, exact=True)
    both, one = probe.measure(moved(losses)), probe.measure()
    pd.testing.assert_frame_equal(one, both[:2])


def test_law_of_total_variance_holds(losses, windows, tables):
    now, strata = tables[0], partition(windows)
    stratified = probe_of(losses, windows, exact=True).measure().iloc[1]
    between = sum(
        w * float((now[m].mean(dim=0) - now.mean(dim=0)).square().sum())
        for w, m in zip(strata.weights.tolist(), members(strata))
    )
    assert 0.1 < stratified["within"] < 0.9
    assert stratified["within"] + between / total(now) == pytest.approx(1, rel=1e-9)


def test_pass_size_does_not_change_the_variances(losses, windows, monkeypatch):
    def tables():
        return (
            probe_of(losses, windows, exact=True).measure(moved(losses)),
            probe_of(losses, windows, sample=30).measure(moved(losses)),
        )

    at_once = tables()
    for size in (1, 3, 8):
        monkeypatch.setattr(module, "PASS_WINDOWS", size)
        for x, y in zip(at_once, tables()):
            pd.testing.assert_frame_equal(x, y, rtol=1e-9)


@pytest.mark.parametrize("per_stratum", [4, 7])
def test_sampled_variances_and_their_standard_errors_are_unbiased(
    losses, windows, per_stratum
):
    snapshot, repeats = moved(losses), 200
    exact = probe_of(losses, windows, exact=True).measure(snapshot)["variance"]
    probe = probe_of(losses, windows, sample=64, per_stratum=per_stratum)
    tables = [probe.measure(snapshot) for _ in range(repeats)]
    values = np.array([table["variance"] for table in tables])
    spread = values.std(axis=0, ddof=1)
    # Five standard errors: a correct estimator fails once in a million runs.
    assert (np.abs(values.mean(axis=0) - exact) < 5 * spread / math.sqrt(repeats)).all()
    # The standard deviation of 200 repeats is accurate to 5 % for a normal distribution,
    # and to two or three times that for these skewed ones.
    errors = np.square([table["standard_error"] for table in tables]).mean(axis=0)
    np.testing.assert_allclose(np.sqrt(errors), spread, rtol=0.3)


def spread_of(directions: torch.Tensor, mean: torch.Tensor) -> tuple[float, float]:
    """Return E‖v − mean‖² over drawn v, and its standard error."""
    squares = (directions - mean).square().sum(dim=1)
    return float(squares.mean()), float(squares.std()) / math.sqrt(len(squares))


def test_drawn_estimators_have_the_predicted_variance(losses, windows, tables):
    strata, snapshot = partition(windows), moved(losses)
    table = probe_of(losses, windows, exact=True).measure(snapshot)
    predicted = table.set_index("sampler")["variance"]
    gradients = Gradients(losses)
    generator = torch.Generator().manual_seed(3)
    now, then = tables
    anchor_size = len(strata) * B_PER_STRATUM
    weights = (strata.weights / B_PER_STRATUM).repeat_interleave(B_PER_STRATUM)

    def flat(tensors):
        return torch.cat([t.flatten() for t in tensors])

    def inner_step(anchor):
        parts = anchor.split([p.numel() for p in snapshot])
        parts = tuple(a.reshape(p.shape) for a, p in zip(parts, snapshot))
        batch = windows.gather(windows.draw(BATCH, generator))
        v = gradients.control_variate(batch, snapshot, parts, COEFFICIENT).direction
        return flat(v)

    def stratified():
        batch = windows.gather(strata.draw(B_PER_STRATUM, generator))
        return flat(gradients.weighted(batch, weights).direction)

    def uniform():
        batch = windows.gather(windows.draw(18, generator))
        return flat(gradients.uniform(batch).direction)

    draw = {
        "uniform": uniform,
        "stratified": stratified,
        "scott": lambda: inner_step(
            weights @ then[strata.draw(B_PER_STRATUM, generator)]
        ),
        "scsg": lambda: inner_step(
            then[windows.draw(anchor_size, generator)].mean(dim=0)
        ),
    }
    for sampler, estimator in draw.items():
        drawn = torch.stack([estimator() for _ in range(1000)])
        value, error = spread_of(drawn, now.mean(dim=0))
        # Four standard errors, of about 3 % each.
        assert abs(value - predicted[sampler]) < 4 * error, sampler
        assert error < 0.06 * value


def test_finest_strata_leave_no_variance_in_the_anchor(losses, windows, tables):
    strata = {"finest": Stratifier.finest().stratify(windows)}
    for exact in (True, False):
        probe = probe_of(
            losses, windows, strata, exact=exact, inner_steps=1000, anchor_batch_size=1
        )
        table = probe.measure(moved(losses)).set_index("sampler")
        assert table.loc["stratified", "variance"] == 0.0
        assert table.loc["stratified", "within"] == 0.0
        assert "less than one window" in table.loc["stratified", "note"]
        if exact:
            scott = table.loc["scott"]
            change = total(tables[0] - COEFFICIENT * tables[1])
            assert scott["variance"] == pytest.approx(change / scott["batch_size"])


def test_random_strata_contain_nearly_all_of_the_variance(losses, windows):
    strata = {"random": Stratifier.random(4).stratify(windows)}
    table = probe_of(losses, windows, strata, exact=True).measure()
    # A random partition of N windows keeps (N − B)/(N − 1) on average, here 0.97.
    assert table["within"].iloc[1] == pytest.approx(0.97, abs=0.04)
    # Equal numbers of windows from small and large strata add a little variance.
    assert table["relative"].iloc[1] == pytest.approx(0.97, abs=0.15)


@pytest.mark.parametrize("delta", [2.0, 10.0])
def test_ar1_lemma_of_the_paper_holds(delta):
    target = np.append(np.tile([-1.0, -delta, 1.0, delta], 25), -1.0)
    entry = {"item_id": "a", "start": pd.Timestamp("2020-01-01"), "target": target}
    windows = WindowIndex.from_dataset([entry], "D", 1, 1, dtype=torch.float64)
    network = VARNetwork(context_length=1, prediction_length=1, scaling=False).double()
    network.linear.bias.requires_grad_(False)  # AR(1) has one parameter
    nn.init.zeros_(network.linear.weight)
    nn.init.zeros_(network.linear.bias)
    strata = {"t mod 2": Stratifier.periodic(2).stratify(windows)}
    for exact in (True, False):
        probe = probe_of(Losses(network), windows, strata, gradients=2, exact=exact)
        uniform, stratified = probe.measure().itertuples()
        # ∇f is ±2δ in the two strata: 4δ²/2 for a pair of uniform draws.
        within = 5 * uniform.standard_error + 1e-9
        assert uniform.variance == pytest.approx(2 * delta**2, abs=within)
        assert stratified.variance == pytest.approx(0, abs=1e-12)


def test_at_the_snapshot_the_control_variate_has_the_variance_of_its_anchor(
    losses, windows
):
    probe = probe_of(losses, windows, sample=64, coefficient=1.0)
    table = probe.measure(point(losses)).set_index("sampler")["variance"]
    # θ is the snapshot, so v is the anchor itself: b = n/B here.
    assert table["scott"] == pytest.approx(table["stratified"], rel=1e-12)
    assert table["scsg"] == pytest.approx(table["uniform"], rel=1e-12)


def test_equal_generators_give_equal_tables(losses, windows):
    tables = [probe_of(losses, windows, sample=16, seed=s).measure() for s in (5, 5, 6)]
    pd.testing.assert_frame_equal(*tables[:2])
    assert (tables[0]["variance"] != tables[2]["variance"]).all()


def test_small_changes_are_accurate_in_single_precision():
    found = []
    for dtype in (torch.float32, torch.float64):
        losses, windows = Losses(tiny_network(dtype)), wave_windows(dtype)
        strata = {
            "finest": Stratifier.finest().stratify(windows)
        }  # no noise in the anchor
        probe = probe_of(losses, windows, strata, coefficient=1.0, inner_steps=1000)
        table = probe.measure(moved(losses, size=1e-4)).set_index("sampler")
        found.append(table.loc["scott", "variance"])
        assert table.loc["scott", "relative"] < 1e-6
    # Rounding errors are 1e-7 of a gradient, and the gradients differ by 1e-3.
    assert found[0] == pytest.approx(found[1], rel=0.01)


def test_cost_exceeded_by_the_anchor_alone_is_noted(losses, windows):
    for exact in (True, False):
        probe = probe_of(losses, windows, inner_steps=1, exact=exact)
        table = probe.measure(moved(losses)).set_index("sampler")
        for sampler in ("scott", "scsg"):
            row = table.loc[sampler]
            assert math.isnan(row["variance"])
            assert math.isnan(row["standard_error"])
            assert "Bb/K = 18 gradients of 18" in row["note"]
        assert table.loc["stratified", "variance"] > 0
    single = probe_of(losses, windows, per_stratum=2, sample=2).measure()
    assert single["standard_error"].isna().all()


def test_computed_gradients_are_counted(losses, windows):
    strata = {
        "parts": partition(windows),
        "finest": Stratifier.finest().stratify(windows),
    }
    probe = probe_of(losses, windows, strata, sample=64, per_stratum=4)
    probe.measure()
    assert probe.count == 64 + 9 * 4  # strata of one window need none
    probe.measure(moved(losses))
    assert probe.count == 3 * (64 + 9 * 4)


LARGE = (
    DEEP
    + """
from pts_scott.engine.gradients import Losses
from pts_scott.diagnostics.variance import VarianceProbe

def measure(network):
    strata = {"parts": Stratifier.periodic(3).stratify(windows)}
    snapshot = tuple(p.detach() for p in network.parameters())
    VarianceProbe(
        Losses(network), windows, strata, gradients=8, sample=16, per_stratum=4,
        generator=torch.Generator(),
    ).measure(snapshot)

measure(tiny_network(torch.float32))
network = Deep()
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # reset the peak
measure(network)
size = sum(4 * p.numel() for p in network.parameters()) / 1024
print((kilobytes("VmHWM") - before) / size)
"""
)


@pytest.mark.slow
@pytest.mark.skipif(not RESET.exists(), reason="needs Linux memory counts")
def test_large_network_is_measured_in_a_few_times_its_memory():
    # Gradients at parameters and snapshot, three group means, and one temporary.
    assert run(LARGE) < 6.5


class MeanLoss(TinyNetwork):
    def loss(self, past_target, future_target):
        return super().loss(past_target, future_target).mean()


def test_wrong_arguments_raise_with_the_remedy(losses, windows):
    def check(match, *, with_losses=losses, with_windows=windows, **kwargs):
        with pytest.raises(ArgumentError, match=match):
            probe_of(with_losses, with_windows, **kwargs)

    check("gradients=0", gradients=0)
    check("anchor_batch_size=0", anchor_batch_size=0)
    check("inner_steps=2.5", inner_steps=2.5)
    check("coefficient=1.5", coefficient=1.5)
    check("sample=1", sample=1)
    check("per_stratum=1", per_stratum=1)
    check("exact='yes'", exact="yes")
    check("expected labels and partitions", strata=[partition(windows)])
    check("expected Strata", strata={"a": Stratifier.periodic(3)})
    other = wave_windows(stride=2)
    check("stratify the windows that are probed", strata={"a": partition(other)})
    check(r"Losses\(network\)", with_losses=losses.network)
    check("expected windows", with_windows=[1, 2], strata={})
    with pytest.raises(ArgumentError, match="Gradients.parameters"):
        probe_of(losses, windows).measure(point(losses)[:-1])
    with pytest.raises(WindowLossError, match="one loss per window"):
        probe_of(Losses(MeanLoss().double()), windows).measure()


def test_anchor_error_persists_over_all_its_steps(losses, windows, tables):
    """E‖mean of K inner steps − ∇f‖², drawn: one anchor, K mini-batches."""
    strata, steps = partition(windows), 4
    probe = probe_of(losses, windows, exact=True, gradients=18, inner_steps=steps)
    table = probe.measure(moved(losses)).set_index("sampler")
    now, then = tables
    generator = torch.Generator().manual_seed(5)
    weights = (strata.weights / B_PER_STRATUM).repeat_interleave(B_PER_STRATUM)
    # M may be a fraction in the formula; the drawn noise is scaled to it.
    size = table.loc["scott", "batch_size"]
    change = now - COEFFICIENT * then
    squares = []
    for _ in range(4000):
        anchor = COEFFICIENT * weights @ then[strata.draw(B_PER_STRATUM, generator)]
        drawn = change[torch.randint(len(change), (steps,), generator=generator)]
        noise = (drawn - change.mean(dim=0)).mean(dim=0) / math.sqrt(size)
        error = noise + anchor - COEFFICIENT * then.mean(dim=0)
        squares.append(float(error.square().sum()))
    uniform = table.loc["uniform", "variance"] / steps
    expected = float(np.mean(squares)) / uniform
    standard_error = float(np.std(squares)) / math.sqrt(len(squares)) / uniform
    found = table.loc["scott", "loop_relative"]
    assert abs(found - expected) < 5 * standard_error
    assert found > table.loc["scott", "relative"]
    assert table.loc["stratified", "loop_relative"] == table.loc["stratified", "relative"]
