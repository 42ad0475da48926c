"""Tables include every optimizer; bold is what a test finds better than plain."""

from __future__ import annotations

import re

import pytest
from helpers.report_page import BLOCK_TABLE
from helpers.small_results import markdown_rows, run_record, runs_frame, seed_records

from pts_scott.experiments.report.summary import summarize_runs
from pts_scott.experiments.report.tables import (
    Row,
    Table,
    backtest_markdown,
    table_markdown,
)
from pts_scott.experiments.results import PAPER_OPTIMIZERS


def table_rows(*runs):
    markdown = table_markdown(summarize_runs(runs_frame(*runs)))
    return {row[1]: row[2:] for row in markdown_rows(markdown)[2:]}


def test_bold_marks_what_a_test_finds_better_than_plain_and_star_the_lowest():
    runs = [
        *seed_records("SGD", [3.0, 3.1, 3.2]),
        *seed_records("SCSG", [2.0, 2.1, 2.2]),  # p = 0.0002
        *seed_records("SCott", [2.0, 3.0, 3.2]),  # lower, but p = 0.4
        *seed_records("Adam", [1.0, 1.1, 1.2]),
        *seed_records("S-Adam", [1.4, 1.5, 1.6]),  # worse
        *seed_records("Adagrad", [0.5, 0.6, 0.7]),  # has nothing to be compared with
    ]
    rows = table_rows(*runs)
    assert list(rows) == [run["optimizer"] for run in runs[::3]]
    assert rows["SCSG"] == ["**2.100 ± 0.100**", "**3.100 ± 0.100**"]
    assert rows["Adagrad"] == ["0.600 ± 0.100 ★", "1.600 ± 0.100 ★"]
    for other in ("SGD", "SCott", "Adam", "S-Adam"):
        assert not re.search(r"\*|★", "".join(rows[other])), other
    backtest = markdown_rows(backtest_markdown(summarize_runs(runs_frame(*runs))))[2:]
    crps = {row[1]: row[3] for row in backtest}
    assert crps["SCSG"] == "**3.100**"
    assert crps["SCott"] == "3.733"


@pytest.mark.parametrize("status", ["diverged", "failed"])
def test_optimizer_with_unfinished_seeds_has_no_marks(status):
    runs = [
        *seed_records("SGD", [3.0, 3.2, 3.4]),
        *seed_records("SCott", [1.0, 1.2]),
        run_record("SCott", 2, status=status),
    ]
    rows = table_rows(*runs)
    assert rows["SCott"][0] == f"1.100 ± 0.141 (1 of 3 {status})"
    assert rows["SGD"][0] == "3.200 ± 0.200 ★"
    backtest = markdown_rows(backtest_markdown(summarize_runs(runs_frame(*runs))))[2:]
    assert [row[3] for row in backtest] == ["4.200 ★", "2.100"]
    assert backtest[1][2] == f"1 of 3 {status}"


def test_cell_without_finished_runs_gives_the_outcome():
    runs = [
        *seed_records("SGD", [3.0, 3.2]),
        *seed_records("SCott", [1, 2], status="diverged"),
    ]
    rows = markdown_rows(table_markdown(summarize_runs(runs_frame(*runs))))[2:]
    assert rows[1][2:] == ["2 of 2 diverged", "2 of 2 diverged"]


def test_cell_notes_fewer_seeds_than_the_others():
    runs = [*seed_records("SGD", [3.0, 3.2, 3.1]), *seed_records("SCott", [1.0])]
    rows = markdown_rows(table_markdown(summarize_runs(runs_frame(*runs))))[2:]
    assert rows[1][2] == "1.000 ★ (1 of 3 seeds)"


def test_settings_of_one_model_share_rows_across_datasets():
    keys = (
        {"setting": "a", "dataset": "a<b>&c"},
        {"setting": "b"},
        {"setting": "c", "model": "N-BEATS", "loss": "MAPE", "batch_size": 32},
    )
    runs = [
        run
        for k in keys
        for name in PAPER_OPTIMIZERS
        for run in seed_records(name, [1, 2], **k)
    ]
    header, _, *body = markdown_rows(table_markdown(summarize_runs(runs_frame(*runs))))
    assert header[2:] == [
        "a&lt;b&gt;&amp;c, training",
        "a&lt;b&gt;&amp;c, test",
        "traffic, training",
        "traffic, test",
    ]
    assert [row[1] for row in body] == [*PAPER_OPTIMIZERS, *PAPER_OPTIMIZERS]
    assert {row[0] for row in body[:10]} == {"MLP (NLL), M = 1"}
    assert {row[0] for row in body[10:]} == {"N-BEATS (MAPE), M = 32"}
    assert all(row[2] == "" for row in body[10:])  # N-BEATS saw one dataset only
    assert all(cell for row in body[:10] for cell in row)


def test_settings_that_differ_only_in_budget_keep_separate_rows():
    short = [*seed_records("SGD", [3.0, 3.2], setting="short")]
    long = [*seed_records("SGD", [2.0, 2.2], setting="long")]
    rows = markdown_rows(table_markdown(summarize_runs(runs_frame(*short, *long))))[2:]
    assert [row[0] for row in rows] == [
        "MLP (NLL), M = 1: short",
        "MLP (NLL), M = 1: long",
    ]
    assert [row[2] for row in rows] == ["3.100 ± 0.141", "2.100 ± 0.141"]


def test_optimizer_outside_the_paper_has_a_row():
    runs = [*seed_records("my | own", [0.1, 0.1]), *seed_records("SGD", [3.0, 3.2])]
    text = table_markdown(summarize_runs(runs_frame(*runs)))
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
def test_losses_show_significant_digits(losses, text):
    cells = summarize_runs(runs_frame(*seed_records("SGD", losses)))
    assert markdown_rows(table_markdown(cells))[2][2] == text


def test_markdown_cell_shows_marks_and_note():
    expected = ["a &amp; b", "x", "**1.0** ★ (1 of 2 seeds)"]
    assert markdown_rows(BLOCK_TABLE.markdown())[2] == expected
    assert [len(block) for block in BLOCK_TABLE.blocks()] == [2, 1]
    flat = Table(["A"], [Row.of("b"), Row.of("c")])
    assert [len(block) for block in flat.blocks()] == [2]
