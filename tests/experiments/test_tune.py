"""Tuning: the same grids for all, only the tuning range, no trial repeated."""

from __future__ import annotations

import pandas as pd
import pytest

from pts_scott.errors import ConfigError, ScottError
from pts_scott.experiments import tune as module
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.run import perform
from pts_scott.experiments.setting import Setting
from pts_scott.experiments.tune import tune


def test_best_of_the_grid_is_written_as_a_config(small_config, tmp_path):
    experiment = load_experiment(small_config)
    lines: list[str] = []
    path = tune(experiment, tmp_path / "out", say=lines.append)
    best = load_experiment(path)
    trials = pd.read_csv(path.parent / "trials.csv")
    first = trials[trials["stage"] == 1]
    assert first.groupby("optimizer").size().to_dict() == {"S-Adam": 3, "SGD": 3}
    assert (trials["stage"] == 2).sum() == 2  # γ of S-Adam, at its best step size
    for name in ("SGD", "S-Adam"):
        complete = first[(first["optimizer"] == name) & (first["state"] == "complete")]
        lowest = complete.loc[complete["loss"].idxmin(), "learning_rate"]
        assert best.optimizers[name].learning_rate == lowest
    assert best.data == experiment.data
    assert "tuned on the last tenth" in path.read_text().lower()
    assert any("[3/3]" in line for line in lines)


def test_trial_is_a_run_measured_on_the_tuning_windows(small_config, tmp_path):
    options = ["--tune.learning_rate", "[0.01]", "--tune.gamma", "[]"]
    experiment = load_experiment(small_config, options)
    path = tune(experiment, tmp_path / "out", only=["SGD"])
    (loss,) = pd.read_csv(path.parent / "trials.csv")["loss"]
    run = perform(Setting(experiment, tuning=True), "SGD", seed=1000)
    assert loss == pytest.approx(run.record["test_loss"], rel=1e-12)
    other = perform(Setting(experiment), "SGD", seed=1000)
    assert loss != pytest.approx(other.record["test_loss"], rel=1e-3)


def test_loss_of_a_trial_is_the_mean_of_its_last_measurements(
    small_config, tmp_path, monkeypatch
):
    options = ["--tune.learning_rate", "[0.01]", "--tune.gamma", "[]"]
    options += ["--tune.evaluations", "4", "--tune.average", "3"]
    real, curves = module.perform, []

    def watched(*arguments, **kwargs):
        run = real(*arguments, **kwargs)
        curves.append(run.curve)
        return run

    monkeypatch.setattr(module, "perform", watched)
    path = tune(load_experiment(small_config, options), tmp_path / "out", only=["SGD"])
    (curve,) = curves
    (loss,) = pd.read_csv(path.parent / "trials.csv")["loss"]
    assert len(curve) == 5  # the first is before training
    assert loss == pytest.approx(curve["test_loss"].iloc[-3:].mean(), rel=1e-12)


def test_more_measurements_to_average_than_there_are_raise(small_config):
    with pytest.raises(ConfigError, match="the measurements of a trial"):
        load_experiment(small_config, ["--tune.average", "6", "--tune.evaluations", "5"])


def test_stored_trials_are_not_repeated(small_config, tmp_path, monkeypatch):
    experiment = load_experiment(small_config)
    first = tune(experiment, tmp_path / "out", only=["SGD"]).read_text()

    def must_not_run(*_):
        raise AssertionError("a finished trial was repeated")

    monkeypatch.setattr(module, "perform", must_not_run)
    assert tune(experiment, tmp_path / "out", only=["SGD"]).read_text() == first


def test_interrupted_search_resumes(small_config, tmp_path, monkeypatch):
    experiment, real, made = load_experiment(small_config), module.perform, []

    def interrupted(setting, optimizer, seed, watch, **kwargs):
        if len(made) == 2:
            raise SystemExit(1)  # as Lightning does on Ctrl-C
        made.append(setting.experiment.optimizers[optimizer].learning_rate)
        return real(setting, optimizer, seed, watch, **kwargs)

    monkeypatch.setattr(module, "perform", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune(experiment, tmp_path / "out", only=["SGD"])
    again = []
    monkeypatch.setattr(
        module,
        "perform",
        lambda s, o, *a, **k: (
            again.append(s.experiment.optimizers[o].learning_rate) or real(s, o, *a, **k)
        ),
    )
    tune(experiment, tmp_path / "out", only=["SGD"])
    assert sorted(made + again) == [1e-3, 1e-2, 1e-1]


def test_another_grid_raises_instead_of_mixing_trials(small_config, tmp_path):
    tune(load_experiment(small_config), tmp_path / "out", only=["SGD"])
    other = load_experiment(small_config, ["--tune.learning_rate", "[0.1, 0.2]"])
    with pytest.raises(ConfigError, match="another config or grid"):
        tune(other, tmp_path / "out", only=["SGD"])


def test_grid_on_which_every_trial_diverges_raises(small_config, tmp_path):
    options = ["--tune.learning_rate", "[1e7, 1e8]", "--gradient_budget", "20000"]
    with pytest.raises(ScottError, match="diverged with every value"):
        tune(load_experiment(small_config, options), tmp_path / "out", only=["SGD"])


def test_best_value_at_the_edge_of_the_grid_is_reported(small_config, tmp_path):
    lines: list[str] = []
    options = ["--tune.learning_rate", "[1e-6, 1e-5]"]
    experiment = load_experiment(small_config, options)
    tune(experiment, tmp_path / "out", only=["SGD"], say=lines.append)
    assert "SGD: the best step size 1e-05 is the largest of its grid" in lines


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError])
def test_failed_trial_is_repeated(small_config, tmp_path, monkeypatch, fault):
    experiment, real, made = load_experiment(small_config), module.perform, []

    def fragile(setting, optimizer, *args, **kwargs):
        made.append(setting.experiment.optimizers[optimizer].learning_rate)
        if len(made) == 2:
            raise fault("out of memory")
        return real(setting, optimizer, *args, **kwargs)

    monkeypatch.setattr(module, "perform", fragile)
    ended = ScottError if fault is RuntimeError else fault
    with pytest.raises(ended, match="out of memory"):
        tune(experiment, tmp_path / "out", only=["SGD"])
    path = tune(experiment, tmp_path / "out", only=["SGD"])
    assert len(made) == 4
    trials = pd.read_csv(path.parent / "trials.csv")
    assert sorted(trials["learning_rate"]) == [1e-3, 1e-2, 1e-1]


