"""The report of a benchmark: nothing is left out, and only what is best is called so."""

from __future__ import annotations

import json
import math
import re
from html import unescape

import numpy as np
import pandas as pd
import pytest
import yaml

from pts_scott.errors import ArgumentError, FileLayoutError
from pts_scott.experiments import figures
from pts_scott.experiments.report import (
    backtest_markdown,
    read_curves,
    read_runs,
    summary,
    table_markdown,
    verdict_sentences,
    verdicts,
    write_report,
)

NAMES = tuple(figures.OPTIMIZERS)
SEEDS = (0, 1, 2, 3, 4)
VERSIONS = {"python": "3.11.9", "torch": "2.13.0"}


def record(optimizer="SGD", seed=0, train=1.0, test=2.0, status="finished", **changes):
    """What ``run.json`` holds."""
    finished = status == "finished"
    run = {
        "setting": "mlp-traffic-M1",
        "model": "MLP",
        "dataset": "traffic",
        "loss": "NLL",
        "batch_size": 1,
        "optimizer": optimizer,
        "method": "plain",
        "learning_rate": 0.005,
        "gamma": None,
        "seed": seed,
        "status": status,
        "error": "",
        "train_loss": train if finished else None,
        "test_loss": test if finished else None,
        "steps": 1000 + seed,
        "gradients": 2000,
        "anchors": 0,
        "seconds": 30.0,
        "compile_seconds": 4.0,
        "stratify_seconds": 0.5,
        "evaluation_seconds": 2.0,
        **dict.fromkeys(("CRPS", "MASE", "sMAPE", "ND", "NRMSE"), test),
        "windows_train": 5000,
        "windows_test": 1000,
        "evaluated_train": 4096,
        "evaluated_test": 512,
        "time_budget": 30.0,
    }
    return {**run, **changes}


def curve(start=3.0, end=1.0, points=21, scale=1.0):
    share = np.linspace(0, 1, points)
    loss = end + (start - end) * np.exp(-5 * share)
    return pd.DataFrame(
        {
            "step": (1000 * scale * share).astype(int),
            "gradients": (2000 * share).astype(int),
            "seconds": 30 * share,
            "train_loss": loss,
            "test_loss": loss + 0.2,
        }
    )


def write_run(folder, run, points=None, versions=VERSIONS):
    """One run's folder, as the benchmark writes it."""
    name = re.sub(r"[^\w.+-]+", "-", run["optimizer"])
    path = folder / run["setting"] / "runs" / f"{name}-seed{run['seed']}"
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps(run))
    (path / "versions.json").write_text(json.dumps(versions))
    if points is not None:
        points.to_csv(path / "curve.csv", index=False)
    return path


def write_config(folder, setting, optimizers=NAMES, seeds=SEEDS, **more):
    (folder / setting).mkdir(parents=True, exist_ok=True)
    config = {"optimizers": {n: {} for n in optimizers}, "seeds": list(seeds), **more}
    (folder / setting / "config.yaml").write_text(yaml.safe_dump(config))


