"""The variance probe: right against brute force and against estimators that are drawn."""

from __future__ import annotations

import math
import random
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.series import wave_windows
from helpers.training import TinyNetwork, tiny_network
from test_memory import DEEP, RESET, run
from torch import nn

from pts_scott import Stratifier, WindowIndex
from pts_scott.backends import backend
from pts_scott.diagnostics import window_gradients as module
from pts_scott.diagnostics.variance import VarianceProbe
from pts_scott.diagnostics.window_gradients import window_gradients
from pts_scott.engine.gradients import Gradients, Losses
from pts_scott.errors import ArgumentError, WindowLossError
from pts_scott.models.networks import LSTMNetwork, VARNetwork, nbeats_network

COEFFICIENT = 0.7
# With 9 strata: two windows from each, or M = (18 − 9 · 2 / 3) / 2 = 6 in an inner step.
SETTINGS = {
    "gradients": 18,
    "anchor_batch_size": 2,
    "inner_steps": 3,
    "coefficient": COEFFICIENT,
}
BATCH, B_PER_STRATUM = 6, 2


def partition(windows: WindowIndex):
    return (Stratifier.periodic(3) * Stratifier.series()).stratify(windows)


def probe_of(losses, windows, strata=None, seed=0, **kwargs) -> VarianceProbe:
    strata = {"parts": partition(windows)} if strata is None else strata
    generator = torch.Generator().manual_seed(seed)
    return VarianceProbe(
        losses, windows, strata, **{**SETTINGS, "generator": generator, **kwargs}
    )


def point(losses: Losses) -> tuple[torch.Tensor, ...]:
    return tuple(p.detach().clone() for p in losses.trainable().values())


def moved(losses: Losses, size: float = 0.3) -> tuple[torch.Tensor, ...]:
    """A snapshot some way from the parameters."""
    generator = torch.Generator().manual_seed(2)
    return tuple(
        p + size * torch.randn(p.shape, generator=generator).to(p) for p in point(losses)
    )


def gradient_table(losses, windows, at) -> torch.Tensor:
    """The gradient of every window, one row each, by autograd on the network itself."""
    rows = []
    before = point(losses)
    parameters = list(losses.trainable().values())
    try:
        with torch.no_grad():
            torch._foreach_copy_(parameters, list(at))
        for number in range(len(windows)):
            loss = losses(windows.gather(torch.tensor([number])))[0]
            rows.append(torch.cat([g.flatten() for g in autograd(loss, parameters)]))
    finally:
        with torch.no_grad():
            torch._foreach_copy_(parameters, list(before))
    return torch.stack(rows)


def autograd(loss, parameters):
    return torch.autograd.grad(loss, parameters, materialize_grads=True)


def total(rows: torch.Tensor) -> float:
    return float(rows.var(dim=0, unbiased=False).sum())


def members(strata) -> list[torch.Tensor]:
    return list(strata.order.split(strata.sizes.tolist()))


def brute_force(now, then, strata) -> dict[str, float]:
    """The four variances, from the gradients of all windows."""
    n, b, k, c = SETTINGS.values()
    size = (n - len(strata) * b / k) / 2
    weights = strata.weights.tolist()

    def inside(table):
        return sum(w**2 * total(table[m]) for w, m in zip(weights, members(strata)))

    change = total(now - c * then) / size
    return {
        "uniform": total(now) / n,
        "stratified": inside(now) * len(strata) / n,
        "scott": change + c**2 * inside(then) / b,
        "scsg": change + c**2 * total(then) / (len(strata) * b),
    }


@pytest.fixture
def losses() -> Losses:
    return Losses(tiny_network())


