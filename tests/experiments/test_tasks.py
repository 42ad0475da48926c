"""The runs of a benchmark: interleaved, and each in its own folder."""

from __future__ import annotations

import pytest

from pts_scott.errors import ConfigError
from pts_scott.experiments.bench import bench
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.tasks import plan


def test_runs_are_interleaved_and_optimizers_take_turns_to_be_first(
    small_config, tmp_path
):
    tasks = plan([load_experiment(small_config)], tmp_path)
    order = [(task.optimizer, task.seed) for task in tasks]
    assert order == [("SGD", 0), ("S-Adam", 0), ("S-Adam", 1), ("SGD", 1)]


def test_only_must_name_existing_optimizers(small_config, tmp_path):
    with pytest.raises(ConfigError, match="no optimizer 'S-Adm'. Did you mean 'S-Adam'"):
        bench([load_experiment(small_config)], tmp_path / "out", only=["S-Adm"])


def test_two_settings_with_the_same_name_raise(small_config, tmp_path):
    experiment = load_experiment(small_config)
    with pytest.raises(ConfigError, match="two configs have the setting 'small'"):
        bench([experiment, experiment], tmp_path / "out")
