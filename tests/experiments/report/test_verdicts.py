"""Verdicts follow Welch's test, divergence and failures; sentences count them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from helpers.small_results import run_record, runs_frame, seed_records

from pts_scott.experiments.report import verdicts as module
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
    assert row["verdict"] == "level"
    # Variance 2 in place of 8, over 2 seeds: √(1/3 + 1), and −4 are 3.46 of them.
    runs = [*seed_records("SGD", [5.0, 7.0]), *seed_records("SCott", [1.0, 2.0, 3.0])]
    assert verdict_of(runs)["errors"] == pytest.approx(-4 / math.sqrt(4 / 3))
    assert verdict_of(runs)["verdict"] == "level"  # with 1.7 degrees of freedom
    runs = [
        *seed_records("SGD", [5.9, 6.0, 6.1]),
        *seed_records("SCott", [1.0, 2.0, 3.0]),
    ]
    assert verdict_of(runs)["verdict"] == "below"
    runs = [
        *seed_records("SGD", [1.0, 2.0, 3.0]),
        *seed_records("SCott", [5.9, 6.0, 6.1]),
    ]
    assert verdict_of(runs)["verdict"] == "above"


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
        rejected += row["verdict"] != "level"
    # At most 0.05 of 400 plus 3 standard deviations; Welch's test is conservative for
    # so few seeds.
    assert rejected <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_training_and_test_loss_have_separate_verdicts():
    sgd = [run_record("SGD", n, train=5 + n / 10, test=1 + n / 10) for n in range(3)]
    scott = [run_record("SCott", n, train=1 + n / 10, test=5 + n / 10) for n in range(3)]
    assert verdict_of([*sgd, *scott], "training")["verdict"] == "below"
    assert verdict_of([*sgd, *scott], "test")["verdict"] == "above"


def test_divergence_loses_and_failure_is_undecided():
    low, high = [1.0, 1.1], [5.0, 5.1]
    broken = {s: [run_record("SCott", 9, status=s)] for s in ("diverged", "failed")}
    sgd, scott = seed_records("SGD", high), seed_records("SCott", low)
    assert verdict_of([*sgd, *scott])["verdict"] == "below"
    lost = verdict_of([*sgd, *scott, *broken["diverged"]])
    assert lost["verdict"] == "above"
    assert lost["note"] == "SCott: 1 of 3 diverged"
    assert verdict_of([*sgd, *scott, *broken["failed"]])["verdict"] == "undecided"
    both = [*sgd, run_record("SGD", 9, status="diverged"), *scott, *broken["diverged"]]
    assert verdict_of(both)["verdict"] == "undecided"
    worse = [
        *seed_records("SGD", low),
        run_record("SGD", 9, status="diverged"),
        *seed_records("SCott", high),
    ]
    assert verdict_of(worse)["verdict"] == "below"


def test_one_seed_is_undecided_and_identical_seeds_are_decided():
    single = [*seed_records("SGD", [5.0]), *seed_records("SCott", [1.0])]
    assert verdict_of(single)["verdict"] == "undecided"
    same = [*seed_records("SGD", [5.0, 5.0]), *seed_records("SCott", [5.0, 5.0])]
    assert verdict_of(same)["verdict"] == "level"
    certain = [*seed_records("SGD", [5.0, 5.0]), *seed_records("SCott", [1.0, 1.0])]
    assert verdict_of(certain)["errors"] == -math.inf
    assert verdict_of(certain)["verdict"] == "below"


def test_best_stratified_optimizer_is_compared_with_the_best_other():
    runs = [
        *seed_records("SGD", [3.0, 3.1]),
        *seed_records("Adam", [2.0, 2.1]),
        *seed_records("S-Adam", [0.0, 0.1]),
        run_record("S-Adam", 2, status="diverged"),  # so it is not the best of the others
        *seed_records("stratified SGD", [1.0, 1.1]),
        *seed_records("stratified Adam", [1.5, 1.6]),
    ]
    comparison = "the best stratified mini-batch optimizer against the best of the others"
    row = verdict_of(runs, comparison=comparison)
    assert (row["challenger"], row["baseline"]) == ("stratified SGD", "Adam")
    assert row["verdict"] == "below"
    sentences = verdict_sentences(compute_verdicts(runs_frame(*runs))).splitlines()
    has_caveat = ["both are the lowest of several" in sentence for sentence in sentences]
    assert has_caveat == ["the best of the others" in sentence for sentence in sentences]
    assert sum(has_caveat) == 2
    assert sentences[-1].endswith("so the test is only indicative.")


def test_stratified_method_counts_under_any_name():
    runs = [
        *seed_records("SGD", [3.0, 3.1]),
        *seed_records("b = 4", [1.0, 1.1], method="stratified"),
    ]
    comparison = "the best stratified mini-batch optimizer against the best of the others"
    row = verdict_of(runs, comparison=comparison)
    assert (row["challenger"], row["baseline"]) == ("b = 4", "SGD")


def test_sentences_count_settings_by_verdict():
    cases = {"below": ([5, 5.1], [1, 1.1]), "above": ([1, 1.1], [5, 5.1])}
    cases["level"] = ([1, 1.1], [1, 1.1])
    wins = ("below", "below", "below", "level", "above", "above")
    runs = []
    for number, case in enumerate(wins):
        runs += seed_records("SGD", cases[case][0], setting=f"s{number}")
        runs += seed_records("SCott", cases[case][1], setting=f"s{number}")
    runs += seed_records("SGD", [1, 1.1], setting="s7")
    runs += seed_records("SCott", [0, 0], setting="s7", status="diverged")
    runs += seed_records("Adam", [1, 1.1], setting="s8")  # no pair
    text = verdict_sentences(compute_verdicts(runs_frame(*runs)))
    assert text.splitlines() == [
        "By training loss, SCott ended below SGD in 3 of 7 settings, level in 1 "
        "(p ≥ 0.05 in Welch's test), above in 3; 1 of these by divergence.",
        "By test loss, SCott ended below SGD in 3 of 7 settings, level in 1, above in 3; "
        "1 of these by divergence.",
    ]
    runs += [
        *seed_records("SGD", [1.0], setting="s9"),
        *seed_records("SCott", [1.0], setting="s9"),
    ]
    text = verdict_sentences(compute_verdicts(runs_frame(*runs)))
    assert "3 of 8 settings" in text
    assert "undecided in 1 (one seed has no standard error)" in text


def test_sentences_state_the_significance_level(monkeypatch):
    # Variances 0.5 over 2 seeds: 2 / √0.5 = 2.8 standard errors, of which p is 0.106.
    runs = runs_frame(
        *seed_records("SGD", [3.0, 4.0]), *seed_records("SCott", [1.0, 2.0])
    )
    both = pd.concat([runs, runs.assign(setting="another")])
    assert "level in 2 (p ≥ 0.05 " in verdict_sentences(compute_verdicts(both))
    monkeypatch.setattr(module, "SIGNIFICANCE_LEVEL", 0.2)
    assert "level in 0 (p ≥ 0.2 " in verdict_sentences(compute_verdicts(both))


def test_single_setting_has_a_sentence_without_counts(monkeypatch):
    runs = runs_frame(
        *seed_records("SGD", [3.0, 4.0]), *seed_records("SCott", [1.0, 2.0])
    )
    assert verdict_sentences(compute_verdicts(runs)).splitlines()[0] == (
        "By training loss, SCott ended level with SGD (p ≥ 0.05 in Welch's test)."
    )
    monkeypatch.setattr(module, "SIGNIFICANCE_LEVEL", 0.2)
    first, second = verdict_sentences(compute_verdicts(runs)).splitlines()
    assert first == "By training loss, SCott ended below SGD."
    assert second == "By test loss, SCott ended below SGD."