def test_already_tuned_optimizers_stay_tuned(small_config, tmp_path):
    experiment = load_experiment(small_config)
    first = load_experiment(tune(experiment, tmp_path / "out", only=["SGD"]))
    both = load_experiment(tune(experiment, tmp_path / "out", only=["S-Adam"]))
    assert both.optimizers["SGD"] == first.optimizers["SGD"]
    assert both.optimizers["SGD"] != experiment.optimizers["SGD"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--gradient_budget", "500"),
        ("--evaluation_windows", "10"),
        ("--optimizers.S-Adam.gamma", "0.3"),
    ],
)
def test_trials_of_another_config_raise(small_config, tmp_path, option, value):
    options = ["--tune.learning_rate", "[0.01]"]
    tune(load_experiment(small_config, options), tmp_path / "out", only=["S-Adam"])
    other = load_experiment(small_config, [*options, option, value])
    with pytest.raises(ConfigError, match="another config or grid"):
        tune(other, tmp_path / "out", only=["S-Adam"])


INF = float("inf")
CLIMB = [
    *("--tune.learning_rate", "[0.1, 1e-4, 0.01, 0.001]", "--tune.search", "climb"),
    *("--optimizers.SGD.learning_rate", "0.012"),
]


@pytest.mark.parametrize(
    ("losses", "tried", "best"),
    [
        ([3.0, 2.0, 2.5], [0.01, 0.001, 1e-4], 0.001),  # ends where it rises
        ([3.0, 2.0, 1.0], [0.01, 0.001, 1e-4], 1e-4),  # ends at the edge of the grid
        ([3.0, 3.0, 2.0], [0.01, 0.001, 0.1], 0.1),
        ([3.0, 4.0, 4.0], [0.01, 0.001, 0.1], 0.01),
        ([3.0, INF, INF], [0.01, 0.001, 0.1], 0.01),
        ([INF, INF, 2.0], [0.01, 0.001, 1e-4], 1e-4),  # not by divergence
    ],
)
def test_climb_tries_neighbours_in_the_direction_in_which_the_loss_falls(
    small_config, tmp_path, monkeypatch, losses, tried, best
):
    experiment, made, left = load_experiment(small_config, CLIMB), [], list(losses)

    def loss(trial, setting, optimizer, config):
        if optimizer != "SGD":
            return 0.0
        made.append(config.learning_rate)
        return left.pop(0)

    monkeypatch.setattr(module, "_mean_loss", loss)
    path = tune(experiment, tmp_path / "out", only=["SGD"])
    assert made == tried
    assert load_experiment(path).optimizers["SGD"].learning_rate == best
    assert tune(experiment, tmp_path / "out", only=["SGD"]) == path  # nothing is repeated
    again = tune(experiment, tmp_path / "out", only=["S-Adam"], say=(said := []).append)
    assert load_experiment(again).optimizers["SGD"].learning_rate == best
    assert "SGD: already tuned" in said
    trials = pd.read_csv(path.parent / "trials.csv")
    assert (trials["optimizer"] == "SGD").sum() == len(tried)
    assert (trials[trials["optimizer"] == "S-Adam"]["stage"] == 2).sum() == 2  # γ


def test_climb_that_only_diverges_raises(small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_mean_loss", lambda *_: INF)
    with pytest.raises(ScottError, match="diverged with every value"):
        tune(load_experiment(small_config, CLIMB), tmp_path / "out", only=["SGD"])


def test_interrupted_climb_resumes(small_config, tmp_path, monkeypatch):
    experiment, losses = load_experiment(small_config, CLIMB), {0.01: 3.0, 0.001: 2.0}
    made = []

    def loss(trial, setting, optimizer, config):
        made.append(config.learning_rate)
        if len(made) == 2:
            raise KeyboardInterrupt
        return losses.get(config.learning_rate, 4.0)

    monkeypatch.setattr(module, "_mean_loss", loss)
    with pytest.raises(KeyboardInterrupt):
        tune(experiment, tmp_path / "out", only=["SGD"])
    path = tune(experiment, tmp_path / "out", only=["SGD"])
    assert made == [0.01, 0.001, 0.001, 1e-4]
    assert load_experiment(path).optimizers["SGD"].learning_rate == 0.001


@pytest.mark.slow
def test_workers_find_the_same_best_values(small_config, tmp_path):
    options = ["--tune.learning_rate", "[1e-2, 1e-3]", "--tune.gamma", "[]"]
    experiment = load_experiment(small_config, options)
    alone = tune(experiment, tmp_path / "alone")
    together = tune(experiment, tmp_path / "together", workers=2)
    assert load_experiment(alone) == load_experiment(together)
