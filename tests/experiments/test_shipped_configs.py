"""Configs that come with the package are found by name, from any folder."""

from __future__ import annotations

import pytest

from pts_scott.backends import backend
from pts_scott.cli import main
from pts_scott.errors import ConfigError
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.shipped_configs import find_config, shipped_configs

#: Beginnings of the configs whose models the installed library does not have.
OTHERS = {
    "gluonts": ("library/pts-",),
    "pytorchts": (
        *("library/deepar", "library/patchtst"),
        *("comparison/deepar", "comparison/patchtst"),
    ),
}[backend.NAME]


@pytest.mark.parametrize("name", shipped_configs())
def test_every_shipped_config_is_found_by_name_and_read(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name.startswith(OTHERS):
        with pytest.raises(ConfigError, match="but this environment has"):
            load_experiment(name)
        return
    assert load_experiment(name) == load_experiment(shipped_configs()[name])


@pytest.mark.parametrize("form", ["configs/{}.yaml", "{}.yaml"])
def test_paths_in_a_clone_name_shipped_configs_elsewhere(form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = find_config(form.format("small-cpu/var-synthetic"))
    assert found == shipped_configs()["small-cpu/var-synthetic"]


def test_own_file_wins_over_a_shipped_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "small-cpu" / "var-synthetic"
    own.parent.mkdir()
    own.write_text("")
    assert find_config("small-cpu/var-synthetic").resolve() == own


def test_unknown_name_is_told_with_the_nearest_one():
    with pytest.raises(ConfigError, match="Did you mean 'small-cpu/var-synthetic'"):
        find_config("small-cpu/var-syntetic")
    with pytest.raises(ConfigError, match="pts-scott configs"):
        find_config("qqqqqqqqqqqqqqqq")


def test_command_lists_them(capsys):
    assert main(["configs"]) == 0
    assert "paper/nbeats-traffic" in capsys.readouterr().out
    assert main(["configs", "extra"]) == 1