@pytest.fixture
def tables(losses, windows) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of all windows at the parameters and at the snapshot."""
    return (
        gradient_table(losses, windows, point(losses)),
        gradient_table(losses, windows, moved(losses)),
    )


def test_window_gradients_are_those_of_autograd_one_by_one(losses, windows, tables):
    batch = windows.gather(torch.arange(len(windows)))
    for at, table in zip((point(losses), moved(losses)), tables):
        rows = window_gradients(losses, at, batch)
        torch.testing.assert_close(rows, table, rtol=1e-10, atol=1e-12)


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


def test_without_a_snapshot_there_is_no_control_variate(losses, windows):
    probe = probe_of(losses, windows, exact=True)
    both, one = probe.measure(moved(losses)), probe.measure()
    pd.testing.assert_frame_equal(one, both[:2])


def test_the_law_of_total_variance(losses, windows, tables):
    now, strata = tables[0], partition(windows)
    stratified = probe_of(losses, windows, exact=True).measure().iloc[1]
    between = sum(
        w * float((now[m].mean(dim=0) - now.mean(dim=0)).square().sum())
        for w, m in zip(strata.weights.tolist(), members(strata))
    )
    assert 0.1 < stratified["within"] < 0.9
    assert stratified["within"] + between / total(now) == pytest.approx(1, rel=1e-9)


def test_windows_may_come_in_passes_of_any_size(losses, windows, monkeypatch):
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
def test_sampled_variances_are_unbiased_and_know_their_error(
    losses, windows, per_stratum
):
    snapshot, repeats = moved(losses), 200
    exact = probe_of(losses, windows, exact=True).measure(snapshot)["variance"]
    probe = probe_of(losses, windows, sample=64, per_stratum=per_stratum)
    tables = [probe.measure(snapshot) for _ in range(repeats)]
    values = np.array([table["variance"] for table in tables])
    spread = values.std(axis=0, ddof=1)
    # Five standard errors: a right estimator fails once in a million runs.
    assert (np.abs(values.mean(axis=0) - exact) < 5 * spread / math.sqrt(repeats)).all()
    # A spread over 200 repeats is known to 5 % for a normal distribution, and to two or
    # three times that for these, which are skewed.
    errors = np.square([table["standard_error"] for table in tables]).mean(axis=0)
    np.testing.assert_allclose(np.sqrt(errors), spread, rtol=0.3)


def spread_of(directions: torch.Tensor, mean: torch.Tensor) -> tuple[float, float]:
    """E‖v − mean‖² over drawn v, and its standard error."""
    squares = (directions - mean).square().sum(dim=1)
    return float(squares.mean()), float(squares.std()) / math.sqrt(len(squares))


def test_estimators_that_are_drawn_have_the_variance_that_is_predicted(
    losses, windows, tables
):
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
        return flat(gradients.stratified(batch, weights).direction)

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


def test_the_finest_strata_leave_no_variance_in_the_anchor(losses, windows, tables):
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


def test_random_strata_hold_nearly_all_of_the_variance(losses, windows):
    strata = {"random": Stratifier.random(4).stratify(windows)}
    table = probe_of(losses, windows, strata, exact=True).measure()
    # A random partition of N windows keeps (N − B)/(N − 1) on average, here 0.97.
    assert table["within"].iloc[1] == pytest.approx(0.97, abs=0.04)
    # As many windows from small strata as from large ones cost a little more.
    assert table["relative"].iloc[1] == pytest.approx(0.97, abs=0.15)


@pytest.mark.parametrize("delta", [2.0, 10.0])
def test_the_papers_ar1_lemma(delta):
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
    # Nothing changed since, so v is the anchor itself: b = n/B here.
    assert table["scott"] == pytest.approx(table["stratified"], rel=1e-12)
    assert table["scsg"] == pytest.approx(table["uniform"], rel=1e-12)


def test_equal_generators_give_equal_tables(losses, windows):
    tables = [probe_of(losses, windows, sample=16, seed=s).measure() for s in (5, 5, 6)]
    pd.testing.assert_frame_equal(*tables[:2])
    assert (tables[0]["variance"] != tables[2]["variance"]).all()


def test_a_small_change_is_measured_well_in_single_precision():
    found = []
    for dtype in (torch.float32, torch.float64):
        losses, windows = Losses(tiny_network(dtype)), wave_windows(dtype)
        strata = {"finest": Stratifier.finest().stratify(windows)}  # no anchor's noise
        probe = probe_of(losses, windows, strata, coefficient=1.0, inner_steps=1000)
        table = probe.measure(moved(losses, size=1e-4)).set_index("sampler")
        found.append(table.loc["scott", "variance"])
        assert table.loc["scott", "relative"] < 1e-6
    # Rounding is 1e-7 of each gradient, and the gradients differ by 1e-3 of themselves.
    assert found[0] == pytest.approx(found[1], rel=0.01)


def test_a_cost_that_the_anchor_alone_exceeds_is_said_to_be_so(losses, windows):
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


class DropoutNetwork(nn.Module):
    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Dropout(dropout), nn.Linear(8, 2))

    def loss(self, past_target, future_target):
        return (self.layers(past_target) - future_target).square().mean(dim=1)


def test_dropout_is_switched_off():
    windows = wave_windows()
    network = DropoutNetwork().double()
    without = DropoutNetwork(0.0).double()
    without.load_state_dict(network.state_dict())
    tables = [
        probe_of(Losses(x), windows, sample=64).measure(moved(Losses(x)))
        for x in (network, without)
    ]
    pd.testing.assert_frame_equal(*tables)


def random_states():
    return torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()


@pytest.mark.parametrize("exact", [True, False])
def test_probing_leaves_no_trace(exact):
    def train(probing: bool):
        torch.manual_seed(4)
        network = DropoutNetwork().double()
        windows, losses = wave_windows(), Losses(network)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        probe = probe_of(losses, windows, sample=16, exact=exact)
        for _ in range(3):
            losses(windows.gather(torch.arange(8))).mean().backward()
            if probing:
                gradients = [p.grad.clone() for p in network.parameters()]
                parameters, states = point(losses), random_states()
                flags = [p.requires_grad for p in network.parameters()]
                snapshot = moved(losses)
                kept = [s.clone() for s in snapshot]
                probe.measure(snapshot)
                window_gradients(losses, snapshot, windows.gather(torch.arange(4)))
                assert all(map(torch.equal, snapshot, kept))
                assert not any(s.requires_grad for s in snapshot)
                assert all(map(torch.equal, parameters, point(losses)))
                grads = [p.grad for p in network.parameters()]
                assert all(map(torch.equal, gradients, grads))
                assert flags == [p.requires_grad for p in network.parameters()]
                assert all(m.training for m in losses.modules())
                after = random_states()
                assert torch.equal(states[0], after[0])
                assert states[1:] == after[1:]
            optimizer.step()
        return point(losses)

    assert all(map(torch.equal, train(probing=True), train(probing=False)))


class LooksAtValues(TinyNetwork):
    """Decides by the values of its windows, which vmap refuses."""

    def loss(self, past_target, future_target):
        factor = 2.0 if bool((past_target > 1e6).any()) else 1.0
        return factor * super().loss(past_target, future_target)


@pytest.mark.parametrize("make", [TinyNetwork, LooksAtValues])
@pytest.mark.parametrize("switched_off", [torch.no_grad, torch.inference_mode])
def test_probing_works_where_gradients_are_switched_off(windows, make, switched_off):
    losses = Losses(make().double())

    def tables():
        snapshot = moved(losses)
        batch = windows.gather(torch.arange(3))
        table = probe_of(losses, windows, sample=16).measure(snapshot)
        return table, window_gradients(losses, snapshot, batch)

    expected = tables()
    with switched_off():
        table, rows = tables()
    pd.testing.assert_frame_equal(table, expected[0])
    torch.testing.assert_close(rows, expected[1])


class AlwaysRandom(TinyNetwork):
    """Draws from torch's, numpy's and Python's global state in evaluation mode, too."""

    def loss(self, past_target, future_target):
        noise = torch.rand(()) + np.random.rand() + random.random()
        return noise * super().loss(past_target, future_target)