def write_results(folder):
    """Three settings with diverged, failed and missing runs, and awkward names."""
    generator = np.random.default_rng(0)
    settings = (
        ("mlp-traffic-M1", "MLP", "NLL", "traffic", 1),
        ("mlp-a<b>&c-M1", "MLP", "NLL", "a<b>&c", 1),
        ("nbeats-traffic-M32", "N-BEATS", "MAPE", "traffic", 32),
    )
    for setting, model, loss, dataset, batch_size in settings:
        keys = {"setting": setting, "model": model, "loss": loss, "dataset": dataset}
        keys["batch_size"] = batch_size
        note = "resolved <config> & more"
        write_config(folder, setting, note=note, curve_windows=1024)
        for number, optimizer in enumerate(NAMES):
            for seed in SEEDS:
                if (setting, optimizer, seed) == ("nbeats-traffic-M32", "SCSG", 4):
                    continue  # missing
                end = 1 + number / 10 + 0.05 * generator.standard_normal()
                end -= 4 * (loss == "NLL")
                points, run = curve(end + 4, end), {"train": end, "test": end + 0.2}
                if (dataset, optimizer) == ("a<b>&c", "SGD") and seed < 2:
                    run["status"] = "diverged"
                    points.loc[6:, ["train_loss", "test_loss"]] = [1e7, np.nan]
                if (dataset, optimizer) == ("a<b>&c", "S-Adagrad") and seed == 3:
                    run.update(status="failed", error="out of <memory> & luck")
                    points = pd.DataFrame(columns=["step", "gradients", "seconds"])
                if setting == "mlp-traffic-M1" and optimizer == "SGD":
                    points.loc[1:3, "train_loss"] = 1e5
                write_run(folder, record(optimizer, seed, **run, **keys), points)
    rows = [
        {
            "seconds": 5.0 * point,
            "gradients": 100 * point,
            "step": 50 * point,
            "sampler": sampler,
            "stratifier": stratifier,
            "strata": strata,
            "variance": size * math.exp(-point / 3),
            "standard_error": 0.1 * size * math.exp(-point / 3),
            "relative": size,
            "note": "too <small>" if strata == 42 else None,
        }
        for point in range(7)
        for sampler, stratifier, strata, size in (
            ("uniform", None, 1, 1.0),
            ("stratified", "calendar('weekday', 'season')", 49, 0.7),
            ("stratified", "series() * calendar('weekend')", 42, 0.5),
            ("control variate", "calendar('weekday', 'season')", 49, 0.05),
        )
    ]
    pd.DataFrame(rows).to_csv(folder / "mlp-traffic-M1" / "variance.csv", index=False)
    return folder


def frame(*records):
    """Runs as ``read_runs`` gives them, without files."""
    runs = pd.DataFrame(list(records))
    return runs.assign(gamma=math.nan).astype({"train_loss": float, "test_loss": float})


def seeds(optimizer, losses, **changes):
    return [record(optimizer, n, x, x + 1, **changes) for n, x in enumerate(losses)]


