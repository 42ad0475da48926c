"""The diagnosis of a config: its setting's windows, and the files it writes."""

from __future__ import annotations

import pandas as pd
import pytest

from pts_scott.errors import ArgumentError
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.diagnose import command, diagnose_setting
from pts_scott.experiments.setting import Setting


def test_setting_is_diagnosed_with_its_stratifier_and_batch_size(small_config):
    experiment = load_experiment(small_config)
    found = diagnose_setting(Setting(experiment), steps=20, windows=256, seed=0)
    assert found.batch_size == experiment.batch_size
    strata = set(found.table["strata"])
    assert any("hour" in label for label in strata)  # the config's
    assert list(found.table["step"].unique()) == [0, 2, 20]


def test_test_windows_are_not_used(small_config):
    experiment = load_experiment(small_config)
    count = len(Setting(experiment).training)
    found = diagnose_setting(Setting(experiment), steps=1, windows=10 * count, seed=0)
    assert {point.windows for point in found.points} == {count}


def test_config_without_adam_is_diagnosed(small_config):
    text = small_config.read_text()
    lines = [line for line in text.splitlines() if "S-Adam" not in line]
    small_config.write_text("\n".join(lines))
    found = diagnose_setting(
        Setting(load_experiment(small_config)), steps=5, windows=64, seed=0
    )
    assert found.advice


def test_table_and_figure_are_written(small_config, tmp_path):
    experiment = load_experiment(small_config)
    found, folder = command(experiment, 10, 128, 0, tmp_path / "out")
    assert folder == tmp_path / "out" / experiment.setting
    written = pd.read_csv(folder / "diagnosis.csv", keep_default_na=False)
    assert list(written.columns) == list(found.table.columns)
    assert list(written["strata"]) == list(found.table["strata"])
    assert (folder / "diagnosis.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_number_of_windows_is_refused(small_config):
    experiment = load_experiment(small_config)
    with pytest.raises(ArgumentError, match="windows=5"):
        diagnose_setting(Setting(experiment), steps=5, windows=5, seed=0)
