"""The results page: its store holds what was run, and its numbers are the store's."""

from __future__ import annotations

import importlib
from pathlib import Path

import pandas as pd
import pytest
import yaml
from helpers.small_results import (
    loss_curve,
    markdown_rows,
    run_record,
    write_config,
    write_run,
)

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


AUTO = {
    f"auto {rule}": {"method": "auto", "rule": rule.lower()} for rule in ("SGD", "Adam")
}


def write_benchmark(
    folder, seeds=(0, 1, 2), level=1.0, status="finished", shares=None, rates=None
):
    """Write a setting in which every optimizer ends at its share of a level."""
    shares = {"SGD": 1.0, "SCott": 0.8} if shares is None else shares
    for seed in seeds:
        for name, share in shares.items():
            end = share * level + 0.01 * seed
            rate = {} if rates is None else {"learning_rate": rates[name]}
            record = run_record(
                name, seed, end, end + 0.2, status, **AUTO.get(name, {}), **rate
            )
            write_run(folder, record, loss_curve(end=end))
    write_config(folder, "mlp-traffic-M1", tuple(shares))
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
    assert config.read_text() == (folder / "mlp-traffic-M1" / "config.yaml").read_text()


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
    assert added == ["mlp-traffic-M1: trials"]
    assert "mlp-traffic-M1 is not complete" in capsys.readouterr().err
    assert store.read("runs").empty


def test_setting_in_two_folders_raises(comparison, store, tmp_path):
    folders = [write_benchmark(tmp_path / name) for name in ("one", "two")]
    with pytest.raises(SystemExit, match="mlp-traffic-M1 is in .* and in another"):
        comparison.collect(store, folders, tmp_path / "tune")


def test_config_beside_stored_runs_stays_theirs(comparison, store, tmp_path):
    tuned = write_tuned(tmp_path / "tune")
    comparison.collect(store, [write_benchmark(tmp_path / "bench")], tuned)
    config = store.folder / "configs" / "mlp-traffic-M1.yaml"
    before = config.read_text()
    (tuned / "mlp-traffic-M1" / "best.yaml").write_text("seeds: [7]\n")
    assert comparison.collect(store, [], tuned) == []
    assert config.read_text() == before


needs_gluonts = pytest.mark.skipif(
    backend.NAME != "gluonts", reason="configs name GluonTS' models"
)


@needs_gluonts
@pytest.mark.parametrize(
    ("change", "is_missing"),
    [
        ({}, False),
        ({"time_budget": 5.0}, True),
        ({"tune": {"search": "coordinate"}}, True),
        ({"optimizers": {"SGD": {"learning_rate": 0.05}}}, False),  # chosen by tuning
        ({"optimizers": {"SGD": {"weight_decay": 0.0}}}, True),
    ],
)
def test_setting_that_was_run_with_another_config_is_missing(
    comparison, store, change, is_missing
):
    path = ROOT / "configs" / "comparison" / "mlp-traffic-21x17544-M1.yaml"
    tree = yaml.safe_load(comparison.load_experiment(path).dump())
    for name, value in change.items():
        if isinstance(value, dict):
            for key, inner in value.items():
                nested = isinstance(inner, dict)
                tree[name][key] = {**tree[name][key], **inner} if nested else inner
        else:
            tree[name] = value
    configs = store.folder / "configs"
    configs.mkdir(parents=True)
    (configs / "mlp-traffic-21x17544-M1.yaml").write_text(
        yaml.safe_dump(tree, sort_keys=False)
    )
    store.write("runs", pd.DataFrame({"setting": ["mlp-traffic-21x17544-M1"]}), 6)
    assert ("mlp-traffic-21x17544-M1" in comparison.missing(store)) == is_missing


@needs_gluonts
def test_pages_have_the_numbers_of_the_store(comparison):
    store = comparison.Store(ROOT / "docs" / "results")
    missing = list(comparison.missing(store))
    pages = comparison.Pages(comparison.Results(store, missing), ROOT / "docs")
    for path, text in pages.texts().items():
        hint = f"{path.name} differs: python benchmarks/comparison.py page"
        assert path.read_text(encoding="utf-8") == text, hint


