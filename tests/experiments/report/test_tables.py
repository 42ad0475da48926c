"""Tables: no optimizer is left out, and only the lowest is marked so."""

from __future__ import annotations

import re

import pytest
from helpers.small_results import frame, record, rows_of, seeds

from pts_scott.experiments.report.tables import (
    Cell,
    Row,
    Table,
    backtest_markdown,
    table_markdown,
)
from pts_scott.experiments.report.verdicts import summary
from pts_scott.experiments.results import OPTIMIZERS


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


def test_settings_stand_beside_each_other_by_dataset():
    keys = (
        {"setting": "a", "dataset": "a<b>&c"},
        {"setting": "b"},
        {"setting": "c", "model": "N-BEATS", "loss": "MAPE", "batch_size": 32},
    )
    runs = [run for k in keys for name in OPTIMIZERS for run in seeds(name, [1, 2], **k)]
    header, _, *body = rows_of(table_markdown(summary(frame(*runs))))
    assert header[2:] == [
        "a&lt;b&gt;&amp;c, training",
        "a&lt;b&gt;&amp;c, test",
        "traffic, training",
        "traffic, test",
    ]
    assert [row[1] for row in body] == [*OPTIMIZERS, *OPTIMIZERS]
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


def test_a_block_has_one_head_as_high_as_its_rows():
    table = Table(
        ["Setting", "<name>", "Loss"],
        [
            Row([Cell("a & b"), Cell("x"), Cell("1.0", "1 of 2 seeds", True, True)]),
            Row.of("a & b", "y", 2.0, rule="group"),
            Row.of("c", "x", 3.0),
        ],
        "A caption.",
    )
    page = table.html()
    assert '<th scope="rowgroup" rowspan="2">a &amp; b</th>' in page
    assert '<th scope="rowgroup" rowspan="1">c</th>' in page
    assert page.count("a &amp; b") == 1
    assert '<th scope="col">&lt;name&gt;</th>' in page
    marked = "<strong>1.0</strong> ★<br><small>1 of 2 seeds</small>"
    assert f'<td class="number">{marked}</td>' in page
    assert '<tr class="group"><td>y</td><td class="number">2.0</td></tr>' in page
    assert rows_of(table.markdown())[2] == ["a &amp; b", "x", "**1.0** ★ (1 of 2 seeds)"]
