"""One run: trained within its budget, measured apart, and repeatable from its folder."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pandas as pd
import pytest
import torch
from gluonts.evaluation import Evaluator, make_evaluation_predictions

from pts_scott import WindowIndex
from pts_scott._utils.rng import isolated_rng
from pts_scott.errors import ConfigError, FileLayoutError, ScottError
from pts_scott.experiments import runs as module
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.runs import (
    BACKTEST,
    backtest,
    failed_run,
    perform,
    read_record,
    run_folder,
    spread,
    write_run,
)
from pts_scott.experiments.setting import Setting


@pytest.fixture
def setting(small_config) -> Setting:
    return Setting(load_experiment(small_config))


def test_a_run_says_what_it_spent_and_what_it_reached(setting):
    run = perform(setting, "S-Adam", seed=0)
    record, last = run.record, run.history.iloc[-1]
    assert record["status"] == "finished"
    assert record["loss"] == "MSE"
    assert record["gradients"] == last["gradients"] <= 2000
    assert record["steps"] == last["step"]
    assert record["anchors"] > 0
    assert record["strata"] == 24
    assert record["test_loss"] < run.curve["test_loss"].iloc[0]
    assert all(math.isfinite(record[name]) for name in BACKTEST)


def test_the_curve_goes_from_the_start_to_the_end_in_equal_shares(setting):
    run = perform(setting, "SGD", seed=0)
    curve = run.curve
    assert list(curve.columns) == [
        *("step", "gradients", "seconds", "train_loss", "test_loss")
    ]
    assert curve["step"].iloc[0] == 0
    assert curve["step"].iloc[-1] == run.record["steps"] == 500
    # Four shares of 500 steps, each met at the end of an outer loop of 20 steps.
    np.testing.assert_allclose(curve["step"], [0, 125, 250, 375, 500], atol=20)
    # Few windows, so the curve is measured on all of them, as the table is.
    assert curve["test_loss"].iloc[-1] == pytest.approx(run.record["test_loss"])


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


def test_one_seed_gives_one_result(setting):
    first, again, other = (perform(setting, "S-Adam", seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(
        first.curve.drop(columns="seconds"), again.curve.drop(columns="seconds")
    )
    assert first.record["CRPS"] == again.record["CRPS"]
    assert first.record["test_loss"] != other.record["test_loss"]


def test_a_watcher_can_stop_a_run(setting):
    run = perform(setting, "SGD", 0, lambda point: point.step > 200)
    assert 200 < run.record["steps"] < 300


def test_a_trial_of_tuning_measures_what_is_held_out_alone(setting):
    run = perform(setting, "SGD", seed=0, tuning=True)
    whole = perform(setting, "SGD", seed=0)
    assert run.record["test_loss"] == whole.record["test_loss"]
    assert run.record["status"] == "finished"
    assert math.isnan(run.record["train_loss"])
    pruned = perform(setting, "SGD", 0, lambda point: point.step > 200, tuning=True)
    assert math.isnan(pruned.record["test_loss"])


def test_a_loss_that_was_not_finite_on_the_way_is_a_divergence(setting, monkeypatch):
    measure = module.Curve.measure

    def infinite(curve, trainer, lightning_module):
        measure(curve, trainer, lightning_module)
        if len(curve.points) == 2:
            curve.diverged = trainer.should_stop = True

    monkeypatch.setattr(module.Curve, "measure", infinite)
    assert perform(setting, "SGD", seed=0).record["status"] == "diverged"


def test_all_optimizers_of_a_setting_are_compiled_or_none(small_config):
    options = ["--compile", "auto", "--batch_size", "1", "--gradient_budget", "15000"]
    setting = Setting(load_experiment(small_config, options))
    assert {setting.trainer(n, 0).compile for n in ("SGD", "S-Adam")} == {False}
    options[-1] = "30000"
    setting = Setting(load_experiment(small_config, options))
    assert {setting.trainer(n, 0).compile for n in ("SGD", "S-Adam")} == {"auto"}


def test_a_run_that_diverges_ends_early_and_says_so(small_config):
    options = ["--optimizers.SGD.learning_rate", "1e6", "--gradient_budget", "40000"]
    run = perform(Setting(load_experiment(small_config, options)), "SGD", seed=0)
    assert run.record["status"] == "diverged"
    assert math.isnan(run.record["test_loss"])
    assert run.record["steps"] < 10_000
    assert any("diverges" in warning for warning in run.record["warnings"])


def test_the_folder_of_a_run_repeats_it(setting, tmp_path):
    run = perform(setting, "S-Adam", seed=1)
    folder = run_folder(tmp_path / "out", "S-Adam", 1)
    write_run(folder, setting.experiment, run)
    names = {"config.yaml", "curve.csv", "history.csv", "run.json", "versions.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert "torch" in json.loads((folder / "versions.json").read_text())

    again = load_experiment(folder / "config.yaml")
    ((optimizer, _),), (seed,) = again.optimizers.items(), again.seeds
    repeated = perform(Setting(again), optimizer, seed)
    stored = read_record(folder)
    for name in ("train_loss", "test_loss", "gradients", "CRPS"):
        assert repeated.record[name] == stored[name]


def test_what_is_not_a_number_is_null_in_the_record(setting, tmp_path):
    run = perform(setting, "SGD", seed=0)
    run.record["test_loss"] = math.nan
    write_run(tmp_path / "run", setting.experiment, run)
    assert read_record(tmp_path / "run")["test_loss"] is None


def test_a_half_written_folder_counts_as_none(setting, tmp_path):
    (tmp_path / "run").mkdir()
    assert read_record(tmp_path / "run") is None
    failed = failed_run(setting.experiment, "SGD", 0, "out of memory")
    write_run(tmp_path / "run", setting.experiment, failed)
    assert read_record(tmp_path / "run")["error"] == "out of memory"


def elsewhere(tmp_path):
    """A folder outside of the results, with something in it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.txt").write_text("mine")
    return outside