@needs_gluonts
def test_controls_have_either_step_size_where_tuning_chose_two(
    comparison, store, tmp_path
):
    configs = store.folder / "configs"
    configs.mkdir(parents=True)
    # Of the plain optimizer and auto, with SGD and with Adam.
    rates = {
        "mlp-traffic-21x17544-M1": (0.5, 0.5, 0.001, 0.05),
        "mlp-exchange_rate-M1": (0.5, 0.5, 0.001, 0.001),
        "n-beats-small-exchange_rate-M1": (0.1, 0.5, 0.001, 0.05),
    }
    names = ("SGD", "auto SGD", "Adam", "auto Adam")
    tuned = []
    for setting, values in rates.items():
        stem = setting.replace("n-beats-small", "nbeats")
        path = ROOT / "configs" / "comparison" / f"{stem}.yaml"
        tree = yaml.safe_load(comparison.load_experiment(path).dump())
        for name, rate in zip(names, values):
            tree["optimizers"][name]["learning_rate"] = rate
            tuned.append((setting, name, rate))
        (configs / f"{setting}.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    columns = ["setting", "optimizer", "learning_rate"]
    store.write("runs", pd.DataFrame(tuned, columns=columns), 6)
    one, both = map(
        comparison.load_experiment, comparison.write_controls(store, tmp_path / "one")
    )
    assert one.setting == "mlp-traffic-21x17544-M1"
    found = {n: (c.method, c.learning_rate) for n, c in one.optimizers.items()}
    assert found == {
        "Adam": ("plain", 0.001),
        "auto Adam, Adam's step size": ("auto", 0.001),
        "Adam, auto's step size": ("plain", 0.05),
        "auto Adam": ("auto", 0.05),
    }
    assert both.setting == "n-beats-small-exchange_rate-M1"
    assert len(both.optimizers) == 8
    assert both.optimizers["SGD, auto's step size"].learning_rate == 0.5
    # A control with Adam alone is not all that is needed where SGD has two, too.
    stored = [
        (setting.setting, name, config.learning_rate)
        for setting in (one, both)
        for name, config in one.optimizers.items()
    ]
    store.write("controls", pd.DataFrame(stored, columns=columns), 6)
    (left,) = comparison.write_controls(store, tmp_path / "two")
    assert left.stem == both.setting
    stored += [
        (both.setting, name, c.learning_rate) for name, c in both.optimizers.items()
    ]
    store.write("controls", pd.DataFrame(stored, columns=columns), 6)
    assert comparison.write_controls(store, tmp_path / "three") == []


def test_control_table_compares_at_equal_step_sizes(comparison, store, tmp_path):
    names = ("SGD", "auto SGD", "Adam", "auto Adam")
    benchmark = write_benchmark(
        tmp_path / "bench",
        shares=dict(zip(names, (1.0, 0.8, 1.0, 1.0))),
        rates=dict(zip(names, (0.1, 0.5, 0.1, 0.1))),
    )
    comparison.collect(store, [benchmark], tmp_path / "tune")
    folder = tmp_path / "controls"
    control = list(comparison.SWAPPED["SGD"])
    for name, end, rate in zip(control, (1.0, 2.0, 1.0, 1.0), (0.1, 0.1, 0.5, 0.5)):
        for seed in range(3):
            loss = end + 0.01 * seed
            record = run_record(name, seed, loss, loss, learning_rate=rate)
            write_run(folder, record, loss_curve(end=loss))
    write_config(folder, "mlp-traffic-M1", tuple(control))
    assert comparison.collect_controls(store, folder) == ["mlp-traffic-M1: control"]
    tables = importlib.import_module("optimizer_tables")
    rows = markdown_rows(tables.step_size_table(comparison.Results(store, [])))
    (found,) = [row for row in rows if row[0].startswith("mlp")]
    assert found[1::4] == ["SGD", "worse", "tied"]
    assert found[2::4] == ["0.1", "0.5"]
    # Better with its own step size, worse with SGD's, tied with its own for both; with
    # Adam, both have the same one.
    counts = {row[0]: row[1:] for row in rows if len(row) == 5}
    assert counts["SGD"] == ["1", "1 / 0 / 0", "0 / 0 / 1", "0 / 1 / 0"]
    assert counts["Adam"] == ["1", *3 * ["0 / 1 / 0"]]


def test_libraries_are_stored_setting_by_setting_once_all_sides_have_run(
    comparison, store, tmp_path, capsys
):
    def measure(level, settings):
        rows = [
            {"setting": setting, "side": side, "seed": seed, "test_loss": level}
            for setting, runs in settings.items()
            for side, seed in runs
        ]
        pd.DataFrame(rows).to_csv(tmp_path / "equal_time-gluonts.csv", index=False)
        return comparison.collect_libraries(store, tmp_path)

    complete = [(side, seed) for seed in (0, 1) for side in ("GluonTS", "auto")]
    measure(1.0, {"a": complete, "b": complete})
    added = measure(2.0, {"b": complete, "c": complete[:3], "d": complete[:1]})
    assert added == ["equal_time-gluonts: b"]
    assert "c is not complete" in capsys.readouterr().err
    stored = store.read("equal_time-gluonts")
    assert stored.groupby("setting")["test_loss"].agg(set).to_dict() == {
        "a": {1.0},
        "b": {2.0},
    }


# -- the length of runs -----------------------------------------------------------------


@pytest.fixture
def regime(comparison):
    """Import the module from the folder of the script."""
    return importlib.import_module("regime_tables")


def test_late_fall_is_that_of_the_best_plain_optimizer(regime):
    names = ("SGD", "Adam", "SCott")
    losses = {"SGD": 2.0, "Adam": 1.0, "SCott": 0.5}
    summary = pd.DataFrame({"setting": "a", "optimizer": names, "outcome": ""})
    ends = summary["optimizer"].map(losses)
    summary = summary.assign(train_loss_mean=ends, train_loss_std=0.1, steps=60)
    # From 5 to 2 in two thirds of the time, and by another 1 in the last third.
    curve = {"seconds": range(7), "train_loss": [5.0, 4.0, 3.0, 2.0, 2.0, 1.5, 1.0]}
    runs = [{"setting": "a", "optimizer": name, "seed": 0} for name in names]
    curves = pd.concat([pd.DataFrame(curve).assign(**run) for run in runs])
    (fall,) = regime.measure_fall(summary, curves, 1 / 6).to_dict("records")
    assert fall["optimizer"] == "Adam"
    assert fall["late"] == pytest.approx(1 / 4)
    assert "25\u00a0%" in regime.fall_sentence(pd.DataFrame([fall]))


def test_runs_with_few_steps_are_counted_unless_they_diverged(regime):
    steps = {"a": [100, 100, 79, 100, 30], "b": [10, 10, 10, 10, 9]}
    runs = pd.DataFrame(
        {"setting": name, "optimizer": "SGD", "steps": count, "status": "finished"}
        for name, counts in steps.items()
        for count in counts
    )
    runs.loc[4, "status"] = "diverged"
    sentence = regime.disturbed_sentence(runs)
    assert sentence.startswith("1 of 9 runs made less than 80\u00a0% of the steps")
    assert sentence.endswith(
        "the fewest 79\u00a0%, probably because something else used the core: `a` (1)."
    )
    assert regime.disturbed_sentence(runs.loc[5:]).startswith("No run")


# -- claims -----------------------------------------------------------------------------

DIFFERENCES = {"better": -1.0, "tied": 0.0, "worse": 1.0, "undecided": float("nan")}
NAMES = ("SGD", "SCSG", "SCott", "SCott, large anchors", "Adam", "S-Adam", "Adagrad")
NAMES += ("S-Adagrad", "auto Adam")


def results(verdicts, settings=3):
    """Return tables in which each pair has the same verdict everywhere."""
    names = [f"mlp-{n}-M1" for n in range(settings)]
    cells = {"model": "MLP", "batch_size": 1, "train_loss_mean": 1.0}
    cells |= {"steps": 10, "gradients": 20, "learning_rate": 0.1, "outcome": ""}
    cells |= {"train_loss_std": 0.1, "finished": 5, "diverged": 0, "failed": 0}
    summary = [{"setting": s, "optimizer": n, **cells} for s in names for n in NAMES]
    rows = [
        {
            **{"setting": setting, "challenger": pair[0], "baseline": pair[1]},
            **{"at": at, "loss": loss, "verdict": verdict},
            "difference": DIFFERENCES[verdict],
        }
        for setting in names
        for (*pair, at, loss), verdict in verdicts.items()
    ]
    variance = pd.DataFrame({"setting": names, "sampler": "stratified", "step": 1})
    return pd.DataFrame(summary), pd.DataFrame(rows), variance.assign(within=0.5)


def verdicts_of(challenger, baseline, steps, end):
    places = {"steps": steps, "gradients": "tied", "end": end}
    return {
        (challenger, baseline, at, loss): verdict
        for at, verdict in places.items()
        for loss in ("training", "test")
    }


def claims_on(*tables, equal_time=None, missing=()):
    claims = importlib.import_module("comparison_claims").Claims
    return claims(*tables, equal_time or {}, list(missing))


@pytest.mark.parametrize(
    ("steps", "end", "words"),
    [
        ("better", "better", "Holds here"),
        ("better", "worse", "Holds per step, but not per second"),
        ("tied", "better", "Holds per second, but not per step"),
        ("tied", "tied", "Does not hold here"),
        ("worse", "worse", "Does not hold here"),
        ("undecided", "undecided", "Not decided here"),
    ],
)
def test_words_on_a_claim_follow_from_the_counts(comparison, steps, end, words):
    tables = results(verdicts_of("SCott", "SGD", steps, end))
    text = claims_on(*tables).paragraphs()
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
    settings = 16 if not missing else 5
    tables = results(verdicts_of("auto Adam", "Adam", "tied", verdict), settings)
    line = claims_on(*tables, missing=missing).expectations().splitlines()[3]
    assert line.endswith(f"| {outcome} |")


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        (["better", "better", "worse"], "in most settings"),
        (["better", "worse", "worse"], "no, worse in most"),
        (["better", "tied", "worse"], "in some, worse in others"),
        (["better", "tied"], "in some, worse in none"),
        (["tied", "worse"], "no, worse in some"),
        (["tied", "undecided"], "no difference"),
    ],
)
def test_words_of_the_summary_follow_from_the_counts(comparison, verdicts, words):
    claims = importlib.import_module("comparison_claims")
    assert claims.answer(pd.Series(verdicts)) == words


