"""Studies: the paper's grids in stages, stored where they belong."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from helpers.experiments import ignore

from pts_scott.errors import ConfigError, ScottError
from pts_scott.experiments.config import LEARNING_RATES
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.folders import make_folders
from pts_scott.experiments.studies import (
    open_study,
    prepare_storage,
    sqlite_url,
    stages,
    trials_table,
    with_values,
)
from pts_scott.experiments.tune import tune


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


def test_an_optimizer_may_have_grids_of_its_own(small_config):
    experiment = load_experiment(small_config, ["--tune.search", "coordinate"])
    experiment.tune.own = {
        "S-Adam": {"gamma": [], "anchor_batch_size": [4, 16], "inner_steps": [50.0]}
    }
    first, anchors = stages(experiment, "S-Adam")
    assert first == {"learning_rate": experiment.tune.learning_rate}
    assert anchors == {"anchor_batch_size": [4, 16], "inner_steps": [50.0]}
    assert len(stages(experiment, "SGD")) == 1
    start = experiment.optimizers["S-Adam"]
    tried = with_values(start, {"anchor_batch_size": 16.0, "inner_steps": 50.0})
    assert (tried.anchor_batch_size, tried.inner_steps) == (16, 50)
    assert isinstance(tried.anchor_batch_size, int)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("{S-Adm: {gamma: [0.1]}}", "no such optimizer. Did you mean 'S-Adam'"),
        ("{S-Adam: {gama: [0.1]}}", "'gama', which is not tuned for it.*'gamma'"),
        ("{SGD: {inner_steps: [10]}}", "'inner_steps', which is not tuned for it"),
        ("{S-Adam: {inner_steps: [0]}}", "inner_steps=0: expected a whole number"),
    ],
)
def test_mistakes_in_own_grids_are_told(small_config, own, message):
    with pytest.raises(ConfigError, match=message):
        load_experiment(small_config, ["--tune.own", own])


def test_anchors_are_tuned_and_written(small_config, tmp_path):
    own = "{S-Adam: {gamma: [], anchor_batch_size: [2, 4]}}"
    options = ["--tune.own", own, "--tune.learning_rate", "[0.01]"]
    experiment = load_experiment(small_config, options)
    best = load_experiment(
        tune(experiment, tmp_path / "out", only=["S-Adam"], say=ignore)
    )
    assert best.optimizers["S-Adam"].anchor_batch_size in (2, 4)
    trials = pd.read_csv(tmp_path / "out" / "small" / "trials.csv")
    assert sorted(trials["anchor_batch_size"].dropna()) == [2, 4]


@pytest.mark.parametrize("name", ["a?b", "a%20b", "a#b", "a@b:c"])
def test_trials_are_stored_in_their_folder_for_any_folder_name(
    small_config, tmp_path, name
):
    experiment = load_experiment(small_config)
    experiment.optimizers.pop("S-Adam")
    experiment.tune.learning_rate = [0.01]
    tune(experiment, tmp_path / name, say=ignore)
    assert (tmp_path / name / "small" / "trials.db").exists()
    assert {p.name for p in tmp_path.iterdir()} == {name, "small.yaml", "waves.txt"}


def test_invalid_storage_raises(small_config, tmp_path):
    experiment = load_experiment(small_config)
    make_folders([experiment], tmp_path / "out")
    (tmp_path / "out" / "small" / "trials.db").write_bytes(b"garbage" * 100)
    for storage in (None, "nothing", "foo://x", f"sqlite:///{tmp_path}/no/where.db"):
        with pytest.raises(ScottError, match="storage of trials cannot be opened"):
            tune(experiment, tmp_path / "out", storage=storage, say=ignore)


def test_trials_without_an_outcome_are_not_in_the_table(small_config, tmp_path):
    import optuna

    experiment = load_experiment(small_config, ["--tune.learning_rate", "[0.01, 0.1]"])
    storage = sqlite_url(tmp_path / "trials.db")
    prepare_storage(storage)
    (stage,) = stages(experiment, "SGD")
    study = open_study(experiment, "SGD", 0, stage, experiment.optimizers["SGD"], storage)
    assert trials_table(experiment, ["SGD"], storage).empty

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_categorical("learning_rate", stage["learning_rate"])
        trial.report(math.inf, 0)
        if trial.number == 0:
            raise RuntimeError("out of memory")
        if trial.number == 1:
            raise optuna.TrialPruned
        return rate

    for _ in range(3):
        study.optimize(objective, n_trials=1, catch=(RuntimeError,))
    table = trials_table(experiment, ["SGD"], storage)
    assert list(table.columns) == [
        *("optimizer", "stage", "learning_rate", "state", "loss", "measurements")
    ]
    assert list(table["state"]) == ["pruned", "complete"]
    assert list(table["measurements"]) == [1, 1]
    assert table["loss"].iloc[0] == math.inf
    assert table["loss"].iloc[1] == table["learning_rate"].iloc[1]
