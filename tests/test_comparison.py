"""The results page: its store holds what was run, and its numbers are the store's."""

from __future__ import annotations

import importlib
from pathlib import Path

import pandas as pd
import pytest
from helpers.small_results import loss_curve, run_record, write_config, write_run

from pts_scott.backends import backend
from pts_scott.experiments.report.verdicts import compute_verdicts
from pts_scott.experiments.results import read_curves, read_runs

ROOT = Path(__file__).parents[1]


@pytest.fixture
def comparison(monkeypatch):
    """Import the script from its folder."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("comparison")


@pytest.fixture
def store(comparison, tmp_path):
    """Return an empty store."""
    return comparison.Store(tmp_path / "store")


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


def test_stored_runs_give_the_verdicts_of_the_benchmark(comparison, store, tmp_path):
    folder = write_benchmark(tmp_path / "bench")
    comparison.collect(store, [folder], write_tuned(tmp_path / "tune"))
    runs = read_runs(folder)
    expected = compute_verdicts(runs, read_curves(folder, runs))
    stored = compute_verdicts(*map(store.read, ("runs", "curves")))
    assert set(expected["verdict"]) == {"better"}
    pd.testing.assert_frame_equal(stored, expected, rtol=1e-4)
    config = store.folder / "configs" / "mlp-traffic-M1.yaml"
    assert config.read_text() == "seeds: [0, 1, 2]\n"


def test_setting_that_is_collected_again_replaces_the_stored_one(
    comparison, store, tmp_path
):
    tuned = write_tuned(tmp_path / "tune")
    for level in (1.0, 2.0):
        folder = write_benchmark(tmp_path / f"bench-{level}", level=level)
        comparison.collect(store, [folder], tuned)
    runs = store.read("runs")
    assert len(runs) == 6
    assert runs["train_loss"].min() == pytest.approx(1.6)
    assert len(store.read("trials")) == 1


@pytest.mark.parametrize("flaw", [{"seeds": (0, 1)}, {"status": "failed"}])
def test_incomplete_setting_is_left_out(comparison, store, tmp_path, capsys, flaw):
    folder = write_benchmark(tmp_path / "bench", **flaw)
    added = comparison.collect(store, [folder], write_tuned(tmp_path / "tune"))
    assert added == ["mlp-traffic-M1: tuned"]
    assert "mlp-traffic-M1 is not complete" in capsys.readouterr().err
    assert store.read("runs").empty


@pytest.mark.skipif(backend.NAME != "gluonts", reason="configs name GluonTS' models")
def test_pages_have_the_numbers_of_the_store(comparison):
    store = comparison.Store(ROOT / "docs" / "results")
    missing = [path.stem for path in comparison.missing(store)]
    for path, text in comparison.Pages(store, ROOT / "docs", missing).texts().items():
        hint = f"{path.name} differs: python benchmarks/comparison.py page"
        assert path.read_text(encoding="utf-8") == text, hint


# -- claims -----------------------------------------------------------------------------

NAMES = ("SGD", "SCSG", "SCott", "SCott, large anchors", "Adam", "S-Adam", "Adagrad")
NAMES += ("S-Adagrad", "auto Adam")


def results(verdicts, settings=3):
    """Return tables in which each pair has the same verdict everywhere."""
    names = [f"mlp-{n}-M1" for n in range(settings)]
    cells = {"model": "MLP", "batch_size": 1, "train_loss_mean": 1.0}
    cells |= {"steps": 10, "gradients": 20, "learning_rate": 0.1}
    summary = [{"setting": s, "optimizer": n, **cells} for s in names for n in NAMES]
    rows = [
        {
            **{"setting": setting, "challenger": pair[0], "baseline": pair[1]},
            **{"at": at, "loss": loss, "verdict": verdict},
            "difference": {"better": -1.0, "tied": 0.0, "worse": 1.0}[verdict],
        }
        for setting in names
        for (*pair, at, loss), verdict in verdicts.items()
    ]
    variance = pd.DataFrame({"setting": names, "sampler": "stratified", "step": 1})
    return pd.DataFrame(summary), pd.DataFrame(rows), variance.assign(relative=0.5)


def verdicts_of(challenger, baseline, steps, end):
    places = {"steps": steps, "gradients": "tied", "end": end}
    return {
        (challenger, baseline, at, loss): verdict
        for at, verdict in places.items()
        for loss in ("training", "test")
    }


@pytest.mark.parametrize(
    ("steps", "end", "words"),
    [
        ("better", "better", "Holds here"),
        ("better", "worse", "Holds per step, but not per second"),
        ("tied", "better", "Holds per second, but not per step"),
        ("tied", "tied", "Does not hold here"),
        ("worse", "worse", "Does not hold here"),
    ],
)
def test_words_on_a_claim_follow_from_the_counts(comparison, steps, end, words):
    claims = importlib.import_module("comparison_claims").Claims
    tables = results(verdicts_of("SCott", "SGD", steps, end))
    text = claims(*tables, {}, []).paragraphs()
    assert f"**SCott converges faster than SGD. {words}.**" in text
    assert f"**Strata of timestamps reduce the variance of a gradient. {'Holds'}" in text


@pytest.mark.parametrize(
    ("verdict", "missing", "outcome"),
    [
        ("better", [], "met"),
        ("tied", [], "missed"),
        ("worse", ["mlp-traffic-M1"], "missed"),
        ("better", ["mlp-traffic-M1"], "still open"),
    ],
)
def test_outcome_of_an_expectation_follows_from_the_counts(
    comparison, verdict, missing, outcome
):
    claims = importlib.import_module("comparison_claims").Claims
    settings = 16 if not missing else 5
    tables = results(verdicts_of("auto Adam", "Adam", "tied", verdict), settings)
    line = claims(*tables, {}, missing).expectations().splitlines()[3]
    assert line.endswith(f"| {outcome} |")


def curve(side, ends, seconds=10.0, compilation=0.0):
    """Return straight curves of two seeds, with the library's time on the x axis."""
    tables = []
    for seed, end in enumerate(ends):
        share = pd.Series([0.0, 0.25, 0.5, 0.75, 1.0])
        loss = 1.0 + (end - 1.0) * share
        table = {"train_loss": loss, "test_loss": loss, "step": 100 * share}
        table |= {"seconds": compilation + seconds * share}
        own = {"setting": "MLP/data", "side": side, "seed": seed}
        tables.append(pd.DataFrame(table).assign(**own, compile_seconds=compilation))
    return pd.concat(tables)


def test_compilation_counts_in_the_time_to_the_loss_of_the_library(comparison):
    summarise = importlib.import_module("equal_time_tables").summarise
    own = curve("ours", [-1.0, -1.0], compilation=2.0)  # at 0 after half of ten seconds
    curves = pd.concat([curve("GluonTS", [0.1, -0.1]), own])
    library, ours = summarise(curves, "GluonTS")
    # The goal is the mean of the last sixth of a line from 1 to 0: 1/12.
    assert library["test, factor"] == pytest.approx(12 / 11)
    assert ours["test, factor"] == pytest.approx(10 / (2 + 10 * 11 / 24))
    assert ours["test, compilation aside"] == pytest.approx(24 / 11)
    # At 8 of its 10 seconds it is at -0.6, and a sixth of ten seconds earlier at -4/15.
    assert ours["test loss"].startswith("-0.433")


def test_loss_that_is_not_reached_has_no_factor(comparison):
    summarise = importlib.import_module("equal_time_tables").summarise
    curves = pd.concat([curve("GluonTS", [0.0, 0.0]), curve("ours", [0.5, 0.5])])
    _, ours = summarise(curves, "GluonTS")
    assert ours["test, s"] == "not reached"
    assert pd.isna(ours["test, factor"])
