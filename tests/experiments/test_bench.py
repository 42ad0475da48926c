"""The benchmark repeats no run, loses none, and continues after a failed run."""

from __future__ import annotations

import pytest
from helpers.experiments import (
    ignore,
    read_records,
    replace_in_config,
    replace_in_records,
)

from pts_scott.engine.compiled import CompiledEngine
from pts_scott.errors import ConfigError, DataError, ScottError
from pts_scott.experiments import bench as module
from pts_scott.experiments.bench import bench
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.folders import make_folders
from pts_scott.experiments.report.build import write_report


def test_every_run_is_made_once(small_config, tmp_path, monkeypatch):
    experiment = load_experiment(small_config)
    lines: list[str] = []
    outcome = bench([experiment], tmp_path / "out", say=lines.append)
    assert outcome.failed == ()
    first = read_records(tmp_path / "out")
    assert list(first) == ["S-Adam-seed0", "S-Adam-seed1", "SGD-seed0", "SGD-seed1"]
    assert "4 runs" in lines[0]
    assert "[1/4] small: SGD, seed 0: train" in lines[1]
    assert "left" in lines[1]
    assert "left" not in lines[4]

    monkeypatch.setattr(module, "perform", _must_not_run)
    again = bench([experiment], tmp_path / "out", say=lines.append)
    assert again.before == 4
    assert read_records(tmp_path / "out") == first


def _must_not_run(*_):
    raise AssertionError("a finished run was repeated")