def rows_of(markdown):
    """The rows of a Markdown table as lists of cells."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write_results(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def page(results):
    return write_report(results).read_text(encoding="utf-8")


# -- reading ---------------------------------------------------------------------------


def test_every_run_is_read_once_and_in_order(results):
    runs = read_runs(results)
    assert len(runs) == 3 * 10 * 5 - 1
    assert not runs.duplicated(["setting", "optimizer", "seed"]).any()
    one = runs[runs["setting"] == "mlp-traffic-M1"]
    assert list(dict.fromkeys(one["optimizer"])) == list(NAMES)
    assert list(one["seed"][:5]) == [0, 1, 2, 3, 4]
    assert runs["status"].value_counts().to_dict() == {
        "finished": 146,
        "diverged": 2,
        "failed": 1,
    }
    assert runs.loc[runs["status"] != "finished", "train_loss"].isna().all()


def test_curves_know_their_run(results):
    curves = read_curves(results)
    assert list(curves.columns[:4]) == ["setting", "optimizer", "seed", "status"]
    assert len(curves) == 148 * 21  # the failed run has none
    run = curves[
        (curves["setting"] == "mlp-traffic-M1") & (curves["optimizer"] == "Adam")
    ]
    assert sorted(run["seed"].unique()) == list(SEEDS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"setting": "a", ', "cannot be read as JSON"),
        ("[1, 2]", "expected a dict"),
        (json.dumps({**record(), "dataset": None}), "no dataset"),
        (json.dumps(record(status="done")), "'done'; expected finished"),
        (json.dumps(record(train="low")), "train_loss is no number: 'low'"),
    ],
)
def test_an_unreadable_run_is_named(tmp_path, text, words):
    path = write_run(tmp_path, record()) / "run.json"
    path.write_text(text)
    with pytest.raises(FileLayoutError, match=re.escape(words)) as caught:
        read_runs(tmp_path)
    assert str(path) in str(caught.value)


def test_an_unreadable_curve_is_named(tmp_path):
    path = write_run(tmp_path, record(), curve().drop(columns="seconds")) / "curve.csv"
    with pytest.raises(FileLayoutError, match="there is no column seconds") as caught:
        read_curves(tmp_path)
    assert str(path) in str(caught.value)
    path.write_text("")
    with pytest.raises(FileLayoutError, match="cannot be read as CSV"):
        read_curves(tmp_path)


def test_a_run_that_is_being_written_is_not_read(tmp_path):
    path = write_run(tmp_path, record("SGD", 1), curve())
    write_run(tmp_path, record("SGD", 2), curve())
    path.rename(path.with_name(path.name + ".part"))
    assert list(read_runs(tmp_path)["seed"]) == [2]


def test_a_failed_run_without_losses_belongs_to_its_setting(tmp_path):
    write_run(tmp_path, record("SGD", 0), curve())
    failed = record("SGD", 1, status="failed")
    write_run(tmp_path, {k: failed[k] for k in failed if k not in ("loss", "steps")})
    runs = read_runs(tmp_path)
    assert list(runs["loss"]) == ["NLL", "NLL"]
    assert summary(runs)["seeds"].tolist() == [2]


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="holds no results"):
        write_report(tmp_path)
    with pytest.raises(ArgumentError, match="not a folder"):
        write_report(tmp_path / "nowhere")


# -- summary ---------------------------------------------------------------------------


def test_mean_and_deviation_are_those_of_the_seeds_that_finished():
    runs = seeds("SGD", [1.0, 2.0, 6.0])
    runs += [record("SGD", 3, 50, 50, "diverged"), record("SGD", 4, 50, 50, "failed")]
    (row,) = summary(frame(*runs)).to_dict("records")
    assert (row["seeds"], row["finished"], row["diverged"], row["failed"]) == (5, 3, 1, 1)
    assert row["outcome"] == "1 of 5 diverged, 1 of 5 failed"
    assert row["train_loss_mean"] == pytest.approx(3)
    assert row["train_loss_std"] == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert row["test_loss_mean"] == pytest.approx(4)
    assert row["CRPS"] == pytest.approx(4)
    assert row["steps"] == pytest.approx(1001)


def test_a_finished_run_without_a_loss_spoils_the_mean():
    runs = [record("SGD", 0, 1.0), record("SGD", 1, math.nan)]
    assert math.isnan(summary(frame(*runs))["train_loss_mean"][0])


def test_no_cell_is_left_out(results):
    runs = read_runs(results)
    cells = summary(runs)
    assert len(cells) == 30
    assert cells["seeds"].sum() == len(runs)
    assert (
        cells["finished"].sum() + cells["diverged"].sum() + cells["failed"].sum() == 149
    )


# -- the table -------------------------------------------------------------------------


def test_bold_is_the_lowest_of_its_group_and_the_star_the_lowest_of_all():
    runs = [
        *seeds("SGD", [3.0, 3.2]),
        *seeds("SCSG", [2.0, 2.2]),
        *seeds("SCott", [2.5, 2.7]),
        *seeds("Adam", [1.0, 1.2]),
        *seeds("S-Adam", [1.4, 1.6]),
        *seeds("Adagrad", [5.0, 5.2]),
        *seeds("stratified SGD", [0.5, 0.7]),
    ]
    rows = {row[1]: row[2:] for row in rows_of(table_markdown(summary(frame(*runs))))[2:]}
    assert list(rows) == [run["optimizer"] for run in runs[::2]]
    assert rows["SCSG"] == ["**2.100 ± 0.141**", "**3.100 ± 0.141**"]
    assert rows["Adam"] == ["**1.100 ± 0.141**", "**2.100 ± 0.141**"]
    assert rows["stratified SGD"] == ["0.600 ± 0.141 ★", "1.600 ± 0.141 ★"]
    for other in ("SGD", "SCott", "S-Adam", "Adagrad"):
        assert not re.search(r"\*|★", "".join(rows[other])), other


@pytest.mark.parametrize("status", ["diverged", "failed"])
def test_an_optimizer_that_did_not_always_finish_is_never_the_lowest(status):
    runs = [
        *seeds("SGD", [3.0, 3.2, 3.4]),
        *seeds("SCott", [1.0, 1.2]),
        record("SCott", 2, status=status),
    ]
    rows = {row[1]: row[2] for row in rows_of(table_markdown(summary(frame(*runs))))[2:]}
    assert rows["SCott"] == f"1.100 ± 0.141 (1 of 3 {status})"
    assert rows["SGD"] == "**3.200 ± 0.200** ★"
    backtest = rows_of(backtest_markdown(summary(frame(*runs))))[2:]
    assert [row[3] for row in backtest] == ["**4.200**", "2.100"]
    assert backtest[1][2] == f"1 of 3 {status}"


def test_a_cell_without_a_finished_run_says_so():
    runs = [*seeds("SGD", [3.0, 3.2]), *seeds("SCott", [1, 2], status="diverged")]
    rows = rows_of(table_markdown(summary(frame(*runs))))[2:]
    assert rows[1][2:] == ["2 of 2 diverged", "2 of 2 diverged"]


def test_fewer_seeds_than_the_others_are_told():
    runs = [*seeds("SGD", [3.0, 3.2, 3.1]), *seeds("SCott", [1.0])]
    rows = rows_of(table_markdown(summary(frame(*runs))))[2:]
    assert rows[1][2] == "**1.000** ★ (1 of 3 seeds)"


def test_settings_stand_beside_each_other_by_dataset(results):
    table = rows_of(table_markdown(summary(read_runs(results))))
    header, body = table[0], table[2:]
    # Settings are read by name, so the awkward dataset is first.
    assert header[2:] == [
        "a&lt;b&gt;&amp;c, training",
        "a&lt;b&gt;&amp;c, test",
        "traffic, training",
        "traffic, test",
    ]
    assert [row[1] for row in body] == [*NAMES, *NAMES]
    assert {row[0] for row in body[:10]} == {"MLP (NLL), M = 1"}
    assert {row[0] for row in body[10:]} == {"N-BEATS (MAPE), M = 32"}
    assert all(row[2] == "" for row in body[10:])  # N-BEATS saw one dataset only
    assert all(cell for row in body[:10] for cell in row)


def test_settings_that_differ_in_their_budget_only_keep_their_rows():
    short = [*seeds("SGD", [3.0, 3.2], setting="short")]
    long = [*seeds("SGD", [2.0, 2.2], setting="long")]
    rows = rows_of(table_markdown(summary(frame(*short, *long))))[2:]
    assert [row[0] for row in rows] == [
        "MLP (NLL), M = 1: short",
        "MLP (NLL), M = 1: long",
    ]
    assert [row[2] for row in rows] == ["3.100 ± 0.141", "2.100 ± 0.141"]


def test_an_optimizer_that_the_paper_does_not_know_has_its_row():
    runs = [*seeds("my | own", [0.1, 0.1]), *seeds("SGD", [3.0, 3.2])]
    text = table_markdown(summary(frame(*runs)))
    assert r"| my \| own | 0.100 ± 0.000 ★ |" in text
    assert len(text.split("\n\n")[0].splitlines()) == 4


@pytest.mark.parametrize(
    ("losses", "text"),
    [
        ([-2.3871, -2.3871], "-2.387 ± 0.000"),
        ([0.5, 0.6], "0.550 ± 0.071"),
        ([0.0123, 0.0125], "0.01240 ± 0.00014"),
        ([123.41, 124.41], "123.9 ± 0.7"),
        ([1234.5, 1234.6], "1234.55 ± 0.07"),
        ([3e9, 3e9], "3.000e+09 ± 0.000e+00"),
        ([0.01, -0.01], "0.00000 ± 0.01414"),
    ],
)
def test_numbers_have_digits_that_mean_something(losses, text):
    cells = summary(frame(*seeds("SGD", losses)))
    assert rows_of(table_markdown(cells))[2][2] == text


# -- verdicts --------------------------------------------------------------------------


def verdict_of(runs, loss="training", comparison="SCott against SGD"):
    table = verdicts(frame(*runs))
    rows = table[(table["loss"] == loss) & (table["comparison"] == comparison)]
    (row,) = rows.to_dict("records")
    return row


def test_the_difference_is_measured_in_its_standard_error():
    # Variances 1 over 3 seeds and 8 over 2: √(1/3 + 8/2) = √(13/3).
    runs = [*seeds("SGD", [4.0, 8.0]), *seeds("SCott", [1.0, 2.0, 3.0])]
    row = verdict_of(runs)
    assert (row["challenger"], row["baseline"]) == ("SCott", "SGD")
    assert (row["challenger_mean"], row["baseline_mean"]) == (2, 6)
    assert row["difference"] == pytest.approx(-4)
    assert row["standard_error"] == pytest.approx(math.sqrt(13 / 3))
    assert row["errors"] == pytest.approx(-4 / math.sqrt(13 / 3))  # −1.92
    assert row["verdict"] == "level"
    # Variance 2 in place of 8, over 2 seeds: √(1/3 + 1), and −4 are 3.46 of them.
    runs = [*seeds("SGD", [5.0, 7.0]), *seeds("SCott", [1.0, 2.0, 3.0])]
    assert verdict_of(runs)["errors"] == pytest.approx(-4 / math.sqrt(4 / 3))
    assert verdict_of(runs)["verdict"] == "below"
    runs = [*seeds("SGD", [1.0, 2.0, 3.0]), *seeds("SCott", [5.0, 7.0])]
    assert verdict_of(runs)["verdict"] == "above"


def test_training_and_test_are_judged_apart():
    sgd = [record("SGD", n, train=5 + n / 10, test=1 + n / 10) for n in range(3)]
    scott = [record("SCott", n, train=1 + n / 10, test=5 + n / 10) for n in range(3)]
    assert verdict_of([*sgd, *scott], "training")["verdict"] == "below"
    assert verdict_of([*sgd, *scott], "test")["verdict"] == "above"


def test_who_diverged_loses_and_a_failure_decides_nothing():
    low, high = [1.0, 1.1], [5.0, 5.1]
    broken = {s: [record("SCott", 9, status=s)] for s in ("diverged", "failed")}
    sgd, scott = seeds("SGD", high), seeds("SCott", low)
    assert verdict_of([*sgd, *scott])["verdict"] == "below"
    lost = verdict_of([*sgd, *scott, *broken["diverged"]])
    assert lost["verdict"] == "above"
    assert lost["note"] == "SCott: 1 of 3 diverged"
    assert verdict_of([*sgd, *scott, *broken["failed"]])["verdict"] == "undecided"
    both = [*sgd, record("SGD", 9, status="diverged"), *scott, *broken["diverged"]]
    assert verdict_of(both)["verdict"] == "undecided"
    worse = [
        *seeds("SGD", low),
        record("SGD", 9, status="diverged"),
        *seeds("SCott", high),
    ]
    assert verdict_of(worse)["verdict"] == "below"


def test_one_seed_decides_nothing_and_equal_seeds_do():
    assert verdict_of([*seeds("SGD", [5.0]), *seeds("SCott", [1.0])])["verdict"] == (
        "undecided"
    )
    same = [*seeds("SGD", [5.0, 5.0]), *seeds("SCott", [5.0, 5.0])]
    assert verdict_of(same)["verdict"] == "level"
    certain = [*seeds("SGD", [5.0, 5.0]), *seeds("SCott", [1.0, 1.0])]
    assert verdict_of(certain)["errors"] == -math.inf
    assert verdict_of(certain)["verdict"] == "below"


def test_stratified_mini_batches_meet_the_best_of_the_others():
    runs = [
        *seeds("SGD", [3.0, 3.1]),
        *seeds("Adam", [2.0, 2.1]),
        *seeds("S-Adam", [0.0, 0.1]),
        record("S-Adam", 2, status="diverged"),  # so it is not the best of the others
        *seeds("stratified SGD", [1.0, 1.1]),
        *seeds("stratified Adam", [1.5, 1.6]),
    ]
    comparison = "the best stratified mini-batch optimizer against the best of the others"
    row = verdict_of(runs, comparison=comparison)
    assert (row["challenger"], row["baseline"]) == ("stratified SGD", "Adam")
    assert row["verdict"] == "below"


def test_sentences_count_the_settings():
    cases = {"below": ([5, 5.1], [1, 1.1]), "above": ([1, 1.1], [5, 5.1])}
    cases["level"] = ([1, 1.1], [1, 1.1])
    wins = ("below", "below", "below", "level", "above", "above")
    runs = []
    for number, case in enumerate(wins):
        runs += seeds("SGD", cases[case][0], setting=f"s{number}")
        runs += seeds("SCott", cases[case][1], setting=f"s{number}")
    runs += seeds("SGD", [1, 1.1], setting="s7")
    runs += seeds("SCott", [0, 0], setting="s7", status="diverged")
    runs += seeds("Adam", [1, 1.1], setting="s8")  # no pair
    text = verdict_sentences(verdicts(frame(*runs)))
    assert text.splitlines() == [
        "By training loss, SCott ended below SGD in 3 of 7 settings, level in 1 "
        "(difference below two standard errors), above in 3; 1 of these by divergence.",
        "By test loss, SCott ended below SGD in 3 of 7 settings, level in 1, above in 3; "
        "1 of these by divergence.",
    ]
    runs += [*seeds("SGD", [1.0], setting="s9"), *seeds("SCott", [1.0], setting="s9")]
    text = verdict_sentences(verdicts(frame(*runs)))
    assert "3 of 8 settings" in text
    assert "undecided in 1 (one seed has no standard error)" in text


# -- the report ------------------------------------------------------------------------


def test_the_report_writes_all_files(results, page):
    assert len(pd.read_csv(results / "runs.csv")) == 149
    assert len(pd.read_csv(results / "verdicts.csv")) == 3 * 2 * 5
    cells = summary(read_runs(results))
    assert (results / "table.md").read_text(encoding="utf-8") == table_markdown(cells)
    assert len(rows_of((results / "backtest.md").read_text(encoding="utf-8"))) == 32
    pictures = sorted(path.name for path in (results / "figures").iterdir())
    assert len(pictures) == 3 * 2 + 1
    assert "mlp-traffic-M1-variance.png" in pictures
    assert page.count("data:image/png;base64,") == 7


def test_the_page_needs_no_network_and_escapes_what_it_was_given(page):
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)
    assert "a<b>" not in page
    assert "a&lt;b&gt;&amp;c" in page
    assert "out of &lt;memory&gt; &amp; luck" in page
    assert "resolved &lt;config&gt; &amp; more" in page


def test_the_page_holds_every_setting_and_what_went_wrong(page):
    text = unescape(page)
    for setting in ("mlp-traffic-M1", "mlp-a<b>&c-M1", "nbeats-traffic-M32"):
        assert f">{setting}</h3>" in text
    assert "1 of 150 runs are missing" in text
    assert "nbeats-traffic-M32: SCSG, seed 4" in text
    assert "runs: 149, of which 146 finished, 2 diverged, 1 failed" in text
    assert "100% to 100% of their budget" in text
    assert "4096 of 5000" in text
    assert "512 of 1000" in text
    assert text.count("<td>diverged</td>") == 2
    assert text.count("<td>failed</td>") == 1
    assert "By test loss, SCott ended below SGD in" in text
    assert "Cut off at the upper edge: SGD, up to 1e+05." in text
    assert "± one standard error. * too <small>." in text
    assert "NLL on up to 1024 training windows" in text


def test_versions_that_differ_are_told(tmp_path):
    write_run(tmp_path, record("SGD", 0), curve())
    write_run(tmp_path, record("SGD", 1), curve(), {**VERSIONS, "torch": "2.12.0"})
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "1 of 2 runs differ" in page
    assert "mlp-traffic-M1/runs/SGD-seed1: torch 2.12.0" in page


def test_a_benchmark_that_has_just_begun_has_a_report(tmp_path):
    write_config(tmp_path, "mlp-traffic-M1", ("SGD", "SCott"), (0, 1))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "4 of 4 runs are missing" in page
    assert "SCott, seed 1" in page
    write_run(tmp_path, record("SGD", 0, status="failed", error="no luck"))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "3 of 4 runs are missing" in page
    assert "no luck" in page


def test_a_config_that_cannot_be_read_is_named(tmp_path):
    write_run(tmp_path, record(), curve())
    path = tmp_path / "mlp-traffic-M1" / "config.yaml"
    path.write_text("a: [1,")
    with pytest.raises(FileLayoutError, match=re.escape(str(path))):
        write_report(tmp_path)
    path.unlink()
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Not known whether complete" in page


def test_warnings_of_the_runs_are_told_once(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, record("SGD", seed, warnings=["a <slow> start"]), curve())
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.count("a &lt;slow&gt; start") == 1
    assert "2 runs" in page
