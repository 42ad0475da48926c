"""One run: trained within its budget, measured separately, and reproducible."""

from __future__ import annotations

import math
import time

import pandas as pd

from pts_scott.experiments.backtest import BACKTEST_METRICS
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.curve import Curve
from pts_scott.experiments.run import perform
from pts_scott.experiments.setting import Setting


def test_record_has_cost_and_losses(setting):
    run = perform(setting, "S-Adam", seed=0)
    record, last = run.record, run.history.iloc[-1]
    assert record["status"] == "finished"
    assert record["loss"] == "MSE"
    assert record["gradients"] == last["gradients"] <= 2000
    assert record["steps"] == last["step"]
    assert record["anchors"] > 0
    assert record["strata"] == 24
    assert record["test_loss"] < run.curve["test_loss"].iloc[0]
    assert all(math.isfinite(record[name]) for name in BACKTEST_METRICS)


def test_measuring_is_not_training_time(setting):
    naps = 5 * [0.4]

    def watch(point):
        time.sleep(naps.pop())

    began = time.perf_counter()
    run = perform(setting, "SGD", 0, watch)
    wall = time.perf_counter() - began
    assert not naps
    assert run.record["evaluation_seconds"] >= 2.0
    assert run.record["seconds"] <= wall - run.record["evaluation_seconds"]


def test_same_seed_gives_the_same_result(setting):
    first, again, other = (perform(setting, "S-Adam", seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(
        first.curve.drop(columns="seconds"), again.curve.drop(columns="seconds")
    )
    assert first.record["CRPS"] == again.record["CRPS"]
    assert first.record["test_loss"] != other.record["test_loss"]


def test_watch_can_stop_a_run(setting):
    run = perform(setting, "SGD", 0, lambda point: point.step > 200)
    assert 200 < run.record["steps"] < 300


def test_tuning_measures_only_held_out_windows(setting):
    run = perform(setting, "SGD", seed=0, tuning=True)
    whole = perform(setting, "SGD", seed=0)
    assert run.record["test_loss"] == whole.record["test_loss"]
    assert run.record["status"] == "finished"
    assert math.isnan(run.record["train_loss"])
    pruned = perform(setting, "SGD", 0, lambda point: point.step > 200, tuning=True)
    assert math.isnan(pruned.record["test_loss"])


def test_nonfinite_loss_during_training_counts_as_divergence(setting, monkeypatch):
    measure = Curve.measure

    def infinite(curve, trainer, lightning_module):
        measure(curve, trainer, lightning_module)
        if len(curve.points) == 2:
            curve.diverged = trainer.should_stop = True

    monkeypatch.setattr(Curve, "measure", infinite)
    assert perform(setting, "SGD", seed=0).record["status"] == "diverged"


def test_diverging_run_stops_early_and_is_recorded(small_config):
    options = ["--optimizers.SGD.learning_rate", "1e6", "--gradient_budget", "40000"]
    run = perform(Setting(load_experiment(small_config, options)), "SGD", seed=0)
    assert run.record["status"] == "diverged"
    assert math.isnan(run.record["test_loss"])
    assert run.record["steps"] < 10_000
    assert any("diverges" in warning for warning in run.record["warnings"])