@pytest.mark.parametrize("name", ["run", "run.part"])
def test_a_link_is_neither_followed_nor_emptied(setting, tmp_path, name):
    outside = elsewhere(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / name).symlink_to(outside, target_is_directory=True)
    run = failed_run(setting.experiment, "SGD", 0, "out of memory")
    with pytest.raises(ScottError, match="is a link to .* Remove the link"):
        write_run(tmp_path / "runs" / "run", setting.experiment, run)
    assert [path.name for path in outside.iterdir()] == ["precious.txt"]


@pytest.mark.parametrize("name", ["run", "run.part"])
def test_what_replaces_a_run_leaves_what_its_links_lead_to(setting, tmp_path, name):
    inside = elsewhere(tmp_path / ".")  # beside the run, so that the link is allowed
    folder = tmp_path / name
    folder.mkdir()
    (folder / "link").symlink_to(inside, target_is_directory=True)
    run = failed_run(setting.experiment, "SGD", 0, "out of memory")
    write_run(tmp_path / "run", setting.experiment, run)
    assert not (tmp_path / "run" / "link").exists()
    assert (inside / "precious.txt").read_text() == "mine"


@pytest.mark.parametrize("text", ["{}", '{"status": "done"}', '{"status": []}', "[]"])
def test_a_record_without_an_outcome_is_named(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(FileLayoutError, match="run.json"):
        read_record(tmp_path)


def test_the_backtest_is_gluonts_own(setting):
    run = perform(setting, "SGD", seed=0)
    series = setting.split.backtest
    ours = backtest(run.predictor, series, samples=20, seed=0)
    with isolated_rng(0, torch.device("cpu")):
        forecasts, truth = make_evaluation_predictions(
            series.dataset(), predictor=run.predictor, num_samples=20
        )
        metrics, _ = Evaluator(num_workers=0)(truth, forecasts)
    assert ours["CRPS"] == metrics["mean_wQuantileLoss"]
    assert ours["MASE"] == metrics["MASE"]


def test_the_backtest_forecasts_the_end_of_the_test_range(setting):
    ends = [
        start + len(target) * pd.Timedelta("1h")
        for start, target in zip(
            setting.split.backtest.starts, setting.split.backtest.targets
        )
    ]
    assert set(ends) == {pd.Timestamp("2024-01-01") + pd.Timedelta(300, "h")}
    assert ends[0] - pd.Timedelta("4h") >= setting.split.train_end


def test_windows_are_spread_evenly(windows: WindowIndex):
    numbers = spread(windows, 10)
    assert numbers[0] == 0
    assert numbers[-1] == len(windows) - 1
    gaps = numbers.diff()
    assert gaps.max() - gaps.min() <= 1
    assert len(spread(windows, None)) == len(spread(windows, 10**6)) == len(windows)


@pytest.mark.parametrize("tuning", [False, True])
def test_training_and_held_out_windows_do_not_meet(small_config, tuning):
    setting = Setting(load_experiment(small_config), tuning=tuning)
    split = setting.split

    def span(windows, first_step):
        timeline = windows.series.timeline
        _, rows = windows.rows(np.arange(len(windows)))
        return timeline.moments[rows.min() + first_step], timeline.moments[rows.max()]

    begin, _ = span(setting.held_out, 0)
    hour = pd.Timedelta("1h")
    _, last_start = span(setting.training, 0)
    last_trained = last_start + 3 * hour  # of a prediction range of four hours
    assert last_trained < begin
    if tuning:
        assert begin == split.tune_begin
        _, last = span(setting.held_out, 0)
        assert last + 3 * hour < split.train_end
    else:
        assert begin - 12 * hour == split.train_end  # its context is unseen, too


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.arguments", "{freq: D}"], "the data decides"),
        (["--model.arguments", "{context: padded}"], "whole contexts"),
        (["--model.arguments", "{scalng: true}"], "Did you mean 'scaling'"),
        (["--optimizers.S-Adam.betas", "[0.9, 1.5]"], "less than 1"),
        (["--tune.betas", "[1.5]"], "less than 1"),
        (["--seeds", "[-1]"], "seeds=-1"),
        (["--variance.sample", "1"], "variance.sample=1"),
        (["--variance.gradients", "0"], "variance.gradients=0"),
        (
            ["--optimizers.SGD.betas", "[0.9, 0.9]"],
            "optimizers 'adam' and 'adamw'",
        ),
        (["--optimizers.SGD.gamma", "2"], "gamma=2.0: expected less than 1"),
    ],
)
def test_wrong_arguments_are_found_before_training(small_config, options, message):
    with pytest.raises((ConfigError, TypeError, ValueError), match=message):
        Setting(load_experiment(small_config, options))


def test_the_betas_of_adam_are_used(small_config):
    experiment = load_experiment(
        small_config, ["--optimizers.S-Adam.betas", "[0.5, 0.75]"]
    )
    trainer = Setting(experiment).trainer("S-Adam", seed=0)
    optimizer = trainer._make_optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.75)
    assert optimizer.param_groups[0]["weight_decay"] == 1e-5