def test_a_network_that_draws_random_numbers_leaves_global_state_alone(windows):
    probe = probe_of(Losses(AlwaysRandom().double()), windows, sample=16)
    before = random_states()
    assert (probe.measure()["variance"] > 0).all()
    after = random_states()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def lstm(dtype: torch.dtype) -> LSTMNetwork:
    return LSTMNetwork(prediction_length=2, hidden_size=5, num_layers=2).to(dtype)


@pytest.mark.parametrize(
    "network",
    [LooksAtValues().double(), lstm(torch.float32), lstm(torch.float64)],
    ids=["looks at values", "lstm", "lstm in float64"],
)
def test_a_network_that_vmap_refuses_is_measured_one_by_one(network):
    dtype = next(network.parameters()).dtype
    losses, windows = Losses(network), wave_windows(dtype)
    probe = probe_of(losses, windows, exact=True)
    table = probe.measure(moved(losses))
    assert not probe._window_gradients._together
    tables = [
        gradient_table(losses, windows, at).double()
        for at in (point(losses), moved(losses))
    ]
    expected = brute_force(*tables, partition(windows))
    rtol = 1e-4 if dtype == torch.float32 else 1e-9
    np.testing.assert_allclose(table["variance"], list(expected.values()), rtol=rtol)
    sampled = probe_of(losses, windows, sample=16).measure(moved(losses))
    assert (sampled["variance"] > 0).all()


