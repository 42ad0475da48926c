"""Shares of the plain optimizer's costs follow from curves whose answers are known."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from helpers.small_results import run_record, runs_frame, seed_records

from pts_scott.experiments.report.reach import compute_reach, median_share
from pts_scott.experiments.report.summary import summarize_runs


def curves_of(optimizer, *losses, seconds=40.0, gradients=100.0):
    """Return a curve per seed, measured at equal shares of the costs."""
    share = np.linspace(0, 1, len(losses[0]))
    return pd.concat(
        pd.DataFrame(
            {
                "setting": "mlp-traffic-M1",
                "optimizer": optimizer,
                "seed": seed,
                "status": "finished",
                "step": 1000 * share,
                "gradients": gradients * share,
                "seconds": seconds * share,
                "train_loss": values,
                "test_loss": np.array(values) + 100,
            }
        )
        for seed, values in enumerate(losses)
    )


def reach_of(optimizer, *curves, runs=None, loss="training"):
    names = dict.fromkeys(name for curve in curves for name in curve["optimizer"])
    runs = runs or [run for name in names for run in seed_records(name, [1.0, 2.0])]
    table = compute_reach(summarize_runs(runs_frame(*runs)), pd.concat(curves))
    (row,) = table[(table["optimizer"] == optimizer) & (table["loss"] == loss)].to_dict(
        "records"
    )
    return row


SGD = curves_of("SGD", [9.0, 7.0, 5.0, 4.0, 3.0], [11.0, 9.0, 7.0, 6.0, 5.0])  # ends at 4


@pytest.mark.parametrize("loss", ["training", "test"])
def test_share_is_where_the_mean_curve_meets_the_plain_optimizers_end(loss):
    # The mean falls 10, 6, 2, 1, 1 and meets 4 halfway between two points.
    scott = curves_of(
        "SCott", [9.0, 5.0, 1.0, 0.5, 0.0], [11.0, 7.0, 3.0, 1.5, 2.0], gradients=600.0
    )
    row = reach_of("SCott", SGD, scott, loss=loss)
    assert row["baseline"] == "SGD"
    assert row["target"] == pytest.approx(4.0 + 100 * (loss == "test"))
    assert row["seconds"] == pytest.approx(15.0)
    assert row["seconds_share"] == pytest.approx(15 / 40)
    assert row["steps_share"] == pytest.approx(0.375)
    assert row["gradients"] == pytest.approx(225.0)
    assert row["gradients_share"] == pytest.approx(2.25)  # more than SGD spent in all
    assert row["note"] == ""


def test_target_can_be_the_mean_over_the_last_part_of_the_plain_curve():
    # The mean falls 10, 8, 6, 5, 4, and is 4.5 on average over its last quarter.
    scott = curves_of("SCott", [9.0, 3.0, 3.0, 3.0, 3.0], [11.0, 3.0, 3.0, 3.0, 3.0])
    runs = [run for name in ("SGD", "SCott") for run in seed_records(name, [1.0, 2.0])]
    both = pd.concat([SGD, scott])
    table = compute_reach(summarize_runs(runs_frame(*runs)), both, tail=0.25)
    row = table[(table["optimizer"] == "SCott") & (table["loss"] == "training")].iloc[0]
    assert row["target"] == pytest.approx(4.5)
    assert row["seconds"] == pytest.approx(10 * 5.5 / 7)


def test_falling_plain_optimizer_needs_all_of_its_own_time():
    row = reach_of("SGD", SGD)
    assert row["baseline"] == "SGD"
    assert row["seconds_share"] == row["gradients_share"] == pytest.approx(1.0)


def test_plain_optimizer_that_was_flat_needs_less():
    flat = curves_of("SGD", [9.0, 3.0, 3.0, 3.0, 3.0])
    assert reach_of("SGD", flat)["seconds_share"] == pytest.approx(0.25)
    noisy = curves_of("SGD", [9.0, 2.9, 3.2, 2.8, 3.0])  # 2.975 on average
    assert reach_of("SGD", noisy)["seconds_share"] == pytest.approx(
        0.25 * (9.0 - 3.0) / (9.0 - 2.9)
    )


def test_higher_loss_does_not_reach_it():
    row = reach_of("SCott", SGD, curves_of("SCott", 2 * [9.0, 6.0, 5.0, 4.5, 4.1]))
    assert row["note"] == "not reached"
    assert math.isnan(row["seconds_share"])
    assert row["target"] == pytest.approx(4.0)


def test_single_lucky_measurement_does_not_count():
    lucky = curves_of("SCott", [10.0, 8.0, 1.0, 8.0, 6.0, 4.5, 4.2, 4.1, 3.0])
    row = reach_of("SCott", SGD, lucky)
    # From 4.1 at 7/8 of the time to 3 at its end, 4 is met after 1/11 of the way.
    assert row["seconds_share"] == pytest.approx(7 / 8 + 1 / 8 / 11)


def test_unfinished_seeds_do_not_reach_it():
    sgd, scott = seed_records("SGD", [1.0, 2.0]), seed_records("SCott", [1.0])
    lost = [run_record("SCott", 1, status="diverged")]
    fast = curves_of("SCott", [9.0, 1.0, 1.0, 1.0, 1.0])
    row = reach_of("SCott", SGD, fast, runs=[*sgd, *scott, *lost])
    assert row["note"] == "SCott: 1 of 2 diverged"
    assert math.isnan(row["seconds_share"])
    assert row["target"] == pytest.approx(4.0)
    lost = [run_record("SGD", 2, status="failed")]
    row = reach_of("SCott", SGD, fast, runs=[*sgd, *scott, *lost])
    assert row["note"] == "SGD: 1 of 3 failed"
    assert math.isnan(row["target"])


def test_runs_without_curves_have_no_share():
    runs = [run for name in ("SGD", "SCott") for run in seed_records(name, [1.0, 2.0])]
    assert reach_of("SCott", SGD, runs=runs)["note"] == "SCott: no curve"


def test_median_takes_the_higher_of_two_and_counts_what_was_not_reached():
    assert median_share(pd.Series([0.5, 0.2, 0.9])) == 0.5
    assert median_share(pd.Series([0.5, 0.2])) == 0.5
    assert median_share(pd.Series([0.5, math.nan, math.nan])) == math.inf
    assert math.isnan(median_share(pd.Series([], dtype=float)))