def test_nothing_to_lose_leaves_the_claim_on_generalization_open(comparison):
    text = claims_on(*results(verdicts_of("SCott", "SGD", "tied", "tied"))).paragraphs()
    assert "not lost on the test range. Not decided here.** Of 0 comparisons" in text


@pytest.mark.parametrize(
    ("mean", "std", "outcome", "words"),
    [
        (0.5, 0.1, "", "Holds here"),
        (0.999, 0.1, "", "Does not hold here"),  # lower, but not distinguished
        (0.5, 0.1, "1 of 5 diverged", "Does not hold here"),
    ],
)
def test_families_are_compared_by_the_test_and_divergence_loses(
    comparison, mean, std, outcome, words
):
    summary, verdicts, variance = results(verdicts_of("SCott", "SGD", "tied", "tied"))
    own = summary["optimizer"].isin(["S-Adam", "S-Adagrad"])
    summary.loc[own, ["train_loss_mean", "train_loss_std", "outcome"]] = (
        mean,
        std,
        outcome,
    )
    text = claims_on(summary, verdicts, variance).paragraphs()
    assert f"the optimizers of SGD's family. {words}." in text


def test_means_of_the_seeds_that_survived_are_not_below(comparison):
    verdicts = verdicts_of("SCott, large anchors", "SGD", "worse", "worse")
    summary, rows, variance = results(verdicts, settings=10)
    rows["difference"] = -1.0  # of the one seed in five that finished
    line = claims_on(summary, rows, variance).expectations().splitlines()[2]
    assert "lower mean in 0 of 10" in line
    assert line.endswith("| missed |")


