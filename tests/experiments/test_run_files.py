"""The folder of a run: complete or absent, reproducible, and never behind a link."""

from __future__ import annotations

import json
import math

import pytest

from pts_scott.errors import FileLayoutError, ScottError
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.run import failed_run, perform
from pts_scott.experiments.run_files import read_record, run_folder, write_run
from pts_scott.experiments.setting import Setting


def test_run_is_reproducible_from_its_folder(setting, tmp_path):
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


def test_nan_is_null_in_the_record(setting, tmp_path):
    run = perform(setting, "SGD", seed=0)
    run.record["test_loss"] = math.nan
    write_run(tmp_path / "run", setting.experiment, run)
    assert read_record(tmp_path / "run")["test_loss"] is None


def test_incomplete_folder_has_no_record(setting, tmp_path):
    (tmp_path / "run").mkdir()
    assert read_record(tmp_path / "run") is None
    failed = failed_run(setting.experiment, "SGD", 0, "out of memory")
    write_run(tmp_path / "run", setting.experiment, failed)
    assert read_record(tmp_path / "run")["error"] == "out of memory"


def make_outside_folder(tmp_path):
    """Create a folder outside of the results, with a file in it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.txt").write_text("mine")
    return outside


@pytest.mark.parametrize("name", ["run", "run.part"])
def test_links_are_neither_followed_nor_emptied(setting, tmp_path, name):
    outside = make_outside_folder(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / name).symlink_to(outside, target_is_directory=True)
    run = failed_run(setting.experiment, "SGD", 0, "out of memory")
    with pytest.raises(ScottError, match="is a link to .* Remove the link"):
        write_run(tmp_path / "runs" / "run", setting.experiment, run)
    assert [path.name for path in outside.iterdir()] == ["precious.txt"]


@pytest.mark.parametrize("name", ["run", "run.part"])
def test_replacing_a_run_keeps_the_targets_of_its_links(setting, tmp_path, name):
    inside = make_outside_folder(tmp_path)  # next to the run, where links may lead
    folder = tmp_path / name
    folder.mkdir()
    (folder / "link").symlink_to(inside, target_is_directory=True)
    run = failed_run(setting.experiment, "SGD", 0, "out of memory")
    write_run(tmp_path / "run", setting.experiment, run)
    assert not (tmp_path / "run" / "link").exists()
    assert (inside / "precious.txt").read_text() == "mine"


@pytest.mark.parametrize("text", ["{}", '{"status": "done"}', '{"status": []}', "[]"])
def test_error_names_a_record_without_a_status(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(FileLayoutError, match="run.json"):
        read_record(tmp_path)
