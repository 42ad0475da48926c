"""The parts of the page: what went wrong is told, and nothing is said twice."""

from __future__ import annotations

from helpers.small_results import VERSIONS, frame, record, seeds, write_config, write_run

from pts_scott.experiments.report import page
from pts_scott.experiments.report.verdicts import verdicts
from pts_scott.experiments.results import SettingFolder, read_runs


def settings_of(folder):
    return SettingFolder.all(folder, read_runs(folder))


def test_missing_runs_are_told(tmp_path):
    write_config(tmp_path, "mlp-traffic-M1", ("SGD", "SCott"), (0, 1))
    write_run(tmp_path, record("SGD", 0))
    text = page.missing(settings_of(tmp_path))
    assert "3 of 4 runs are missing" in text
    assert "mlp-traffic-M1: SCott, seed 0; SCott, seed 1; SGD, seed 1" in text
    for optimizer, seed in (("SGD", 1), ("SCott", 0), ("SCott", 1)):
        write_run(tmp_path, record(optimizer, seed))
    assert page.missing(settings_of(tmp_path)) == ""


def test_without_a_config_nobody_knows_whether_runs_are_missing(tmp_path):
    write_run(tmp_path, record())
    text = page.missing(settings_of(tmp_path))
    assert "Not known whether complete" in text
    assert "are missing" not in text


def test_budgets_are_compared(tmp_path):
    write_run(tmp_path, record("SGD", 0, seconds=27.0))
    write_run(tmp_path, record("SGD", 1, seconds=30.0))
    text = page.compared(settings_of(tmp_path), read_runs(tmp_path))
    assert "train for the same seconds" in text
    assert "took 90% to 100% of their budget" in text
    assert ">27.0 to 30.0<" in text
    write_run(tmp_path, record("SGD", 2, time_budget=60.0))
    text = page.compared(settings_of(tmp_path), read_runs(tmp_path))
    assert "The time budgets differ within mlp-traffic-M1." in text
    assert "the same seconds" not in text


def test_the_lowest_of_several_are_compared_with_a_warning():
    runs = [*seeds("SGD", [3.0, 3.1]), *seeds("SCott", [2.0, 2.1])]
    warning = "both are the lowest of several"
    assert warning not in page.decisions(verdicts(frame(*runs)))
    runs += [*seeds("stratified SGD", [1.0, 1.1]), *seeds("stratified Adam", [1.5, 1.6])]
    text = page.decisions(verdicts(frame(*runs)))
    assert f"Where the first is a stratified mini-batch optimizer, {warning}" in text
    assert text.count(warning) == 3  # beneath the table, and in two sentences
    assert "no pairs" in page.decisions(verdicts(frame(*seeds("SGD", [1.0]))))


def test_what_is_not_known_is_a_dash():
    cells = frame(record("SGD", steps=12345, anchors=float("nan")))
    text = page.spent(cells)
    assert "12\u202f345" in text
    assert text.count(">–<") == 2  # γ and the anchors


def test_versions_that_differ_are_told():
    found = {"a": VERSIONS, "b": {**VERSIONS, "torch": "2.12.0"}, "c": VERSIONS}
    text = page.versions(found)
    assert "1 of 3 runs differ" in text
    assert "<li>b: torch 2.12.0</li>" in text
    assert "The same in all 2 runs" in page.versions({k: found[k] for k in "ac"})
    assert "No run" in page.versions({})


def test_warnings_of_the_runs_are_told_once():
    runs = frame(*(record("SGD", seed, warnings="a <slow> start") for seed in (0, 1)))
    assert page.warnings(runs).count("a &lt;slow&gt; start") == 1
    assert "2 runs" in page.warnings(runs)
    assert "None." in page.warnings(runs.assign(warnings=""))


def test_runs_that_broke_are_listed_with_the_reason():
    failed = record("SGD", 1, status="failed", error="no luck")
    runs = frame(record("SGD", 0), failed, record("SGD", 2, status="diverged"))
    text = page.broken_runs(runs)
    assert "<td>1</td><td>failed</td><td>no luck</td>" in text
    assert "<td>2</td><td>diverged</td><td>after 1002 steps</td>" in text
    assert "None." in page.broken_runs(runs[:1])
