"""Probes and method="auto": what is found, used, counted, reported and resumed."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.faults import FaultyNetwork
from helpers.processes import needs_fork, run_processes
from helpers.runs import CLOCK_COLUMNS, CrashAt, CrashError, flat_parameters
from helpers.training import QUIET, assert_same_parameters, quiet_trainer
from torch import nn

from pts_scott import Checkpoints, ScottTrainer, Stratifier, WindowIndex
from pts_scott.errors import ArgumentError, ScottWarning
from pts_scott.method.methods import Auto
from pts_scott.strata.candidates import candidate_policies
from pts_scott.training.budget import Budget
from pts_scott.training.sampling_setup import _planned_steps

STEPS = 1300  # probes at 100, 200, 400 and 800


@pytest.fixture(autouse=True)
def cheap_probes(monkeypatch):
    """Make probes affordable in short runs of a small network."""
    schedule = "pts_scott.training.probe_schedule"
    monkeypatch.setattr(f"{schedule}.SHARE", 1.0)
    monkeypatch.setattr(f"{schedule}.PROBE_OVERHEAD", 0)
    monkeypatch.setattr(f"{schedule}.MAX_WINDOWS", 256)


def series_windows(scales, length=400, seed=0) -> WindowIndex:
    """Return hourly series of noise with the given scales."""
    rng = np.random.default_rng(seed)
    entries = [
        {
            "item_id": f"s{k}",
            "start": pd.Timestamp("2021-01-01"),
            "target": scale * rng.standard_normal(length),
        }
        for k, scale in enumerate(scales)
    ]
    return WindowIndex.from_dataset(entries, "h", 6, 2, dtype=torch.float64)


class Linear(nn.Module):
    """A linear forecast, whose gradients are as large as the scale of a series."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2, dtype=torch.float64)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def loss(self, past_target, future_target):
        return (self.linear(past_target) - future_target).square().mean(dim=1)


class Level(Linear):
    """A forecast that ignores the context: all windows have gradients of one kind."""

    def loss(self, past_target, future_target):
        return super().loss(torch.ones_like(past_target), future_target)


EVEN = [1.0] * 6
UNEVEN = [1.0, 1.0, 1.0, 1.0, 1.0, 30.0]


def auto(windows: WindowIndex, network: nn.Module | None = None, **kwargs: Any):
    """Train and return the network and its trainer."""
    settings: dict[str, Any] = {
        "method": "auto",
        "optimizer": "adam",
        "num_batches_per_epoch": STEPS,
        "batch_size": 16,
        **kwargs,
    }
    trainer = quiet_trainer(**settings)
    network = network or Linear()
    trainer.fit(network, windows)
    return network, trainer


def test_homogeneous_data_is_sampled_uniformly():
    _, trainer = auto(series_windows(EVEN), Level())
    shares = trainer.history["sampler"].value_counts(normalize=True)
    # Each probe may err once in twenty; none of four does with this seed.
    assert shares.get("uniform", 0.0) == 1.0
    assert "no strata reduce the variance" in trainer.report()


def test_planted_heterogeneity_is_found_and_used():
    _, trainer = auto(series_windows(UNEVEN))
    last = trainer.history["sampler"].iloc[-1]
    assert last.endswith("spread")
    assert last.startswith(("series()", "learned"))
    members = trainer.strata.labels(range(len(trainer.strata)))
    assert any("s5" in label for label in members)
    lines = trainer.report().splitlines()
    assert lines[0].startswith("From step 0: uniform")
    assert lines[1].startswith("From step 100: ")
    assert "of uniform" in lines[1]
    assert "control variate" in lines[-1]


def test_probes_are_counted():
    _, trainer = auto(series_windows(UNEVEN))
    history = trainer.history
    probed = history["probe_gradients"].iloc[-1]
    assert probed > 4 * 128
    assert history["gradients"].iloc[-1] == STEPS * 16 + probed
    assert 0 < history["probe_seconds"].iloc[-1] < history["seconds"].iloc[-1]
    assert history["probe_gradients"].is_monotonic_increasing
    before = history[history["step"] <= 100]
    assert before["probe_gradients"].iloc[-1] == 0