def test_vmap_is_not_used_where_it_would_only_repeat_a_kernel():
    losses, windows = Losses(lstm(torch.float32)), wave_windows(torch.float32)
    probe = probe_of(losses, windows, sample=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        probe.measure()
    assert not probe._window_gradients._together


@pytest.mark.parametrize(
    "make",
    [
        lambda: VARNetwork(context_length=6, prediction_length=2),
        pytest.param(
            lambda: backend.simple_feedforward(6, 2, [4, 4], None, False),
            marks=pytest.mark.skipif(
                torch.__version__ < (2, 7), reason="vmap takes no distribution's checks"
            ),
        ),
        lambda: nbeats_network(
            context_length=6,
            prediction_length=2,
            periodicity=1,
            num_stacks=1,
            widths=[4],
            num_blocks=[1],
            num_block_layers=[2],
            expansion_coefficient_lengths=[2],
            stack_types=["G"],
        ),
    ],
    ids=["var", "feedforward", "nbeats"],
)
def test_the_models_of_the_paper_are_measured_many_windows_at_once(make):
    losses, windows = Losses(make()), wave_windows(torch.float32)
    probe = probe_of(losses, windows, sample=64)
    table = probe.measure(moved(losses, 0.01))
    assert probe._window_gradients._together
    assert (table["variance"] > 0).all()


class OneParameterTwice(nn.Module):
    """Its gradients share memory, and one parameter has none."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(2))
        self.b = nn.Parameter(torch.ones(2))
        self.scalar = nn.Parameter(torch.ones(()))
        self.unused = nn.Parameter(torch.ones(3))

    def loss(self, past_target, future_target):
        forecast = self.scalar * past_target[:, :2] + self.a + self.b
        return (forecast - future_target).square().mean(dim=1)


@pytest.mark.parametrize("rows", [1, 256])
def test_gradients_that_share_memory_are_not_changed_twice(windows, rows, monkeypatch):
    monkeypatch.setattr(module, "PASS_WINDOWS", rows)
    losses = Losses(OneParameterTwice().double())
    table = probe_of(losses, windows, exact=True).measure(moved(losses))
    tables = [
        gradient_table(losses, windows, at) for at in (point(losses), moved(losses))
    ]
    expected = brute_force(*tables, partition(windows))
    np.testing.assert_allclose(table["variance"], list(expected.values()), rtol=1e-9)
    sampled = probe_of(losses, windows, sample=400, per_stratum=40)
    drawn = sampled.measure(moved(losses))
    error = (drawn["variance"] - list(expected.values())).abs()
    assert (error < 4 * drawn["standard_error"]).all()
    assert (drawn["standard_error"] < 0.2 * drawn["variance"]).all()


def test_gradients_computed_are_counted(losses, windows):
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
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
measure(network)
size = sum(4 * p.numel() for p in network.parameters()) / 1024
print((kilobytes("VmHWM") - before) / size)
"""
)


@pytest.mark.slow
@pytest.mark.skipif(not RESET.exists(), reason="needs Linux' counts of memory")
def test_a_large_network_is_measured_in_a_few_times_its_memory():
    # Gradients at parameters and snapshot, three means of a group, and one on its way.
    assert run(LARGE) < 6.5


class MeanLoss(TinyNetwork):
    def loss(self, past_target, future_target):
        return super().loss(past_target, future_target).mean()


def test_wrong_arguments_are_refused_with_the_remedy(losses, windows):
    def refused(match, *, with_losses=losses, with_windows=windows, **kwargs):
        with pytest.raises(ArgumentError, match=match):
            probe_of(with_losses, with_windows, **kwargs)

    refused("gradients=0", gradients=0)
    refused("anchor_batch_size=0", anchor_batch_size=0)
    refused("inner_steps=2.5", inner_steps=2.5)
    refused("coefficient=1.5", coefficient=1.5)
    refused("sample=1", sample=1)
    refused("per_stratum=1", per_stratum=1)
    refused("exact='yes'", exact="yes")
    refused("expected labels and partitions", strata=[partition(windows)])
    refused("expected Strata", strata={"a": Stratifier.periodic(3)})
    other = wave_windows(stride=2)
    refused("stratify the windows that are probed", strata={"a": partition(other)})
    refused(r"Losses\(network\)", with_losses=losses.network)
    refused("expected windows", with_windows=[1, 2], strata={})
    with pytest.raises(ArgumentError, match="Gradients.parameters"):
        probe_of(losses, windows).measure(point(losses)[:-1])
    with pytest.raises(WindowLossError, match="one loss a window"):
        probe_of(Losses(MeanLoss().double()), windows).measure()


def test_the_error_of_an_anchor_lasts_for_all_its_steps(losses, windows, tables):
    """E‖mean of K inner steps − ∇f‖², drawn: one anchor, K mini-batches."""
    strata, steps = partition(windows), 4
    probe = probe_of(losses, windows, exact=True, gradients=18, inner_steps=steps)
    table = probe.measure(moved(losses)).set_index("sampler")
    now, then = tables
    generator = torch.Generator().manual_seed(5)
    weights = (strata.weights / B_PER_STRATUM).repeat_interleave(B_PER_STRATUM)
    # M may be a fraction in the formula; what is drawn is scaled to it.
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
