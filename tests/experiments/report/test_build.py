"""A report writes all of its files, and its page is complete and escaped."""

from __future__ import annotations

import json
import re
from html import unescape

import pandas as pd
import pytest
from helpers.small_results import (
    loss_curve,
    markdown_rows,
    run_record,
    write_config,
    write_results,
    write_run,
)

from pts_scott.errors import ArgumentError, ScottError
from pts_scott.experiments.report.build import write_report
from pts_scott.experiments.report.summary import summarize_runs
from pts_scott.experiments.report.tables import table_markdown
from pts_scott.experiments.results import read_runs


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = write_results(tmp_path_factory.mktemp("bench"))
    assert write_report(folder) == folder / "report.html"
    return folder


@pytest.fixture
def page(results):
    return (results / "report.html").read_text(encoding="utf-8")


def test_report_writes_all_files(results, page):
    tables = {path.stem: pd.read_csv(path) for path in results.glob("*.csv")}
    assert {name: len(table) for name, table in tables.items()} == {
        "runs": 23,
        "summary": 2 * 4,
        "verdicts": 2 * 4 * 2 * 3,  # settings, pairs, losses, places
        "reach": 2 * 4 * 2,
        "curves": (4 + 4) * 7,
        "variance": 6,
    }
    assert set(tables["verdicts"]["verdict"]) <= {"better", "tied", "worse", "undecided"}
    assert "| M = 1 | SCott | SGD |" in (results / "verdicts.md").read_text("utf-8")
    cells = summarize_runs(read_runs(results))
    assert (results / "table.md").read_text(encoding="utf-8") == table_markdown(cells)
    assert len(markdown_rows((results / "backtest.md").read_text(encoding="utf-8"))) == 10
    images = sorted(path.name for path in (results / "figures").iterdir())
    assert images == [
        "mlp-a<b>&c-M1-training.png",  # whose curves have no test loss
        "mlp-traffic-M1-test.png",
        "mlp-traffic-M1-training.png",
        "mlp-traffic-M1-variance.png",
        "reach.png",
    ]
    assert page.count("<svg") == page.count("<figcaption>") == 5
    assert page.count("currentColor") > 100  # text of figures, in light and in dark


def test_page_needs_no_network_and_escapes_its_input(page):
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)
    assert "@import" not in page
    assert "url(" not in re.sub(r"url\(#\w+\)", "", page)
    assert "a<b>" not in page
    assert "a&lt;b&gt;&amp;c" in page
    assert "out of &lt;memory&gt; &amp; luck" in page
    assert "resolved &lt;config&gt; &amp; more" in page


def test_page_shows_every_setting_and_every_problem(page):
    text = unescape(page)
    for setting in ("mlp-traffic-M1", "mlp-a<b>&c-M1"):
        assert f">{setting}</h3>" in text
    assert "1 of 24 runs are missing" in text
    assert "mlp-a<b>&c-M1: SCSG, seed 2" in text
    assert "runs: 23, of which 20 finished, 2 diverged, 1 failed" in text
    assert "100% to 100% of their budget" in text
    assert "4096 of 5000" in text
    assert "512 of 1000" in text
    assert text.count("<td>diverged</td>") == 2
    assert text.count("<td>failed</td>") == 1
    assert "by test loss, SCott ended worse than SGD in" not in text
    assert "SCott ended better than SGD in" in text
    assert "p < 0.05" in text
    assert "Cut off at the upper edge: SGD, up to 1e+05." in text
    assert "± one standard error. * too <small>." in text
    assert "NLL on up to 1024 training windows" in text
    assert "The same in all 23 runs that recorded them." in text


def test_benchmark_without_finished_runs_has_a_report(tmp_path):
    write_config(tmp_path, "mlp-traffic-M1", ("SGD", "SCott"), (0, 1))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "4 of 4 runs are missing" in page
    assert "SCott, seed 1" in page
    write_run(tmp_path, run_record("SGD", 0, status="failed", error="no luck"))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "3 of 4 runs are missing" in page
    assert "no luck" in page
    assert "There are no curves yet." in page


def test_folder_without_results_raises(tmp_path):
    with pytest.raises(ArgumentError, match="holds no results"):
        write_report(tmp_path)


@pytest.mark.parametrize("name", ["report.html", "runs.csv", "figures", "more/x.txt"])
def test_report_does_not_write_through_links(tmp_path, name):
    folder = tmp_path / "bench"
    write_run(folder, run_record())
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(outside)
    with pytest.raises(ScottError, match="is a link to .*outside"):
        write_report(folder)
    assert outside.read_text() == "mine"


def test_hostile_names_are_neither_paths_nor_markup(tmp_path):
    folder = tmp_path / "bench"
    hostile = "../../<script>alert(1)</script>"
    path = write_run(folder, run_record(), loss_curve())
    run = {**run_record(hostile), "setting": hostile, "model": hostile, "loss": hostile}
    (path / "run.json").write_text(json.dumps({**run, "warnings": [hostile]}))
    (path / "versions.json").write_text(json.dumps({hostile: [hostile]}))
    page = write_report(folder).read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert page.count("<script") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["bench"]
