"""A summary counts every seed, and averages those that finished."""

from __future__ import annotations

import math

import pytest
from helpers.small_results import run_record, runs_frame, seed_records

from pts_scott.experiments.report.summary import summarize_runs


def test_mean_and_deviation_use_the_finished_seeds():
    runs = seed_records("SGD", [1.0, 2.0, 6.0])
    runs += [
        run_record("SGD", 3, 50, 50, "diverged"),
        run_record("SGD", 4, 50, 50, "failed"),
    ]
    (row,) = summarize_runs(runs_frame(*runs)).to_dict("records")
    assert (row["seeds"], row["finished"], row["diverged"], row["failed"]) == (5, 3, 1, 1)
    assert row["outcome"] == "1 of 5 diverged, 1 of 5 failed"
    assert row["train_loss_mean"] == pytest.approx(3)
    assert row["train_loss_std"] == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert row["test_loss_mean"] == pytest.approx(4)
    assert row["CRPS_mean"] == pytest.approx(4)
    assert row["CRPS_std"] == pytest.approx(math.sqrt(7))
    assert row["steps"] == pytest.approx(1001)


def test_finished_run_without_a_loss_makes_the_mean_nan():
    runs = [run_record("SGD", 0, 1.0), run_record("SGD", 1, math.nan)]
    assert math.isnan(summarize_runs(runs_frame(*runs))["train_loss_mean"][0])


def test_every_seed_is_counted():
    runs = [
        *seed_records("SGD", [1.0, 2.0], setting="a"),
        *seed_records("my own", [1.0], setting="a", status="failed"),
        *seed_records("SGD", [1.0, 2.0, 3.0], setting="b", status="diverged"),
    ]
    cells = summarize_runs(runs_frame(*runs))
    counts = cells[["seeds", "finished", "diverged", "failed"]].to_numpy().tolist()
    assert counts == [[2, 2, 0, 0], [1, 0, 0, 1], [3, 0, 3, 0]]