DATA = ("electricity-321x840", "traffic-21x17544")
ALL_FOUR = [
    f"{model}/{data}" for model in ("SimpleFeedForward", "DeepAR") for data in DATA
]


@pytest.mark.parametrize(
    ("factors", "outcome"),
    [
        ([5.0, 4.0, 3.0, 3.5], "met"),
        ([5.0, 4.0, 2.9, 3.5], "missed"),
        ([5.0, float("nan"), 4.0, 3.5], "missed"),  # not reached
        ([float("nan")], "missed"),
        ([5.0, 4.0], "still open"),
    ],
)
def test_outcome_on_the_libraries_follows_from_the_factors(comparison, factors, outcome):
    side = importlib.import_module("equal_time_tables").DEFAULTS
    rows = [
        {"setting": setting, "side": side}
        | {"test, factor": factor, "training, factor": 4.0}
        for setting, factor in zip(ALL_FOUR, factors)
    ]
    tables = results(verdicts_of("SCott", "SGD", "tied", "tied"))
    text = claims_on(*tables, equal_time={"GluonTS": rows}).expectations()
    assert text.splitlines()[5].endswith(f"| {outcome} |")


FEW = list(enumerate((1.0, 1.0, 13.0)))  # seconds of compilation by seed


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


def equal_time_rows(*curves):
    summarise = importlib.import_module("equal_time_tables").summarise
    return summarise(pd.concat(curves), "GluonTS")


