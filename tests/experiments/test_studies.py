"""Studies: the paper's grids in stages, stored where they belong."""

from __future__ import annotations

import math

import pytest
from helpers.experiments import ignore

from pts_scott.errors import ScottError
from pts_scott.experiments.config import LEARNING_RATES
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.folders import make_folders
from pts_scott.experiments.studies import (
    open_study,
    prepare_storage,
    sqlite_url,
    stages,
    trials_table,
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
