"""Verdicts follow Welch's test, divergence and failures; sentences count them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from helpers.small_results import run_record, runs_frame, seed_records

from pts_scott.experiments.report import welch
from pts_scott.experiments.report.verdicts import compute_verdicts, verdict_sentences


def verdict_of(runs, loss="training", comparison="SCott against SGD"):
    table = compute_verdicts(runs_frame(*runs))
    rows = table[(table["loss"] == loss) & (table["comparison"] == comparison)]
    (row,) = rows.to_dict("records")
    return row


def test_difference_is_given_in_standard_errors():
    # Variances 1 over 3 seeds and 8 over 2: √(1/3 + 8/2) = √(13/3).
    runs = [*seed_records("SGD", [4.0, 8.0]), *seed_records("SCott", [1.0, 2.0, 3.0])]
    row = verdict_of(runs)
    assert (row["challenger"], row["baseline"]) == ("SCott", "SGD")
    assert (row["challenger_mean"], row["baseline_mean"]) == (2, 6)
    assert row["difference"] == pytest.approx(-4)
    assert row["standard_error"] == pytest.approx(math.sqrt(13 / 3))
    assert row["errors"] == pytest.approx(-4 / math.sqrt(13 / 3))  # −1.92
    assert row["verdict"] == "tied"
    # Variance 2 in place of 8, over 2 seeds: √(1/3 + 1), and −4 are 3.46 of them.
    runs = [*seed_records("SGD", [5.0, 7.0]), *seed_records("SCott", [1.0, 2.0, 3.0])]
    assert verdict_of(runs)["errors"] == pytest.approx(-4 / math.sqrt(4 / 3))
    assert verdict_of(runs)["verdict"] == "tied"  # with 1.7 degrees of freedom
    runs = [
        *seed_records("SGD", [5.9, 6.0, 6.1]),
        *seed_records("SCott", [1.0, 2.0, 3.0]),
    ]
    assert verdict_of(runs)["verdict"] == "better"
    runs = [
        *seed_records("SGD", [1.0, 2.0, 3.0]),
        *seed_records("SCott", [5.9, 6.0, 6.1]),
    ]
    assert verdict_of(runs)["verdict"] == "worse"


def test_p_value_equals_welchs_test_of_scipy():
    one, other = [1.0, 2.0, 4.0, 4.5, 7.0], [3.0, 3.5, 9.0, 4.0]
    row = verdict_of([*seed_records("SGD", other), *seed_records("SCott", one)])
    expected = scipy.stats.ttest_ind(one, other, equal_var=False).pvalue
    assert row["p_value"] == pytest.approx(expected, rel=1e-12)


def test_false_positive_rate_is_at_most_the_significance_level():
    generator = np.random.default_rng(0)
    rejected = 0
    for _ in range(400):
        one, other = generator.standard_normal((2, 5))
        row = verdict_of([*seed_records("SGD", other), *seed_records("SCott", one)])
        rejected += row["verdict"] != "tied"
    # At most 0.05 of 400 plus 3 standard deviations; Welch's test is conservative for
    # so few seeds.
    assert rejected <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_training_and_test_loss_have_separate_verdicts():
    sgd = [run_record("SGD", n, train=5 + n / 10, test=1 + n / 10) for n in range(3)]
    scott = [run_record("SCott", n, train=1 + n / 10, test=5 + n / 10) for n in range(3)]
    assert verdict_of([*sgd, *scott], "training")["verdict"] == "better"
    assert verdict_of([*sgd, *scott], "test")["verdict"] == "worse"


def test_divergence_loses_and_failure_is_undecided():
    low, high = [1.0, 1.1], [5.0, 5.1]
    broken = {s: [run_record("SCott", 9, status=s)] for s in ("diverged", "failed")}
    sgd, scott = seed_records("SGD", high), seed_records("SCott", low)
    assert verdict_of([*sgd, *scott])["verdict"] == "better"
    lost = verdict_of([*sgd, *scott, *broken["diverged"]])
    assert lost["verdict"] == "worse"
    assert lost["note"] == "SCott: 1 of 3 diverged"
    assert verdict_of([*sgd, *scott, *broken["failed"]])["verdict"] == "undecided"
    both = [*sgd, run_record("SGD", 9, status="diverged"), *scott, *broken["diverged"]]
    assert verdict_of(both)["verdict"] == "undecided"
    worse = [
        *seed_records("SGD", low),
        run_record("SGD", 9, status="diverged"),
        *seed_records("SCott", high),
    ]
    assert verdict_of(worse)["verdict"] == "better"


def test_one_seed_is_undecided_and_identical_seeds_are_decided():
    single = [*seed_records("SGD", [5.0]), *seed_records("SCott", [1.0])]
    assert verdict_of(single)["verdict"] == "undecided"
    same = [*seed_records("SGD", [5.0, 5.0]), *seed_records("SCott", [5.0, 5.0])]
    assert verdict_of(same)["verdict"] == "tied"
    certain = [*seed_records("SGD", [5.0, 5.0]), *seed_records("SCott", [1.0, 1.0])]
    assert verdict_of(certain)["errors"] == -math.inf
    assert verdict_of(certain)["verdict"] == "better"


def test_every_optimizer_is_compared_with_the_plain_one_of_its_update_rule():
    runs = [
        *seed_records("SGD", [3.0, 3.1]),
        *seed_records("auto SGD", [1.0, 1.1], method="auto", rule="sgd"),
        *seed_records("Adam", [2.0, 2.1]),
        *seed_records("auto Adam", [2.0, 2.1], method="auto", rule="adam"),
        *seed_records("without a partner", [2.0, 2.1], method="auto", rule="adamw"),
    ]
    found = compute_verdicts(runs_frame(*runs)).query("loss == 'test'")
    assert list(found["comparison"]) == ["auto SGD against SGD", "auto Adam against Adam"]
    assert list(found["verdict"]) == ["better", "tied"]


def test_sentences_count_settings_by_verdict():
    cases = {"better": ([5, 5.1], [1, 1.1]), "worse": ([1, 1.1], [5, 5.1])}
    cases["tied"] = ([1, 1.1], [1, 1.1])
    wins = ("better", "better", "better", "tied", "worse", "worse")
    runs = []
    for number, case in enumerate(wins):
        runs += seed_records("SGD", cases[case][0], setting=f"s{number}")
        runs += seed_records("SCott", cases[case][1], setting=f"s{number}")
    runs += seed_records("SGD", [1, 1.1], setting="s7")
    runs += seed_records("SCott", [0, 0], setting="s7", status="diverged")
    runs += seed_records("Adam", [1, 1.1], setting="s8")  # no pair
    text = verdict_sentences(compute_verdicts(runs_frame(*runs)))
    assert text.splitlines() == [
        "By training loss, SCott ended better than SGD in 3 of 7 settings, tied in 1 "
        "(p ≥ 0.05 in Welch's test), worse in 3; 1 of these by divergence.",
        "By test loss, SCott ended better than SGD in 3 of 7 settings, tied in 1, worse "
        "in 3; 1 of these by divergence.",
    ]
    runs += [
        *seed_records("SGD", [1.0], setting="s9"),
        *seed_records("SCott", [1.0], setting="s9"),
    ]
    text = verdict_sentences(compute_verdicts(runs_frame(*runs)))
    assert "3 of 8 settings" in text
    assert "undecided in 1 (one seed has no standard error)" in text


def test_sentence_about_settings_that_agree_is_short():
    runs = []
    for number in range(3):
        runs += seed_records("SGD", [5, 5.1], setting=f"s{number}")
        runs += seed_records("SCott", [1, 1.1], setting=f"s{number}")
    text = verdict_sentences(compute_verdicts(runs_frame(*runs)))
    first = text.splitlines()[0]
    assert first == "By training loss, SCott ended better than SGD in all 3 settings."
    runs += [run_record("SGD", 2, setting="s0", status="diverged")]
    text = verdict_sentences(compute_verdicts(runs_frame(*runs)))
    assert "in 3 of 3 settings" in text
    assert "1 of these by divergence" in text


def test_sentences_state_the_significance_level(monkeypatch):
    # Variances 0.5 over 2 seeds: 2 / √0.5 = 2.8 standard errors, of which p is 0.106.
    runs = runs_frame(
        *seed_records("SGD", [3.0, 4.0]), *seed_records("SCott", [1.0, 2.0])
    )
    both = pd.concat([runs, runs.assign(setting="another")])
    text = verdict_sentences(compute_verdicts(both))
    assert "SCott tied with SGD in both settings (p ≥ 0.05 in Welch's test)." in text
    monkeypatch.setattr(welch, "SIGNIFICANCE_LEVEL", 0.2)
    text = verdict_sentences(compute_verdicts(both))
    assert "SCott ended better than SGD in both settings." in text
    tied = runs_frame(*seed_records("SGD", [3, 4]), *seed_records("SCott", [3, 4]))
    text = verdict_sentences(compute_verdicts(tied))
    assert text.count("(p ≥ 0.2 in Welch's test)") == 1


def test_single_setting_has_a_sentence_without_counts(monkeypatch):
    runs = runs_frame(
        *seed_records("SGD", [3.0, 4.0]), *seed_records("SCott", [1.0, 2.0])
    )
    assert verdict_sentences(compute_verdicts(runs)).splitlines()[0] == (
        "By training loss, SCott tied with SGD (p ≥ 0.05 in Welch's test)."
    )
    monkeypatch.setattr(welch, "SIGNIFICANCE_LEVEL", 0.2)
    first, second = verdict_sentences(compute_verdicts(runs)).splitlines()
    assert first == "By training loss, SCott ended better than SGD."
    assert second == "By test loss, SCott ended better than SGD."


def straight_curves(optimizer, slopes, gradients_per_step=1, points=5):
    """Return curves whose loss falls from 10 by a slope per step, one per seed."""
    step = 25.0 * np.arange(points)
    return pd.concat(
        pd.DataFrame(
            {
                "setting": "mlp-traffic-M1",
                "optimizer": optimizer,
                "seed": seed,
                "status": "finished",
                "step": step,
                "gradients": gradients_per_step * step,
                "seconds": np.linspace(0, 30, points),
                "train_loss": 10 - slope * step,
                "test_loss": 20 - slope * step,
            }
        )
        for seed, slope in enumerate(slopes)
    )


def test_curves_are_compared_at_equal_steps_and_gradients():
    runs = [*seed_records("SGD", [1.0, 1.0]), *seed_records("SCott", [2.0, 2.0])]
    curves = pd.concat(
        [
            straight_curves("SGD", [0.040, 0.042]),  # 100 steps of one gradient
            straight_curves("SCott", [0.050, 0.052], gradients_per_step=2, points=4),
        ]
    )
    found = compute_verdicts(runs_frame(*runs), curves).set_index(["at", "loss"])
    assert found.loc[("end", "training"), "verdict"] == "worse"
    # Both reach 75 steps; 10 − 75 · 0.051 against 10 − 75 · 0.041.
    steps = found.loc[("steps", "training")]
    assert steps["challenger_mean"] == pytest.approx(6.175)
    assert steps["baseline_mean"] == pytest.approx(6.925)
    assert steps["standard_error"] == pytest.approx(75 * 0.001 * math.sqrt(2))
    assert steps["verdict"] == "better"
    assert found.loc[("steps", "test"), "challenger_mean"] == pytest.approx(16.175)
    # Both reach 100 gradients: 50 steps of SCott against 100 of SGD.
    gradients = found.loc[("gradients", "training")]
    assert gradients["challenger_mean"] == pytest.approx(10 - 50 * 0.051)
    assert gradients["baseline_mean"] == pytest.approx(10 - 100 * 0.041)
    assert gradients["verdict"] == "worse"


def test_losses_at_equal_costs_can_be_means_over_the_last_part():
    runs = [*seed_records("SGD", [1.0, 1.0]), *seed_records("SCott", [2.0, 2.0])]
    curves = pd.concat(
        [straight_curves("SGD", [0.04, 0.042]), straight_curves("SCott", [0.05, 0.052])]
    )
    found = compute_verdicts(runs_frame(*runs), curves, tail=0.2)
    steps = found.set_index(["at", "loss"]).loc[("steps", "training")]
    assert steps["challenger_mean"] == pytest.approx(10 - 90 * 0.051)
    assert steps["baseline_mean"] == pytest.approx(10 - 90 * 0.041)


def test_nothing_is_compared_before_the_second_measurement():
    runs = [*seed_records("SGD", [1.0, 1.0]), *seed_records("SCott", [2.0, 2.0])]
    curves = pd.concat(
        [
            straight_curves("SGD", [0.040, 0.042], gradients_per_step=16),
            straight_curves("SCott", [0.050, 0.052]),  # 100 gradients; SGD's first: 400
        ]
    )
    found = compute_verdicts(runs_frame(*runs), curves).set_index(["at", "loss"])
    assert found.loc[("gradients", "test"), "verdict"] == "undecided"
    assert found.loc[("gradients", "test"), "note"] == "too few measurements"
    assert found.loc[("steps", "test"), "verdict"] == "better"
