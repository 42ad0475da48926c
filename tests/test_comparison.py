"""The results page: its store holds what was run, and its numbers are the store's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pandas as pd
import pytest
from helpers.small_results import loss_curve, run_record, write_config, write_run

from pts_scott.backends import backend
from pts_scott.experiments.report.verdicts import compute_verdicts
from pts_scott.experiments.results import read_curves, read_runs

ROOT = Path(__file__).parents[1]


@pytest.fixture
def comparison(monkeypatch, tmp_path):
    """Load the script, with an empty store."""
    path = ROOT / "benchmarks" / "comparison.py"
    spec = importlib.util.spec_from_file_location("comparison", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "comparison", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "STORE", tmp_path / "store")
    return module


def write_benchmark(folder, seeds=(0, 1, 2), level=1.0, status="finished"):
    for seed in seeds:
        for name, end in (("SGD", level), ("SCott", 0.8 * level)):
            end += 0.01 * seed
            record = run_record(name, seed, end, end + 0.2, status)
            write_run(folder, record, loss_curve(end=end))
    write_config(folder, "mlp-traffic-M1", ("SGD", "SCott"))
    columns = ("seconds", "strata", "variance", "standard_error")
    variance = {name: [1.0] for name in columns} | {"sampler": "uniform"}
    variance = pd.DataFrame({**variance, "stratifier": None})
    variance.to_csv(folder / "mlp-traffic-M1" / "variance.csv", index=False)
    return folder


def write_tuned(folder):
    setting = folder / "mlp-traffic-M1"
    setting.mkdir(parents=True)
    (setting / "best.yaml").write_text("seeds: [0, 1, 2]\n")
    trials = {"optimizer": ["SGD"], "stage": [1], "learning_rate": [0.1], "loss": [1.0]}
    pd.DataFrame(trials).to_csv(setting / "trials.csv", index=False)
    return folder


def test_stored_runs_give_the_verdicts_of_the_benchmark(comparison, tmp_path):
    folder = write_benchmark(tmp_path / "bench")
    comparison.collect([folder], write_tuned(tmp_path / "tune"))
    runs = read_runs(folder)
    expected = compute_verdicts(runs, read_curves(folder, runs))
    stored = compute_verdicts(*map(comparison.read_table, ("runs", "curves")))
    assert set(expected["verdict"]) == {"better"}
    pd.testing.assert_frame_equal(stored, expected, rtol=1e-4)
    config = comparison.STORE / "configs" / "mlp-traffic-M1.yaml"
    assert config.read_text() == "seeds: [0, 1, 2]\n"


def test_setting_that_is_collected_again_replaces_the_stored_one(comparison, tmp_path):
    tuned = write_tuned(tmp_path / "tune")
    for level in (1.0, 2.0):
        folder = write_benchmark(tmp_path / f"bench-{level}", level=level)
        comparison.collect([folder], tuned)
    runs = comparison.read_table("runs")
    assert len(runs) == 6
    assert runs["train_loss"].min() == pytest.approx(1.6)
    assert len(comparison.read_table("trials")) == 1


@pytest.mark.parametrize("flaw", [{"seeds": (0, 1)}, {"status": "failed"}])
def test_incomplete_setting_is_left_out(comparison, tmp_path, capsys, flaw):
    folder = write_benchmark(tmp_path / "bench", **flaw)
    added = comparison.collect([folder], write_tuned(tmp_path / "tune"))
    assert added == ["mlp-traffic-M1: tuned"]
    assert "mlp-traffic-M1 is not complete" in capsys.readouterr().err
    assert comparison.read_table("runs").empty


@pytest.mark.skipif(backend.NAME != "gluonts", reason="configs name GluonTS' models")
def test_page_has_the_numbers_of_the_store(comparison, monkeypatch):
    monkeypatch.setattr(comparison, "STORE", ROOT / "docs" / "results")
    for path, text in comparison.Pages().texts().items():
        hint = f"{path.name} differs: python benchmarks/comparison.py page"
        assert path.read_text(encoding="utf-8") == text, hint
