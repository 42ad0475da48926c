"""The page reports every problem, and each only once."""

from __future__ import annotations

from helpers.report_page import render_parts
from helpers.small_results import (
    VERSIONS,
    run_record,
    runs_frame,
    write_config,
    write_run,
)

from pts_scott.experiments.report import page
from pts_scott.experiments.results import SettingFolder, read_runs


def completeness_html(folder):
    settings = SettingFolder.read_all(folder, read_runs(folder))
    return render_parts(completeness=page.collect_completeness(settings))


def comparison_html(folder):
    runs = read_runs(folder)
    settings = SettingFolder.read_all(folder, runs)
    return render_parts(comparison=page.collect_comparison(settings, runs))


def versions_html(found):
    return render_parts(versions=page.collect_versions(found))


def test_missing_runs_are_listed(tmp_path):
    write_config(tmp_path, "mlp-traffic-M1", ("SGD", "SCott"), (0, 1))
    write_run(tmp_path, run_record("SGD", 0))
    html = completeness_html(tmp_path)
    assert "3 of 4 runs are missing" in html
    assert "mlp-traffic-M1: SCott, seed 0; SCott, seed 1; SGD, seed 1" in html
    for optimizer, seed in (("SGD", 1), ("SCott", 0), ("SCott", 1)):
        write_run(tmp_path, run_record(optimizer, seed))
    assert '<div class="missing">' not in completeness_html(tmp_path)


def test_completeness_is_unknown_without_a_config(tmp_path):
    write_run(tmp_path, run_record())
    html = completeness_html(tmp_path)
    assert "Completeness unknown, because config.yaml lists no optimizers" in html
    assert "are missing" not in html


def test_comparison_states_used_and_differing_budgets(tmp_path):
    write_run(tmp_path, run_record("SGD", 0, seconds=27.0))
    write_run(tmp_path, run_record("SGD", 1, seconds=30.0))
    html = comparison_html(tmp_path)
    assert "train for the same number of seconds" in html
    assert "took 90% to 100% of their budget" in html
    assert ">27.0 to 30.0<" in html
    write_run(tmp_path, run_record("SGD", 2, time_budget=60.0))
    html = comparison_html(tmp_path)
    assert "The time budgets differ within mlp-traffic-M1." in html
    assert "the same number of seconds" not in html


def test_comparison_states_differing_engines_and_workers(tmp_path):
    write_run(tmp_path, run_record("SGD", 0, compiled=True, workers=1))
    write_run(tmp_path, run_record("SGD", 1, compiled=False, workers=2))
    html = comparison_html(tmp_path)
    assert "Compiled and eager runs are mixed" in html
    assert "(--workers) differs" in html
    assert "the same number of seconds" not in html


def test_unknown_costs_are_dashes():
    cells = runs_frame(run_record("SGD", steps=12345, anchors=float("nan")))
    html = render_parts(losses=page.cost_table(cells))
    assert "12\u202f345" in html
    assert html.count(">–<") == 2  # γ and the anchors


def test_differing_versions_are_listed():
    found = {"a": VERSIONS, "b": {**VERSIONS, "torch": "2.12.0"}, "c": VERSIONS}
    html = versions_html(found)
    assert "1 of 3 runs differ" in html
    assert "<li>b: torch 2.12.0</li>" in html
    assert "The same in all 2 runs" in versions_html({k: found[k] for k in "ac"})
    assert "No run" in versions_html({})


def test_repeated_warnings_are_listed_once():
    runs = runs_frame(*(run_record(seed=n, warnings="a <slow> start") for n in (0, 1)))
    html = render_parts(warnings=page.collect_warnings(runs))
    assert html.count("a &lt;slow&gt; start") == 1
    assert "2 runs" in html
    assert page.collect_warnings(runs.assign(warnings="")) == []
    assert "<h2>Warnings</h2>\n<p>None.</p>" in render_parts(warnings=[])


def test_unfinished_runs_are_listed_with_the_reason():
    failed = run_record("SGD", 1, status="failed", error="no luck")
    diverged = run_record("SGD", 2, status="diverged")
    runs = runs_frame(run_record("SGD", 0), failed, diverged)
    html = render_parts(unfinished_runs=page.unfinished_runs_table(runs))
    assert "<td>1</td><td>failed</td><td>no luck</td>" in html
    assert "<td>2</td><td>diverged</td><td>after 1002 steps</td>" in html
    assert page.unfinished_runs_table(runs[:1]) is None
    html = render_parts(unfinished_runs=None)
    assert "<h2>Diverged and failed runs</h2>\n<p>None.</p>" in html
