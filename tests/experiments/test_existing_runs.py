"""Runs on disk are added to, never mixed with those of another config or data."""

from __future__ import annotations

import json

import pytest
import yaml
from helpers.experiments import ignore, read_records, replace_in_records

from pts_scott.errors import ConfigError, FileLayoutError
from pts_scott.experiments.bench import bench
from pts_scott.experiments.config_files import load_experiment, read_config
from pts_scott.experiments.existing_runs import with_existing
from pts_scott.experiments.folders import make_folders


def test_runs_of_another_config_raise(small_config, tmp_path):
    bench([load_experiment(small_config)], tmp_path / "out", only=["SGD"])
    other = load_experiment(small_config, ["--optimizers.SGD.learning_rate", "0.5"])
    with pytest.raises(ConfigError, match=r"learning_rate is 0\.01 there and 0\.5 here"):
        bench([other], tmp_path / "out", only=["SGD"])


@pytest.mark.parametrize(
    ("option", "value"),
    [("--seeds", "[5]"), ("--only", "S-Adam")],
)
def test_other_seeds_and_optimizers_of_another_config_raise(
    small_config, tmp_path, option, value
):
    bench([load_experiment(small_config)], tmp_path / "out", only=["SGD"])
    options = ["--data.stride", "5", *([option, value] if option == "--seeds" else [])]
    only = ["SGD"] if option == "--seeds" else [value]
    with pytest.raises(ConfigError, match=r"data\.stride is \d+ there and 5 here"):
        bench([load_experiment(small_config, options)], tmp_path / "out", only=only)
    assert len(read_records(tmp_path / "out")) == 2


def test_more_seeds_add_runs_to_a_benchmark(small_config, tmp_path):
    bench([load_experiment(small_config)], tmp_path / "out", only=["SGD"])
    more = load_experiment(small_config, ["--seeds", "[0, 1, 2]"])
    outcome = bench([more], tmp_path / "out", only=["SGD"])
    assert outcome.before == 2
    assert len(read_records(tmp_path / "out")) == 3


def test_config_of_the_folder_keeps_earlier_optimizers_and_seeds(small_config, tmp_path):
    bench([load_experiment(small_config)], tmp_path / "out")
    more = load_experiment(small_config, ["--seeds", "[7]"])
    bench([more], tmp_path / "out", only=["SGD"])
    planned = load_experiment(tmp_path / "out" / "small" / "config.yaml")
    assert set(planned.optimizers) == {"SGD", "S-Adam"}
    assert planned.seeds == [0, 1, 7]


@pytest.mark.parametrize(
    "other", [{"values": 899}, {"data_digest": "of other values, as many"}]
)
def test_other_data_with_the_same_name_raise(other, small_config, tmp_path):
    experiment = load_experiment(small_config)
    bench([experiment], tmp_path / "out", only=["SGD"])
    (path, *_) = (tmp_path / "out").glob("*/runs/*/run.json")
    record = json.loads(path.read_text())
    assert record.keys() >= other.keys()
    path.write_text(json.dumps({**record, **other}))
    with pytest.raises(ConfigError, match="trained on other data"):
        bench([experiment], tmp_path / "out", only=["S-Adam"])


def test_error_names_a_broken_record(small_config, tmp_path):
    experiment = load_experiment(small_config)
    bench([experiment], tmp_path / "out", only=["SGD"])
    (tmp_path / "out/small/runs/SGD-seed0/run.json").write_text("{")
    with pytest.raises(FileLayoutError, match=r"run\.json cannot be read as JSON"):
        bench([experiment], tmp_path / "out", only=["SGD"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("seeds", 5), ("seeds", ["../x"]), ("optimizers", 5), ("optimizers", {})),
        *(("optimizers", {"a": {"b": 1}}), ("optimizers", {"a": 1})),
    ],
)
def test_error_names_a_broken_config_of_the_folder(small_config, tmp_path, key, value):
    experiment = load_experiment(small_config)
    make_folders([experiment], tmp_path)
    path = tmp_path / "small" / "config.yaml"
    path.write_text(yaml.safe_dump({**read_config(path), key: value}))
    with pytest.raises(ConfigError, match="config.yaml"):
        with_existing(experiment, tmp_path / "small")


def test_eager_runs_do_not_join_compiled_ones_on_disk(small_config, tmp_path):
    experiment = load_experiment(small_config)
    bench([experiment], tmp_path / "out", only=["SGD"], say=ignore)
    replace_in_records(tmp_path / "out", "*", '"compiled": false', '"compiled": true')
    outcome = bench([experiment], tmp_path / "out", say=ignore)
    assert len(outcome.failed) == 2
    assert "S-Adam ran eager, but SGD (seed 0) compiled" in outcome.failed[0]