def test_interrupted_benchmark_resumes(small_config, tmp_path, monkeypatch):
    experiment = load_experiment(small_config)
    made, perform = [], module.perform

    def interrupted(setting, optimizer, seed, *show):
        if len(made) == 2:
            raise SystemExit(1)  # as Lightning does on Ctrl-C
        made.append((optimizer, seed))
        return perform(setting, optimizer, seed, *show)

    monkeypatch.setattr(module, "perform", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench([experiment], tmp_path / "out")
    assert len(read_records(tmp_path / "out")) == 2

    again = []
    monkeypatch.setattr(module, "perform", lambda *a: again.append(a[1:3]) or perform(*a))
    outcome = bench([experiment], tmp_path / "out")
    assert outcome.before == 2
    assert made + again == [("SGD", 0), ("S-Adam", 0), ("S-Adam", 1), ("SGD", 1)]
    assert len(read_records(tmp_path / "out")) == 4


def test_failed_run_is_reported_and_does_not_stop_the_others(
    small_config, tmp_path, monkeypatch
):
    experiment, perform = load_experiment(small_config), module.perform

    def fragile(setting, optimizer, seed, *show):
        if (optimizer, seed) == ("S-Adam", 0):
            raise RuntimeError("out of memory")
        return perform(setting, optimizer, seed, *show)

    monkeypatch.setattr(module, "perform", fragile)
    lines: list[str] = []
    outcome = bench([experiment], tmp_path / "out", say=lines.append)
    assert len(outcome.failed) == 1
    assert "small: S-Adam, seed 0: RuntimeError: out of memory" in outcome.failed[0]
    assert any("FAILED" in line for line in lines)
    found = read_records(tmp_path / "out")
    assert [r["status"] for r in found.values()] == ["failed", *["finished"] * 3]

    monkeypatch.setattr(module, "perform", perform)  # a failed run is repeated
    outcome = bench([experiment], tmp_path / "out")
    assert (outcome.before, outcome.failed) == (3, ())
    assert read_records(tmp_path / "out")["S-Adam-seed0"]["status"] == "finished"


def test_number_of_workers_is_recorded(small_config, tmp_path):
    bench([load_experiment(small_config)], tmp_path / "out", only=["SGD"])
    assert {r["workers"] for r in read_records(tmp_path / "out").values()} == {1}


@pytest.mark.parametrize("place", ["small", "small/runs", "small/config.yaml"])
def test_link_out_of_the_results_raises_before_any_run(small_config, tmp_path, place):
    outside, link = tmp_path / "outside", tmp_path / "out" / place
    link.parent.mkdir(parents=True)
    if place.endswith("yaml"):
        outside.write_text("mine: 1")
    else:
        outside.mkdir()
    link.symlink_to(outside)
    with pytest.raises(ScottError, match="is a link to .*outside"):
        bench([load_experiment(small_config)], tmp_path / "out", say=ignore)
    if place.endswith("yaml"):
        assert outside.read_text() == "mine: 1"
    else:
        assert not list(outside.iterdir())


def test_folder_of_results_may_itself_be_a_link(small_config, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk", target_is_directory=True)
    make_folders([load_experiment(small_config)], tmp_path / "out")
    assert (tmp_path / "disk" / "small" / "config.yaml").exists()


def test_samplers_are_not_measured_without_an_anchor(small_config, tmp_path):
    experiment = load_experiment(small_config)
    del experiment.optimizers["S-Adam"]
    lines: list[str] = []
    outcome = bench([experiment], tmp_path / "out", samplers=True, say=lines.append)
    assert outcome.failed == ()
    assert any("no optimizer has an anchor" in line for line in lines)


def test_invalid_variance_optimizer_raises_before_any_run(small_config, tmp_path):
    experiment = load_experiment(small_config, ["--variance.optimizer", "SGD"])
    with pytest.raises(ConfigError, match="expected an optimizer with an anchor"):
        bench([experiment], tmp_path / "out", samplers=True)
    assert not read_records(tmp_path / "out")


def test_samplers_are_measured_again_for_another_config(small_config, tmp_path):
    folder = tmp_path / "out/small"
    bench([load_experiment(small_config)], tmp_path / "out", samplers=True)
    first = (folder / "variance.csv").read_text()
    bench([load_experiment(small_config)], tmp_path / "out", samplers=True)
    assert (folder / "variance.csv").read_text() == first
    more = load_experiment(small_config, ["--variance.points", "1"])
    bench([more], tmp_path / "out", samplers=True)
    assert len((folder / "variance.csv").read_text()) < len(first)


def test_mistakes_in_the_data_raise_before_any_run(small_config, tmp_path):
    experiment = load_experiment(small_config, ["--data.context_length", "500"])
    with pytest.raises(DataError, match="500"):
        bench([experiment], tmp_path / "out")
    assert read_records(tmp_path / "out") == {}


def test_error_names_an_unwritable_folder(small_config, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ScottError, match="cannot be written.*another folder with --out"):
        bench([load_experiment(small_config)], tmp_path / "file" / "out")


def test_variance_of_the_samplers_is_measured_once(small_config, tmp_path):
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
    alone, together = (
        read_records(tmp_path / "alone"),
        read_records(tmp_path / "together"),
    )
    assert alone.keys() == together.keys()
    for name, record in alone.items():
        assert together[name]["test_loss"] == record["test_loss"]


def test_failed_compilation_fails_the_run_instead_of_comparing_it(
    small_config, tmp_path, monkeypatch
):
    """Compiled steps are ten times as fast: time would compare only that."""
    monkeypatch.setattr(
        "pts_scott.engine.compilation.compile_graph", lambda graph, _: graph
    )
    monkeypatch.setattr("pts_scott.training.compile_policy.has_compiler", lambda: True)
    warm_up = CompiledEngine.warm_up

    def fail_with_anchor(self, *arguments):
        if self.uses_snapshot:
            raise RuntimeError("the compiler failed")
        warm_up(self, *arguments)

    monkeypatch.setattr(CompiledEngine, "warm_up", fail_with_anchor)
    compiled = replace_in_config(small_config, "compile: false", "compile: true")
    experiment = load_experiment(compiled)
    outcome = bench([experiment], tmp_path / "out", say=ignore)
    found = read_records(tmp_path / "out")
    assert {name: record["status"] for name, record in found.items()} == {
        "SGD-seed0": "finished",
        "SGD-seed1": "finished",
        "S-Adam-seed0": "failed",
        "S-Adam-seed1": "failed",
    }
    assert found["SGD-seed0"]["compiled"] is True
    assert "the compiler failed" in found["S-Adam-seed0"]["error"]
    assert "compile: false" in outcome.failed[0]


def test_report_mentions_mixed_compiled_and_eager_runs(small_config, tmp_path):
    experiment = load_experiment(small_config)
    bench([experiment], tmp_path / "out", say=ignore)
    text = write_report(tmp_path / "out").read_text()
    assert "in one engine" not in text, "this setting has a gradient budget"
    replace_in_records(tmp_path / "out", "SGD-*", '"compiled": false', '"compiled": true')
    text = write_report(tmp_path / "out").read_text()
    assert "Compiled and eager runs are mixed" in text
