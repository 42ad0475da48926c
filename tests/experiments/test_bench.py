"""The benchmark repeats nothing, loses nothing, and is stopped by no failed run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pts_scott.errors import ConfigError, DataError, FileLayoutError, ScottError
from pts_scott.experiments import bench as module
from pts_scott.experiments.bench import bench, plan, with_those_on_disk
from pts_scott.experiments.config_files import load_experiment, read_config
from pts_scott.experiments.folders import make_folders
from pts_scott.experiments.report.build import write_report
from pts_scott.method.scott import Scott


def records(output: Path) -> dict[str, dict]:
    return {
        path.parent.name: json.loads(path.read_text())
        for path in sorted(output.glob("*/runs/*/run.json"))
    }


def test_runs_are_interleaved_and_each_optimizer_is_first_in_turn(small_config, tmp_path):
    tasks = plan([load_experiment(small_config)], tmp_path)
    order = [(task.optimizer, task.seed) for task in tasks]
    assert order == [("SGD", 0), ("S-Adam", 0), ("S-Adam", 1), ("SGD", 1)]


def test_all_runs_are_made_once(small_config, tmp_path, monkeypatch):
    experiment = load_experiment(small_config)
    lines: list[str] = []
    outcome = bench([experiment], tmp_path / "out", say=lines.append)
    assert outcome.failed == ()
    first = records(tmp_path / "out")
    assert list(first) == ["S-Adam-seed0", "S-Adam-seed1", "SGD-seed0", "SGD-seed1"]
    assert "4 runs" in lines[0]
    assert "[1/4] small: SGD, seed 0: train" in lines[1]
    assert "left" in lines[1]
    assert "left" not in lines[4]

    monkeypatch.setattr(module, "perform", _must_not_run)
    again = bench([experiment], tmp_path / "out", say=lines.append)
    assert again.before == 4
    assert records(tmp_path / "out") == first


def _must_not_run(*_):
    raise AssertionError("a finished run was repeated")


def test_an_interrupted_bench_goes_on_where_it_stopped(
    small_config, tmp_path, monkeypatch
):
    experiment = load_experiment(small_config)
    made, perform = [], module.perform

    def interrupted(setting, optimizer, seed, watch):
        if len(made) == 2:
            raise SystemExit(1)  # Lightning's answer to Ctrl-C
        made.append((optimizer, seed))
        return perform(setting, optimizer, seed, watch)

    monkeypatch.setattr(module, "perform", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench([experiment], tmp_path / "out")
    assert len(records(tmp_path / "out")) == 2

    again = []
    monkeypatch.setattr(module, "perform", lambda *a: again.append(a[1:3]) or perform(*a))
    outcome = bench([experiment], tmp_path / "out")
    assert outcome.before == 2
    assert made + again == [("SGD", 0), ("S-Adam", 0), ("S-Adam", 1), ("SGD", 1)]
    assert len(records(tmp_path / "out")) == 4


def test_a_failed_run_is_reported_and_does_not_stop_the_others(
    small_config, tmp_path, monkeypatch
):
    experiment, perform = load_experiment(small_config), module.perform

    def fragile(setting, optimizer, seed, watch):
        if (optimizer, seed) == ("S-Adam", 0):
            raise RuntimeError("out of memory")
        return perform(setting, optimizer, seed, watch)

    monkeypatch.setattr(module, "perform", fragile)
    lines: list[str] = []
    outcome = bench([experiment], tmp_path / "out", say=lines.append)
    assert len(outcome.failed) == 1
    assert "small: S-Adam, seed 0: RuntimeError: out of memory" in outcome.failed[0]
    assert any("FAILED" in line for line in lines)
    found = records(tmp_path / "out")
    assert [r["status"] for r in found.values()] == ["failed", *["finished"] * 3]

    monkeypatch.setattr(module, "perform", perform)  # and it is tried again
    outcome = bench([experiment], tmp_path / "out")
    assert (outcome.before, outcome.failed) == (3, ())
    assert records(tmp_path / "out")["S-Adam-seed0"]["status"] == "finished"


def test_results_of_another_config_are_not_mixed_in(small_config, tmp_path):
    bench([load_experiment(small_config)], tmp_path / "out", only=["SGD"])
    other = load_experiment(small_config, ["--optimizers.SGD.learning_rate", "0.5"])
    with pytest.raises(ConfigError, match=r"learning_rate is 0\.01 there and 0\.5 here"):
        bench([other], tmp_path / "out", only=["SGD"])


@pytest.mark.parametrize(
    ("option", "value"),
    [("--seeds", "[5]"), ("--only", "S-Adam")],
)
def test_neither_are_other_seeds_and_optimizers_of_another_config(
    small_config, tmp_path, option, value
):
    bench([load_experiment(small_config)], tmp_path / "out", only=["SGD"])
    options = ["--data.stride", "5", *([option, value] if option == "--seeds" else [])]
    only = ["SGD"] if option == "--seeds" else [value]
    with pytest.raises(ConfigError, match=r"data\.stride is \d+ there and 5 here"):
        bench([load_experiment(small_config, options)], tmp_path / "out", only=only)
    assert len(records(tmp_path / "out")) == 2


def test_more_seeds_add_runs_to_a_bench(small_config, tmp_path):
    bench([load_experiment(small_config)], tmp_path / "out", only=["SGD"])
    more = load_experiment(small_config, ["--seeds", "[0, 1, 2]"])
    outcome = bench([more], tmp_path / "out", only=["SGD"])
    assert outcome.before == 2
    assert len(records(tmp_path / "out")) == 3


def test_the_folders_config_keeps_what_was_planned_before(small_config, tmp_path):
    bench([load_experiment(small_config)], tmp_path / "out")
    more = load_experiment(small_config, ["--seeds", "[7]"])
    bench([more], tmp_path / "out", only=["SGD"])
    planned = load_experiment(tmp_path / "out" / "small" / "config.yaml")
    assert set(planned.optimizers) == {"SGD", "S-Adam"}
    assert planned.seeds == [0, 1, 7]


def test_other_data_of_the_same_name_are_refused(small_config, tmp_path):
    experiment = load_experiment(small_config)
    bench([experiment], tmp_path / "out", only=["SGD"])
    (path, *_) = (tmp_path / "out").glob("*/runs/*/run.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "values": record["values"] - 1}))
    with pytest.raises(ConfigError, match="trained on other data"):
        bench([experiment], tmp_path / "out", only=["S-Adam"])


def test_how_many_ran_at_once_is_recorded(small_config, tmp_path):
    bench([load_experiment(small_config)], tmp_path / "out", only=["SGD"])
    assert {r["workers"] for r in records(tmp_path / "out").values()} == {1}


def test_a_broken_record_is_named(small_config, tmp_path):
    experiment = load_experiment(small_config)
    bench([experiment], tmp_path / "out", only=["SGD"])
    (tmp_path / "out/small/runs/SGD-seed0/run.json").write_text("{")
    with pytest.raises(FileLayoutError, match=r"run\.json cannot be read as JSON"):
        bench([experiment], tmp_path / "out", only=["SGD"])


@pytest.mark.parametrize("place", ["small", "small/runs", "small/config.yaml"])
def test_a_link_out_of_the_results_is_refused_before_any_run(
    small_config, tmp_path, place
):
    outside, link = tmp_path / "outside", tmp_path / "out" / place
    link.parent.mkdir(parents=True)
    if place.endswith("yaml"):
        outside.write_text("mine: 1")
    else:
        outside.mkdir()
    link.symlink_to(outside)
    with pytest.raises(ScottError, match="is a link to .*outside"):
        bench([load_experiment(small_config)], tmp_path / "out", say=lambda line: None)
    if place.endswith("yaml"):
        assert outside.read_text() == "mine: 1"
    else:
        assert not list(outside.iterdir())


def test_a_folder_of_results_may_itself_be_a_link(small_config, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk", target_is_directory=True)
    make_folders([load_experiment(small_config)], tmp_path / "out")
    assert (tmp_path / "disk" / "small" / "config.yaml").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("seeds", 5), ("seeds", ["../x"]), ("optimizers", 5), ("optimizers", {})),
        *(("optimizers", {"a": {"b": 1}}), ("optimizers", {"a": 1})),
    ],
)
def test_a_broken_config_of_the_folder_is_named(small_config, tmp_path, key, value):
    experiment = load_experiment(small_config)
    make_folders([experiment], tmp_path)
    path = tmp_path / "small" / "config.yaml"
    path.write_text(yaml.safe_dump({**read_config(path), key: value}))
    with pytest.raises(ConfigError, match="config.yaml"):
        with_those_on_disk(experiment, tmp_path / "small")


def test_without_an_anchor_no_sampler_is_measured(small_config, tmp_path):
    experiment = load_experiment(small_config)
    del experiment.optimizers["S-Adam"]
    lines: list[str] = []
    outcome = bench([experiment], tmp_path / "out", samplers=True, say=lines.append)
    assert outcome.failed == ()
    assert any("no optimizer has an anchor" in line for line in lines)


def test_a_wrong_sampler_option_ends_it_before_any_run(small_config, tmp_path):
    experiment = load_experiment(small_config, ["--variance.optimizer", "SGD"])
    with pytest.raises(ConfigError, match="expected an optimizer with an anchor"):
        bench([experiment], tmp_path / "out", samplers=True)
    assert not records(tmp_path / "out")


def test_samplers_are_measured_again_for_another_config(small_config, tmp_path):
    folder = tmp_path / "out/small"
    bench([load_experiment(small_config)], tmp_path / "out", samplers=True)
    first = (folder / "variance.csv").read_text()
    bench([load_experiment(small_config)], tmp_path / "out", samplers=True)
    assert (folder / "variance.csv").read_text() == first
    more = load_experiment(small_config, ["--variance.points", "1"])
    bench([more], tmp_path / "out", samplers=True)
    assert len((folder / "variance.csv").read_text()) < len(first)


def test_only_names_optimizers_that_exist(small_config, tmp_path):
    with pytest.raises(ConfigError, match="no optimizer 'S-Adm'. Did you mean 'S-Adam'"):
        bench([load_experiment(small_config)], tmp_path / "out", only=["S-Adm"])


def test_two_settings_of_one_name_are_refused(small_config, tmp_path):
    experiment = load_experiment(small_config)
    with pytest.raises(ConfigError, match="two configs have the setting 'small'"):
        bench([experiment, experiment], tmp_path / "out")


def test_mistakes_in_the_data_end_it_before_any_run(small_config, tmp_path):
    experiment = load_experiment(small_config, ["--data.context_length", "500"])
    with pytest.raises(DataError, match="500"):
        bench([experiment], tmp_path / "out")
    assert records(tmp_path / "out") == {}


def test_a_folder_that_cannot_be_written_is_named(small_config, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ScottError, match="cannot be written.*another folder with --out"):
        bench([load_experiment(small_config)], tmp_path / "file" / "out")


def test_the_variance_of_the_samplers_is_measured_once(small_config, tmp_path):
    experiment = load_experiment(small_config)
    outcome = bench([experiment], tmp_path / "out", only=["SGD"], samplers=True)
    assert outcome.failed == ()
    path = tmp_path / "out" / "small" / "variance.csv"
    written = path.stat().st_mtime_ns
    bench([experiment], tmp_path / "out", only=["SGD"], samplers=True)
    assert path.stat().st_mtime_ns == written


@pytest.mark.slow
def test_workers_give_the_same_results(small_config, tmp_path):
    experiment = load_experiment(small_config)
    bench([experiment], tmp_path / "alone")
    bench([experiment], tmp_path / "together", workers=2)
    alone, together = records(tmp_path / "alone"), records(tmp_path / "together")
    assert alone.keys() == together.keys()
    for name, record in alone.items():
        assert together[name]["test_loss"] == record["test_loss"]


def compiled_config(small_config: Path) -> Path:
    text = small_config.read_text().replace("compile: false", "compile: true")
    small_config.write_text(text)
    return small_config


def test_a_run_that_was_not_compiled_is_not_compared_with_those_that_were(
    small_config, tmp_path, monkeypatch
):
    """Compiled steps are ten times as fast: a comparison by time would be of that."""
    monkeypatch.setattr("pts_scott.engine.gradients.BACKEND", "aot_eager")
    monkeypatch.setattr("pts_scott.training.trainer.has_compiler", lambda: True)
    warm_up = Scott.warm_up

    def fails_with_an_anchor(self, anchor_size):
        if self.settings.has_anchor:
            raise RuntimeError("the compiler has given up")
        warm_up(self, anchor_size)

    monkeypatch.setattr(Scott, "warm_up", fails_with_an_anchor)
    experiment = load_experiment(compiled_config(small_config))
    outcome = bench([experiment], tmp_path / "out", say=lambda _: None)
    found = records(tmp_path / "out")
    assert {name: record["status"] for name, record in found.items()} == {
        "SGD-seed0": "finished",
        "SGD-seed1": "finished",
        "S-Adam-seed0": "failed",
        "S-Adam-seed1": "failed",
    }
    assert found["SGD-seed0"]["compiled"] is True
    assert "the compiler has given up" in found["S-Adam-seed0"]["error"]
    assert "compile: false" in outcome.failed[0]


def test_eager_runs_do_not_join_compiled_ones_on_disk(
    small_config, tmp_path, monkeypatch
):
    experiment = load_experiment(small_config)
    bench([experiment], tmp_path / "out", only=["SGD"], say=lambda _: None)
    for path in (tmp_path / "out").glob("*/runs/*/run.json"):
        path.write_text(path.read_text().replace('"compiled": false', '"compiled": true'))
    outcome = bench([experiment], tmp_path / "out", say=lambda _: None)
    assert len(outcome.failed) == 2
    assert "S-Adam ran eager, but SGD (seed 0) compiled" in outcome.failed[0]


def test_a_report_of_mixed_runs_says_so(small_config, tmp_path):
    experiment = load_experiment(small_config)
    bench([experiment], tmp_path / "out", say=lambda _: None)
    text = write_report(tmp_path / "out").read_text()
    assert "in one engine" not in text, "this setting has a budget of gradients"
    for path in (tmp_path / "out").glob("*/runs/SGD-*/run.json"):
        path.write_text(path.read_text().replace('"compiled": false', '"compiled": true'))
    text = write_report(tmp_path / "out").read_text()
    assert "Compiled and eager runs are mixed" in text
