"""Variance of the samplers during a run: not timed, at equal cost, reproducible."""

from __future__ import annotations

import math
import time

import pandas as pd
import pytest
import yaml
from helpers.experiments import ignore

from pts_scott.diagnostics.variance import VarianceProbe
from pts_scott.errors import ConfigError, ScottWarning
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.run import perform
from pts_scott.experiments.sampler_variance import (
    measure_samplers,
    optimizer_to_train,
    write_samplers,
)
from pts_scott.experiments.setting import Setting


def measured(small_config, *options: str) -> pd.DataFrame:
    return measure_samplers(load_experiment(small_config, options), say=ignore)


def test_every_sampler_and_stratifier_is_measured_at_each_point(small_config):
    table = measured(small_config, "--variance.stratifiers", '["series()", "random(24)"]')
    points = table.groupby("step", sort=False)
    assert len(points) == 3  # start, middle and end
    first, *later = (part for _, part in points)
    # A control variate needs a snapshot, which does not exist at the start.
    assert set(first["sampler"]) == {"uniform", "stratified"}
    for part in later:
        assert (part["sampler"] == "uniform").sum() == 1
        for sampler in ("stratified", "scott", "scsg"):
            assert (part["sampler"] == sampler).sum() == 3
    assert set(table["strata"]) == {1, 3, 24}


def with_spread(small_config):
    tree = yaml.safe_load(small_config.read_text())
    for stratifier in ("series()", "learned(4)"):
        kind = {"method": "stratified", "optimizer": "sgd", "allocation": "spread"}
        tree["optimizers"][stratifier] = {**kind, "stratifier": stratifier}
    small_config.write_text(yaml.safe_dump(tree, sort_keys=False))
    return small_config


def test_spread_allocations_of_the_optimizers_are_measured(small_config):
    table = measured(with_spread(small_config), "--variance.sample", "512")
    assert table["relative"].notna().all()
    for _, part in table.groupby("step"):
        spread = part[part["sampler"] == "spread"]
        assert set(spread["stratifier"]) == {"series()", "learned(4)"}
        uniform = part[part["sampler"] == "uniform"]["variance"].item()
        assert spread["variance"].to_numpy() == pytest.approx(
            spread["relative"].to_numpy() * uniform
        )


def test_samplers_are_compared_at_the_cost_of_an_inner_step(small_config):
    # 2 M + B b / K with M = 4, B = 24, b = 1 and K = 20, rounded up.
    assert set(measured(small_config)["gradients"]) == {math.ceil(8 + 24 / 20)}
    assert set(measured(small_config, "--variance.gradients", "50")["gradients"]) == {50}


def test_strata_that_separate_hours_have_less_variance(small_config):
    options = ["--variance.stratifiers", '["random(24)"]', "--variance.sample", "512"]
    table = measured(small_config, *options)
    start = table[(table["step"] == 0) & (table["sampler"] == "stratified")]
    within = start.set_index("stratifier")["within"]
    hour = next(name for name in within.index if "hour" in name)
    assert within[hour] < 0.8 < within["random(24)"]


def test_measuring_does_not_change_the_run(small_config):
    experiment = load_experiment(small_config)
    setting = Setting(experiment)
    table = measure_samplers(experiment, setting, say=ignore)
    run = perform(setting, "S-Adam", seed=0)
    assert table["gradients_used"].max() == run.record["gradients"]
    assert table["step"].max() == run.record["steps"]


def test_same_seed_gives_the_same_table(small_config):
    first, again = measured(small_config), measured(small_config)
    pd.testing.assert_frame_equal(
        first.drop(columns="seconds"), again.drop(columns="seconds")
    )


def test_measuring_does_not_count_as_training_time(small_config, monkeypatch):
    measure = VarianceProbe.measure

    def slow(probe, *args, **kwargs):
        time.sleep(2)
        return measure(probe, *args, **kwargs)

    monkeypatch.setattr(VarianceProbe, "measure", slow)
    table = measured(small_config, "--variance.points", "2")
    # The run itself takes some tenths of a second, a little more on a busy machine.
    assert table["seconds"].max() < 2


def test_cost_of_an_anchor_is_shared_by_its_actual_inner_steps(small_config):
    early = ["--optimizers.S-Adam.gamma", "0.99", "--variance.gradients", "40"]
    table = measured(small_config, *early)
    scott = table[(table["sampler"] == "scott")]
    # M = (n − B b / K)/2 with the mean K of the run, which γ makes shorter than 20.
    assert (scott["batch_size"] < (40 - 24 / 20) / 2).all()


def test_measuring_stops_when_training_diverges(small_config):
    lines: list[str] = []
    options = ["--optimizers.S-Adam.learning_rate", "1e30"]
    experiment = load_experiment(small_config, options)
    with pytest.warns(ScottWarning) as seen:
        table = measure_samplers(experiment, say=lines.append)
    assert any("diverges" in str(warning.message) for warning in seen)
    assert "diverged" in lines[-2]
    assert set(table["step"]) >= {0}


def test_optimizer_must_have_an_anchor(small_config):
    assert optimizer_to_train(load_experiment(small_config)) == "S-Adam"
    chosen = load_experiment(small_config, ["--variance.optimizer", "SGD"])
    with pytest.raises(ConfigError, match="expected an optimizer with an anchor"):
        optimizer_to_train(chosen)


def test_table_and_figure_are_written(small_config, tmp_path):
    table = measured(small_config)
    write_samplers(table, load_experiment(small_config), tmp_path)
    written = pd.read_csv(tmp_path / "variance.csv")
    assert len(written) == len(table)
    assert (tmp_path / "variance.png").read_bytes().startswith(b"\x89PNG")