def test_one_seed_gives_one_result():
    windows = series_windows(UNEVEN)
    first, trainer = auto(windows, seed=3)
    second, other = auto(windows, seed=3)
    third, _ = auto(windows, seed=4)
    assert_same_parameters(first, second)
    assert trainer.report() == other.report()
    columns = trainer.history.columns.difference(CLOCK_COLUMNS)
    pd.testing.assert_frame_equal(trainer.history[columns], other.history[columns])
    assert not torch.equal(flat_parameters(first), flat_parameters(third))


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "auto"},
        {
            "method": "stratified",
            "stratifier": Stratifier.learned(8),
            "allocation": "spread",
        },
        {
            "method": "stratified",
            "stratifier": Stratifier.series(),
            "allocation": "spread",
            "replacement": False,
        },
        {
            "method": "scott",
            "stratifier": Stratifier.series(),
            "allocation": "spread",
            "gamma": None,
        },
    ],
)
def test_killed_and_resumed_runs_are_bit_equal(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("pts_scott.training.probes.MIN_POOL", 200)
    monkeypatch.setattr("pts_scott.training.probes.MAX_POOL", 900)  # not all windows
    windows, settings = series_windows(UNEVEN), dict(settings)
    whole, trainer = auto(windows, **settings)
    columns = trainer.history.columns.difference(CLOCK_COLUMNS)
    for crash in (90, 110, 700):
        settings["checkpoint"] = Checkpoints(tmp_path / str(crash), steps=1)
        kwargs = {**QUIET, "callbacks": [CrashAt(crash)]}
        with pytest.raises(CrashError):
            auto(windows, trainer_kwargs=kwargs, resume=True, **settings)
        saved = torch.load(settings["checkpoint"].path, weights_only=False)["pts_scott"]
        assert saved["counters"]["steps"] > crash - 30, "it does not begin anew"
        resumed, again = auto(windows, resume=True, **settings)
        assert_same_parameters(whole, resumed)
        assert again.report() == trainer.report()
        pd.testing.assert_frame_equal(trainer.history[columns], again.history[columns])


def test_learned_strata_come_back_fitted_and_can_be_used_again():
    windows = series_windows(UNEVEN)
    _, trainer = auto(
        windows,
        method="stratified",
        stratifier=Stratifier.learned(8),
        allocation="spread",
    )
    fitted = trainer.strata.stratifier
    assert not fitted.needs_gradients
    _, again = auto(
        windows, method="scott", stratifier=fitted, gamma=None, num_batches_per_epoch=40
    )
    assert len(again.strata) == len(fitted.stratify(windows))
    _, again = auto(windows, method="stratified", stratifier=fitted, allocation="spread")
    assert again.history["sampler"].iloc[-1] == "learned(8), spread"
    assert np.array_equal(again.strata.stratifier.nodes, fitted.nodes)


def test_spread_allocation_reduces_the_error_of_a_run():
    windows = series_windows(UNEVEN)
    # The minimiser of the linear model, by least squares.
    batch = windows.gather(torch.arange(len(windows)))
    inputs = torch.cat(
        [batch["past_target"], torch.ones(len(windows), 1).double()], dim=1
    )
    exact = torch.linalg.lstsq(inputs, batch["future_target"]).solution

    def error(seed: int, **settings: Any) -> float:
        network, _ = auto(
            windows,
            seed=seed,
            optimizer="sgd",
            learning_rate=1e-4,
            weight_decay=0.0,
            **settings,
        )
        found = torch.cat([network.linear.weight.T, network.linear.bias[None]])
        return float((found.detach() - exact)[:-1].square().sum())

    plain = np.mean([error(seed, method="plain") for seed in range(3)])
    spread = np.mean(
        [
            error(
                seed,
                method="stratified",
                stratifier=Stratifier.series(),
                allocation="spread",
            )
            for seed in range(3)
        ]
    )
    assert spread < 0.7 * plain


def test_fixed_allocations_are_not_probed():
    _, trainer = auto(
        series_windows(UNEVEN), method="stratified", stratifier=Stratifier.series()
    )
    assert trainer.history["probe_gradients"].iloc[-1] == 0
    assert set(trainer.history["sampler"]) == {"series(), proportional"}
    assert trainer.report() == "From step 0: series(), proportional, as given."


def test_report_names_what_is_used_before_the_first_probe():
    windows = series_windows(UNEVEN)
    spread = {"method": "stratified", "allocation": "spread"}
    _, trainer = auto(windows, stratifier=Stratifier.series(), **spread)
    assert trainer.report().startswith("From step 0: series(), proportional, until")
    assert trainer.history["sampler"].iloc[0] == "series(), proportional"
    assert trainer.history["sampler"].iloc[-1] == "series(), spread"
    _, trainer = auto(windows, replacement=False, num_batches_per_epoch=40)
    assert trainer.report().startswith("From step 0: reshuffled, until")


def test_what_is_asked_for_is_measured_in_short_runs_or_a_warning_says_so(monkeypatch):
    monkeypatch.setattr("pts_scott.training.probe_schedule.SHARE", 0.0)
    windows = series_windows(UNEVEN)
    settings = {
        "method": "stratified",
        "stratifier": Stratifier.learned(8),
        "allocation": "spread",
    }
    _, trainer = auto(windows, num_batches_per_epoch=150, **settings)
    assert trainer.history["sampler"].iloc[-1] == "learned(8), spread"
    with pytest.warns(
        ScottWarning, match="first measured at step 100, and this run has 60"
    ):
        auto(windows, num_batches_per_epoch=60, **settings)


def test_uniform_samples_stay_in_the_same_stream(monkeypatch):
    seen = []
    minibatch = Auto.minibatch

    def recorded(method):
        seen.append(minibatch(method))
        return seen[-1]

    monkeypatch.setattr(Auto, "minibatch", recorded)
    windows = series_windows(EVEN, length=120)
    _, trainer = auto(
        windows, Level(), replacement=False, batch_size=1, num_batches_per_epoch=650
    )
    assert set(trainer.history["sampler"]) == {"reshuffled"}
    drawn = [int(sample.windows) for sample in seen]
    assert len(windows) == 678 > len(drawn)
    assert len(set(drawn)) == len(drawn), "no window comes again before all others"


@pytest.mark.parametrize("other", [Stratifier.ranges(3), Stratifier.series()])
def test_products_with_learned_strata_resume_from_a_pool(other, tmp_path, monkeypatch):
    monkeypatch.setattr("pts_scott.training.probes.MIN_POOL", 200)
    monkeypatch.setattr("pts_scott.training.probes.MAX_POOL", 900)
    windows = series_windows(UNEVEN)
    settings = {
        "method": "stratified",
        "stratifier": other * Stratifier.learned(4),
        "allocation": "spread",
        "num_batches_per_epoch": 300,
    }
    whole, _ = auto(windows, **settings)
    settings |= {"checkpoint": Checkpoints(tmp_path, steps=1), "resume": True}
    with pytest.raises(CrashError):
        auto(windows, trainer_kwargs={**QUIET, "callbacks": [CrashAt(150)]}, **settings)
    resumed, _ = auto(windows, **settings)
    assert_same_parameters(whole, resumed)


def test_given_policy_wins_over_a_candidate_of_its_name():
    windows = series_windows(UNEVEN)
    given = Stratifier.learned(32, seed=7)
    assert candidate_policies(windows, given)["learned(32)"] is given


def test_a_time_budget_does_not_hide_a_small_number_of_steps():
    budget = Budget(steps=200, seconds=100.0, gradients=None)
    method = SimpleNamespace(step_cost=16)
    assert _planned_steps(budget, method) == 200
    assert _planned_steps(Budget(10**6, 100.0, None), method) is None


def test_gradient_budget_is_never_exceeded():
    windows = series_windows(UNEVEN)
    for budget in (16 * 105, 16 * 120, 16 * 500):
        _, trainer = auto(windows, epochs=None, gradient_budget=budget)
        assert trainer.history["gradients"].iloc[-1] <= budget
        assert trainer.history["step"].iloc[-1] > 0.5 * budget / 16


def test_non_finite_gradients_are_left_out_with_a_warning():
    windows = series_windows(EVEN)
    windows.series.values[100:110] = 1e200  # squares overflow
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, trainer = auto(windows, num_batches_per_epoch=140, skip_limit=1000)
    message = "gradients probed at step 100 are not finite and are left out."
    assert any(message in str(w.message) for w in caught)
    assert trainer.history["step"].iloc[-1] == 140


class FailsInEvaluation(Linear):
    def loss(self, past_target, future_target):
        if not self.training and len(past_target) > 20:
            raise RuntimeError("not today")
        return super().loss(past_target, future_target)


def test_run_survives_a_probe_that_fails():
    windows = series_windows(UNEVEN)
    with pytest.warns(ScottWarning, match=r"could not be probed at step 100 .*not today"):
        _, trainer = auto(windows, FailsInEvaluation())
    assert trainer.history["step"].iloc[-1] == STEPS
    assert set(trainer.history["sampler"]) == {"uniform"}


def test_anchors_cannot_be_drawn_from_strata_that_do_not_exist_yet():
    with pytest.raises(ArgumentError, match="found during training"):
        auto(series_windows(EVEN), method="scott", stratifier=Stratifier.learned(8))


@pytest.mark.parametrize("name", ["allocation", "objective"])
def test_tables_need_fixed_labels(name):
    given = {name: {"all windows": 1.0}}
    with pytest.raises(ArgumentError, match="fixed labels"):
        auto(
            series_windows(EVEN),
            method="stratified",
            stratifier=Stratifier.learned(8),
            **given,
        )


def test_users_policy_is_among_the_candidates():
    windows = series_windows(UNEVEN)
    policy = Stratifier.custom(lambda item_id, moment, instance: item_id == "s5")
    _, trainer = auto(windows, stratifier=policy)
    assert "custom" in trainer.report() or "learned" in trainer.report()


def test_defaults_serve():
    trainer = ScottTrainer()
    assert trainer.hyperparameters.method == "auto"
    assert trainer.optimizer == "adam"
    assert trainer.clip_gradient == 10.0
    assert trainer.output == "auto"


@pytest.mark.parametrize(("validates", "kept"), [(True, "best"), (False, "last")])
def test_best_parameters_are_kept_where_there_is_validation_data(validates, kept):
    windows = series_windows(EVEN)
    settings = {
        "method": "plain",
        "optimizer": "sgd",
        "learning_rate": 0.3,
        "epochs": 6,
        "num_batches_per_epoch": 5,
    }
    found = {}
    for output in ("auto", kept):
        network = Linear()
        trainer = quiet_trainer(**settings, output=output)
        trainer.fit(network, windows, windows.last() if validates else None)
        found[output] = network
    assert_same_parameters(found["auto"], found[kept])


def test_faulty_networks_train_on(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, trainer = auto(
            series_windows(EVEN), FaultyNetwork("gradient"), skip_limit=10_000
        )
    assert trainer.history["step"].iloc[-1] == STEPS


@needs_fork
def test_two_processes_choose_and_train_as_one(tmp_path):
    windows = series_windows(UNEVEN)
    settings = {"num_batches_per_epoch": 450, "clip_gradient": 10.0}

    def work() -> tuple[torch.Tensor, str]:
        kwargs = {**QUIET, "strategy": "ddp", "devices": 2}
        network, trainer = auto(windows, trainer_kwargs=kwargs, **settings)
        return flat_parameters(network), trainer.report()

    alone, trainer = auto(windows, **settings)
    assert "spread" in trainer.report()
    for parameters, report in run_processes(tmp_path, 2, work):
        assert report == trainer.report()
        # Sums over shards are rounded in another order.
        torch.testing.assert_close(
            parameters, flat_parameters(alone), rtol=1e-6, atol=1e-9
        )


@pytest.mark.parametrize("method", ["auto", "stratified"])
def test_compiled_steps_equal_eager_ones(method, monkeypatch):
    monkeypatch.setattr(
        "pts_scott.engine.compilation.compile_graph", lambda graph, _: graph
    )
    monkeypatch.setattr("pts_scott.training.compile_policy.has_compiler", lambda: True)
    windows = series_windows(UNEVEN)
    settings = {"method": method, "num_batches_per_epoch": 450}
    if method == "stratified":
        settings |= {"stratifier": Stratifier.series(), "allocation": "spread"}
    eager, trainer = auto(windows, **settings)
    compiled, other = auto(windows, compile=True, **settings)
    assert other.compiled
    assert other.report() == trainer.report()
    assert_same_parameters(compiled, eager, rtol=1e-6, atol=1e-9)
