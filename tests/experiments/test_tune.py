"""Tuning: the same grids for all, the tuning range alone, nothing repeated."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from pts_scott.errors import ConfigError, ScottError
from pts_scott.experiments import tune as module
from pts_scott.experiments.config import LEARNING_RATES
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.folders import make_folders
from pts_scott.experiments.runs import perform
from pts_scott.experiments.setting import Setting
from pts_scott.experiments.tune import stages, tune


def test_the_best_of_the_grid_is_written_as_a_config(small_config, tmp_path):
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


def test_a_trial_is_a_run_measured_on_the_tuning_windows(small_config, tmp_path):
    options = ["--tune.learning_rate", "[0.01]", "--tune.gamma", "[]"]
    experiment = load_experiment(small_config, options)
    path = tune(experiment, tmp_path / "out", only=["SGD"])
    (loss,) = pd.read_csv(path.parent / "trials.csv")["loss"]
    run = perform(Setting(experiment, tuning=True), "SGD", seed=1000)
    assert loss == pytest.approx(run.record["test_loss"], rel=1e-12)
    other = perform(Setting(experiment), "SGD", seed=1000)
    assert loss != pytest.approx(other.record["test_loss"], rel=1e-3)


def test_what_is_in_the_storage_is_not_repeated(small_config, tmp_path, monkeypatch):
    experiment = load_experiment(small_config)
    first = tune(experiment, tmp_path / "out", only=["SGD"]).read_text()

    def must_not_run(*_):
        raise AssertionError("a finished trial was repeated")

    monkeypatch.setattr(module, "perform", must_not_run)
    assert tune(experiment, tmp_path / "out", only=["SGD"]).read_text() == first


def test_an_interrupted_search_goes_on_where_it_stopped(
    small_config, tmp_path, monkeypatch
):
    experiment, real, made = load_experiment(small_config), module.perform, []

    def interrupted(setting, optimizer, seed, watch, **kwargs):
        if len(made) == 2:
            raise SystemExit(1)  # Lightning's answer to Ctrl-C
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


def test_another_grid_does_not_mix_with_old_trials(small_config, tmp_path):
    tune(load_experiment(small_config), tmp_path / "out", only=["SGD"])
    other = load_experiment(small_config, ["--tune.learning_rate", "[0.1, 0.2]"])
    with pytest.raises(ConfigError, match="another config or grid"):
        tune(other, tmp_path / "out", only=["SGD"])


def test_a_grid_on_which_everything_diverges_is_an_error(small_config, tmp_path):
    options = ["--tune.learning_rate", "[1e7, 1e8]", "--gradient_budget", "20000"]
    with pytest.raises(ScottError, match="diverged with every value"):
        tune(load_experiment(small_config, options), tmp_path / "out", only=["SGD"])


def test_a_best_value_at_the_end_of_the_grid_is_mentioned(small_config, tmp_path):
    lines: list[str] = []
    options = ["--tune.learning_rate", "[1e-6, 1e-5]"]
    experiment = load_experiment(small_config, options)
    tune(experiment, tmp_path / "out", only=["SGD"], say=lines.append)
    assert "SGD: the best step size 1e-05 is the largest of its grid" in lines


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError])
def test_a_trial_that_failed_is_tried_again(small_config, tmp_path, monkeypatch, fault):
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


def test_what_was_tuned_before_stays_tuned(small_config, tmp_path):
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
def test_trials_of_other_budgets_are_not_mixed_in(small_config, tmp_path, option, value):
    options = ["--tune.learning_rate", "[0.01]"]
    tune(load_experiment(small_config, options), tmp_path / "out", only=["S-Adam"])
    other = load_experiment(small_config, [*options, option, value])
    with pytest.raises(ConfigError, match="another config or grid"):
        tune(other, tmp_path / "out", only=["S-Adam"])


@pytest.mark.parametrize(("search", "sizes"), [("grid", [60]), ("coordinate", [10, 6])])
def test_the_papers_grids_are_searched_for_methods_with_an_anchor(
    small_config, search, sizes
):
    tree = load_experiment(small_config, ["--tune.search", search])
    tree.tune.learning_rate = list(LEARNING_RATES)
    tree.tune.gamma = [0.1, 0.125, 0.15, 0.2, 0.4, 0.8]
    found = [math.prod(map(len, stage.values())) for stage in stages(tree, "S-Adam")]
    assert found == sizes
    assert [len(s["learning_rate"]) for s in stages(tree, "SGD")] == [10]


def test_betas_are_searched_if_a_grid_is_given(small_config):
    experiment = load_experiment(small_config, ["--tune.betas", "[0.9, 0.99, 0.999]"])
    assert stages(experiment, "S-Adam")[-1] == {
        "beta_1": [0.9, 0.99, 0.999],
        "beta_2": [0.9, 0.99, 0.999],
    }


@pytest.mark.slow
def test_workers_find_the_same(small_config, tmp_path):
    options = ["--tune.learning_rate", "[1e-2, 1e-3]", "--tune.gamma", "[]"]
    experiment = load_experiment(small_config, options)
    alone = tune(experiment, tmp_path / "alone")
    together = tune(experiment, tmp_path / "together", workers=2)
    assert load_experiment(alone) == load_experiment(together)


@pytest.mark.parametrize("name", ["a?b", "a%20b", "a#b", "a@b:c"])
def test_trials_stay_in_their_folder_whatever_its_name(small_config, tmp_path, name):
    experiment = load_experiment(small_config)
    experiment.optimizers.pop("S-Adam")
    experiment.tune.learning_rate = [0.01]
    tune(experiment, tmp_path / name, say=lambda line: None)
    assert (tmp_path / name / "small" / "trials.db").exists()
    assert {p.name for p in tmp_path.iterdir()} == {name, "small.yaml", "waves.txt"}


def test_a_storage_that_is_none_is_refused(small_config, tmp_path):
    experiment = load_experiment(small_config)
    make_folders([experiment], tmp_path / "out")
    (tmp_path / "out" / "small" / "trials.db").write_bytes(b"garbage" * 100)
    for storage in (None, "nothing", "foo://x", f"sqlite:///{tmp_path}/no/where.db"):
        with pytest.raises(ScottError, match="storage of trials cannot be opened"):
            tune(experiment, tmp_path / "out", storage=storage, say=lambda line: None)
