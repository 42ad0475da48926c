"""Tables of the comparison count every setting, and show what was not reached."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from helpers.small_results import run_record, runs_frame, seed_records

from pts_scott.experiments.report import comparison_tables
from pts_scott.experiments.report.formatting import format_share
from pts_scott.experiments.report.reach import COLUMNS
from pts_scott.experiments.report.summary import summarize_runs
from pts_scott.experiments.report.verdicts import compute_verdicts

LOW, HIGH = [1.0, 1.1, 1.2], [5.0, 5.1, 5.2]


@pytest.fixture
def runs():
    """SCott and SGD in four settings: better twice, worse at M = 32, and one failure."""
    records = []
    for number, (scott, sgd, m) in enumerate(
        ((LOW, HIGH, 1), (LOW, HIGH, 1), (HIGH, LOW, 32), (LOW, LOW, 32))
    ):
        keys = {"setting": f"s{number}", "batch_size": m}
        records += seed_records("SGD", sgd, **keys) + seed_records("SCott", scott, **keys)
    failed = run_record("SCott", 3, status="failed", setting="s3", batch_size=32)
    return runs_frame(*records, failed)


def reach_rows(shares):
    rows = [
        {
            "setting": setting,
            "loss": loss,
            "optimizer": "SCott",
            "rule": "sgd",
            "baseline": "SGD",
            "target": 1.0,
            "seconds_share": share,
            "gradients_share": 2 * share,
            "steps_share": 3 * share,
            "note": "not reached" if math.isnan(share) else "",
        }
        for setting, share in shares.items()
        for loss in ("training", "test")
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def texts(row):
    texts = [f"{cell.text} {cell.note}".strip() for cell in row.cells]
    return [text.replace("\u00a0", " ") for text in texts]


def test_counts_are_by_number_of_windows(runs):
    reach = reach_rows({"s0": 0.5, "s1": 0.25, "s2": math.nan, "s3": 0.5})
    table = comparison_tables.count_table(
        summarize_runs(runs), compute_verdicts(runs), reach, "equal training time"
    )
    assert table.header[3] == "Training, equal time"
    first, second = table.rows
    assert texts(first)[:5] == ["M = 1", "SCott", "SGD", "2 / 0 / 0", "2 / 0 / 0"]
    assert texts(first)[5:] == ["50 %", "100 %"]
    assert first.cells[3].tone == "better"
    assert [row.cells[3].value for row in table.rows] == [2, -1]  # to sort by
    unfinished = "0 / 0 / 1 1 undecided"
    assert texts(second)[:5] == ["M = 32", "SCott", "SGD", unfinished, unfinished]
    assert texts(second)[5:] == ["not reached", "not reached"]
    assert second.cells[3].tone == "worse"


def test_matrix_has_a_row_per_setting(runs):
    runs.loc[runs["setting"] == "s0", "test_loss"] = 1.0  # tied by test loss
    table = comparison_tables.verdict_matrix(
        compute_verdicts(runs), "equal training time"
    )
    assert list(table.header) == ["Setting", "SCott against SGD"]
    assert [texts(row) for row in table.rows] == [
        ["s0", "better / tied"],
        ["s1", "better"],
        ["s2", "worse"],
        ["s3", "undecided"],
    ]
    assert [row.cells[1].tone for row in table.rows][:2] == ["tied", "better"]


def test_setting_shows_differences_and_p_values(runs):
    verdicts = compute_verdicts(runs)
    own = verdicts[verdicts["setting"] == "s1"]
    table = comparison_tables.setting_verdict_table(own, "equal training time")
    training, test = map(texts, table.rows)
    assert training[:4] == ["SCott against SGD", "training", "better", "-4.000"]
    assert float(training[4]) < 0.001
    assert test[1] == "test"
    assert [row.rule for row in table.rows] == ["block", ""]


def test_reach_table_shows_shares_of_time_gradients_and_steps():
    table = comparison_tables.reach_table(reach_rows({"s0": 0.5}))
    shares = [*2 * ["50 %"], *2 * ["100 %"], *2 * ["150 %"]]
    assert texts(table.rows[0]) == ["SCott", "SGD", *shares]
    table = comparison_tables.reach_table(reach_rows({"s0": math.nan}))
    assert texts(table.rows[0])[2:] == 6 * ["not reached"]
    itself = reach_rows({"s0": 1.0}).assign(optimizer="SGD")
    assert texts(comparison_tables.reach_table(itself).rows[0])[1] == "itself"


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0123, "1.2 %"),
        (0.0999, "10 %"),
        (0.624, "62 %"),
        (2.5, "250 %"),
        (12.3, "12 ×"),
        (math.nan, "–"),
    ],
)
def test_shares_are_percentages(share, text):
    assert format_share(share) == text.replace(" ", "\u00a0")
