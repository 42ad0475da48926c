"""Verdicts: seeds are summed up as they are, and only what is lower is called so."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from helpers.small_results import frame, record, seeds

from pts_scott.experiments.report import verdicts as module
from pts_scott.experiments.report.verdicts import summary, verdict_sentences, verdicts


def test_mean_and_deviation_are_those_of_the_seeds_that_finished():
    runs = seeds("SGD", [1.0, 2.0, 6.0])
    runs += [record("SGD", 3, 50, 50, "diverged"), record("SGD", 4, 50, 50, "failed")]
    (row,) = summary(frame(*runs)).to_dict("records")
    assert (row["seeds"], row["finished"], row["diverged"], row["failed"]) == (5, 3, 1, 1)
    assert row["outcome"] == "1 of 5 diverged, 1 of 5 failed"
    assert row["train_loss_mean"] == pytest.approx(3)
    assert row["train_loss_std"] == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert row["test_loss_mean"] == pytest.approx(4)
    assert row["CRPS"] == pytest.approx(4)
    assert row["steps"] == pytest.approx(1001)


def test_a_finished_run_without_a_loss_spoils_the_mean():
    runs = [record("SGD", 0, 1.0), record("SGD", 1, math.nan)]
    assert math.isnan(summary(frame(*runs))["train_loss_mean"][0])


def test_no_seed_is_left_out():
    runs = [
        *seeds("SGD", [1.0, 2.0], setting="a"),
        *seeds("my own", [1.0], setting="a", status="failed"),
        *seeds("SGD", [1.0, 2.0, 3.0], setting="b", status="diverged"),
    ]
    cells = summary(frame(*runs))
    counts = cells[["seeds", "finished", "diverged", "failed"]].to_numpy().tolist()
    assert counts == [[2, 2, 0, 0], [1, 0, 0, 1], [3, 0, 3, 0]]


def verdict_of(runs, loss="training", comparison="SCott against SGD"):
    table = verdicts(frame(*runs))
    rows = table[(table["loss"] == loss) & (table["comparison"] == comparison)]
    (row,) = rows.to_dict("records")
    return row


def test_the_difference_is_measured_in_its_standard_error():
    # Variances 1 over 3 seeds and 8 over 2: √(1/3 + 8/2) = √(13/3).
    runs = [*seeds("SGD", [4.0, 8.0]), *seeds("SCott", [1.0, 2.0, 3.0])]
    row = verdict_of(runs)
    assert (row["challenger"], row["baseline"]) == ("SCott", "SGD")
    assert (row["challenger_mean"], row["baseline_mean"]) == (2, 6)
    assert row["difference"] == pytest.approx(-4)
    assert row["standard_error"] == pytest.approx(math.sqrt(13 / 3))
    assert row["errors"] == pytest.approx(-4 / math.sqrt(13 / 3))  # −1.92
    assert row["verdict"] == "level"
    # Variance 2 in place of 8, over 2 seeds: √(1/3 + 1), and −4 are 3.46 of them.
    runs = [*seeds("SGD", [5.0, 7.0]), *seeds("SCott", [1.0, 2.0, 3.0])]
    assert verdict_of(runs)["errors"] == pytest.approx(-4 / math.sqrt(4 / 3))
    assert verdict_of(runs)["verdict"] == "level"  # with 1.7 degrees of freedom
    runs = [*seeds("SGD", [5.9, 6.0, 6.1]), *seeds("SCott", [1.0, 2.0, 3.0])]
    assert verdict_of(runs)["verdict"] == "below"
    runs = [*seeds("SGD", [1.0, 2.0, 3.0]), *seeds("SCott", [5.9, 6.0, 6.1])]
    assert verdict_of(runs)["verdict"] == "above"


def test_the_p_value_is_that_of_welchs_test():
    one, other = [1.0, 2.0, 4.0, 4.5, 7.0], [3.0, 3.5, 9.0, 4.0]
    row = verdict_of([*seeds("SGD", other), *seeds("SCott", one)])
    expected = scipy.stats.ttest_ind(one, other, equal_var=False).pvalue
    assert row["p_value"] == pytest.approx(expected, rel=1e-12)


def test_equals_are_called_different_as_often_as_the_level_says():
    generator = np.random.default_rng(0)
    called = 0
    for _ in range(400):
        one, other = generator.standard_normal((2, 5))
        row = verdict_of([*seeds("SGD", other), *seeds("SCott", one)])
        called += row["verdict"] != "level"
    # Welch's test is a little careful for so few: 0.05 of 400, ± 3 standard deviations.
    assert called <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_training_and_test_are_judged_apart():
    sgd = [record("SGD", n, train=5 + n / 10, test=1 + n / 10) for n in range(3)]
    scott = [record("SCott", n, train=1 + n / 10, test=5 + n / 10) for n in range(3)]
    assert verdict_of([*sgd, *scott], "training")["verdict"] == "below"
    assert verdict_of([*sgd, *scott], "test")["verdict"] == "above"


def test_who_diverged_loses_and_a_failure_decides_nothing():
    low, high = [1.0, 1.1], [5.0, 5.1]
    broken = {s: [record("SCott", 9, status=s)] for s in ("diverged", "failed")}
    sgd, scott = seeds("SGD", high), seeds("SCott", low)
    assert verdict_of([*sgd, *scott])["verdict"] == "below"
    lost = verdict_of([*sgd, *scott, *broken["diverged"]])
    assert lost["verdict"] == "above"
    assert lost["note"] == "SCott: 1 of 3 diverged"
    assert verdict_of([*sgd, *scott, *broken["failed"]])["verdict"] == "undecided"
    both = [*sgd, record("SGD", 9, status="diverged"), *scott, *broken["diverged"]]
    assert verdict_of(both)["verdict"] == "undecided"
    worse = [
        *seeds("SGD", low),
        record("SGD", 9, status="diverged"),
        *seeds("SCott", high),
    ]
    assert verdict_of(worse)["verdict"] == "below"


def test_one_seed_decides_nothing_and_equal_seeds_do():
    assert verdict_of([*seeds("SGD", [5.0]), *seeds("SCott", [1.0])])["verdict"] == (
        "undecided"
    )
    same = [*seeds("SGD", [5.0, 5.0]), *seeds("SCott", [5.0, 5.0])]
    assert verdict_of(same)["verdict"] == "level"
    certain = [*seeds("SGD", [5.0, 5.0]), *seeds("SCott", [1.0, 1.0])]
    assert verdict_of(certain)["errors"] == -math.inf
    assert verdict_of(certain)["verdict"] == "below"


def test_stratified_mini_batches_meet_the_best_of_the_others():
    runs = [
        *seeds("SGD", [3.0, 3.1]),
        *seeds("Adam", [2.0, 2.1]),
        *seeds("S-Adam", [0.0, 0.1]),
        record("S-Adam", 2, status="diverged"),  # so it is not the best of the others
        *seeds("stratified SGD", [1.0, 1.1]),
        *seeds("stratified Adam", [1.5, 1.6]),
    ]
    comparison = "the best stratified mini-batch optimizer against the best of the others"
    row = verdict_of(runs, comparison=comparison)
    assert (row["challenger"], row["baseline"]) == ("stratified SGD", "Adam")
    assert row["verdict"] == "below"
    sentences = verdict_sentences(verdicts(frame(*runs))).splitlines()
    told = ["both are the lowest of several" in sentence for sentence in sentences]
    assert told == ["the best of the others" in sentence for sentence in sentences]
    assert sum(told) == 2
    assert sentences[-1].endswith("so the test is a guide only.")


def test_a_stratified_optimizer_of_any_name_is_one():
    runs = [
        *seeds("SGD", [3.0, 3.1]),
        *seeds("b = 4", [1.0, 1.1], method="stratified"),
    ]
    comparison = "the best stratified mini-batch optimizer against the best of the others"
    row = verdict_of(runs, comparison=comparison)
    assert (row["challenger"], row["baseline"]) == ("b = 4", "SGD")


def test_sentences_count_the_settings():
    cases = {"below": ([5, 5.1], [1, 1.1]), "above": ([1, 1.1], [5, 5.1])}
    cases["level"] = ([1, 1.1], [1, 1.1])
    wins = ("below", "below", "below", "level", "above", "above")
    runs = []
    for number, case in enumerate(wins):
        runs += seeds("SGD", cases[case][0], setting=f"s{number}")
        runs += seeds("SCott", cases[case][1], setting=f"s{number}")
    runs += seeds("SGD", [1, 1.1], setting="s7")
    runs += seeds("SCott", [0, 0], setting="s7", status="diverged")
    runs += seeds("Adam", [1, 1.1], setting="s8")  # no pair
    text = verdict_sentences(verdicts(frame(*runs)))
    assert text.splitlines() == [
        "By training loss, SCott ended below SGD in 3 of 7 settings, level in 1 "
        "(p ≥ 0.05 in Welch's test), above in 3; 1 of these by divergence.",
        "By test loss, SCott ended below SGD in 3 of 7 settings, level in 1, above in 3; "
        "1 of these by divergence.",
    ]
    runs += [*seeds("SGD", [1.0], setting="s9"), *seeds("SCott", [1.0], setting="s9")]
    text = verdict_sentences(verdicts(frame(*runs)))
    assert "3 of 8 settings" in text
    assert "undecided in 1 (one seed has no standard error)" in text


def test_the_sentences_tell_the_level_that_was_used(monkeypatch):
    # Variances 0.5 over 2 seeds: 2 / √0.5 = 2.8 standard errors, of which p is 0.106.
    runs = frame(*seeds("SGD", [3.0, 4.0]), *seeds("SCott", [1.0, 2.0]))
    both = pd.concat([runs, runs.assign(setting="another")])
    assert "level in 2 (p ≥ 0.05 " in verdict_sentences(verdicts(both))
    monkeypatch.setattr(module, "LEVEL", 0.2)
    assert "level in 0 (p ≥ 0.2 " in verdict_sentences(verdicts(both))


def test_a_single_setting_is_told_in_plain_words(monkeypatch):
    runs = frame(*seeds("SGD", [3.0, 4.0]), *seeds("SCott", [1.0, 2.0]))
    assert verdict_sentences(verdicts(runs)).splitlines()[0] == (
        "By training loss, SCott ended level with SGD (p ≥ 0.05 in Welch's test)."
    )
    monkeypatch.setattr(module, "LEVEL", 0.2)
    first, second = verdict_sentences(verdicts(runs)).splitlines()
    assert first == "By training loss, SCott ended below SGD."
    assert second == "By test loss, SCott ended below SGD."