def test_compilation_counts_in_the_time_to_the_loss_of_the_library(comparison):
    own = curve("ours", [-1.0, -1.0], compilation=2.0)  # at 0 after half of ten seconds
    library, ours = equal_time_rows(curve("GluonTS", [0.1, -0.1]), own)
    # The goal is the mean of the last sixth of a line from 1 to 0: 1/12.
    assert library["test, factor"] == pytest.approx(12 / 11)
    assert ours["test, factor"] == pytest.approx(10 / (2 + 10 * 11 / 24))
    assert ours["test, compilation aside"] == pytest.approx(24 / 11)
    # At 8 of its 10 seconds it is at -0.6, and a sixth of these earlier at -1/3.
    assert ours["test loss"].startswith("-0.467")
    assert ours["steps"] == pytest.approx(80)


def test_factor_without_compilation_is_in_parentheses(comparison):
    rows = equal_time_rows(
        curve("GluonTS", [0.1, -0.1]), curve("ours", [-1.0, -1.0], compilation=2.0)
    )
    title, library, ours = [
        line
        for line in importlib.import_module("equal_time_tables").render(rows).split("\n")
        if line.startswith(("**", "| GluonTS", "| ours"))
    ]
    assert title == "**MLP/data**, 10 s, 2 seeds"
    assert library.endswith("| 9.2 s, 1.1 × |")
    assert ours.endswith("| 6.6 s, 1.5 × (2.2 ×) |")


def test_one_slow_compilation_does_not_hide_the_other_seeds(comparison):
    parts = [curve("ours", [-1.0], compilation=c).assign(seed=k) for k, c in FEW]
    _, ours = equal_time_rows(curve("GluonTS", [0.0, 0.0, 0.0]), *parts)
    assert ours["compilation, s"] == pytest.approx(5.0)
    assert ours["test, factor"] == pytest.approx(10 / (5 + 10 * 11 / 24))


def test_loss_that_is_not_reached_has_no_factor(comparison):
    _, ours = equal_time_rows(curve("GluonTS", [0.0, 0.0]), curve("ours", [0.5, 0.5]))
    assert ours["test, s"] == "not reached"
    assert pd.isna(ours["test, factor"])


def test_loss_that_diverges_afterwards_is_not_reached(comparison):
    own = curve("ours", [-1.0, -1.0])
    own.loc[own["seconds"] > 6, "test_loss"] = float("nan")
    _, ours = equal_time_rows(curve("GluonTS", [0.0, 0.0]), own)
    assert ours["test, s"] == "not reached"


def test_fits_with_different_time_limits_are_not_averaged(comparison):
    table = importlib.import_module("autogluon_tables").summarise_fits
    fit = {
        "setting": "MLP/data",
        "side": "AutoGluon",
        "fit": 1.0,
        "steps": 1,
        "MASE": 1.0,
    }
    fits = [{**fit, "seconds": s, "WQL": s / 60} for s in (60, 60, 600, 600)]
    found = table(pd.DataFrame(fits))
    assert [(row["limit, s"], row["seeds"]) for row in found] == [(60, 2), (600, 2)]
