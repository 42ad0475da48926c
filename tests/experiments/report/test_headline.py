"""The headline follows from the runs, whichever way they fall."""

from __future__ import annotations

import pandas as pd
import pytest
from helpers.small_results import loss_curve, run_record, runs_frame, seed_records

from pts_scott.experiments.report.headline import equal_budget, headline
from pts_scott.experiments.report.reach import compute_reach
from pts_scott.experiments.report.summary import summarize_runs
from pts_scott.experiments.report.verdicts import compute_verdicts

AUTO = {"method": "auto", "rule": "adam"}
LOW, HIGH = [1.0, 1.1, 1.2], [5.0, 5.1, 5.2]


def headline_of(runs, ends=None):
    """Return the headline; ``ends`` are the final losses of the optimizers' curves."""
    runs = runs_frame(*runs)
    curves = pd.concat(
        loss_curve(9.0, (ends or {}).get(run["optimizer"], 1.0)).assign(
            **run[["setting", "optimizer", "seed", "status"]]
        )
        for _, run in runs.iterrows()
    )
    summary = summarize_runs(runs)
    verdicts = compute_verdicts(runs, curves)
    reach = compute_reach(summary, curves)
    sentences = headline(runs, summary, verdicts, reach)
    return [sentence.replace("\u00a0", " ") for sentence in sentences]


def compared(*outcomes):
    """Return runs of auto Adam and Adam, one setting per outcome."""
    losses = {"better": (LOW, HIGH), "tied": (LOW, LOW), "worse": (HIGH, LOW)}
    runs = []
    for number, outcome in enumerate(outcomes):
        auto, plain = losses[outcome]
        runs += seed_records("auto Adam", auto, setting=f"s{number}", **AUTO)
        runs += seed_records("Adam", plain, setting=f"s{number}")
    return runs


def test_headline_counts_settings():
    first, second = headline_of(compared("better", "better", "tied"))
    assert first == (
        "At equal training time, by test loss, auto Adam ended better than Adam in 2 of "
        "3 settings, tied in 1, worse in 0 (Welch's test at p < 0.05)."
    )
    # Curves that are the same reach the end together.
    assert second == (
        "auto Adam reached Adam's final test loss in 100 % of Adam's training time "
        "(median of 3 settings)."
    )
    (first, _) = headline_of(compared("worse", "worse", "tied"))
    assert "better than Adam in 0 of 3 settings, tied in 1, worse in 2" in first


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("better", "auto Adam ended better than Adam"),
        ("tied", "auto Adam tied with Adam"),
        ("worse", "auto Adam ended worse than Adam"),
    ],
)
def test_single_setting_has_no_counts(outcome, words):
    first, second = headline_of(compared(outcome), {"Adam": 2.0})
    opening = "At equal training time, by test loss, "
    assert first == f"{opening}{words} (Welch's test at p < 0.05)."
    assert second.startswith("auto Adam reached Adam's final test loss in ")
    assert "median" not in second


def test_plain_optimizer_that_was_early_itself_is_mentioned():
    runs = runs_frame(*compared("tied"))
    flat = loss_curve(9.0, 1.0, points=5).assign(test_loss=[9.0, 2.0, 2.0, 2.0, 2.0])
    curves = pd.concat(
        flat.assign(**run[["setting", "optimizer", "seed", "status"]])
        for _, run in runs.iterrows()
    )
    summary = summarize_runs(runs)
    reach = compute_reach(summary, curves)
    _, second = headline(runs, summary, compute_verdicts(runs, curves), reach)
    assert second.replace("\u00a0", " ") == (
        "auto Adam reached Adam's final test loss in 25 % of Adam's training time (Adam "
        "itself: 25 %)."
    )


def test_slower_optimizer_is_said_not_to_reach_the_loss():
    _, second = headline_of(compared("worse", "worse"), {"auto Adam": 2.0})
    expected = "auto Adam did not reach Adam's final test loss in 2 of 2 settings."
    assert second == expected


def test_default_of_the_trainer_comes_first_and_a_few_follow():
    runs = [
        *seed_records("SGD", HIGH),
        *seed_records("SCSG", HIGH),
        *seed_records("SCott", LOW),
        *seed_records("stratified SGD", LOW),
        *compared("better"),
        *seed_records("auto SGD", LOW, method="auto", rule="sgd"),
    ]
    runs = [{**run, "setting": "one"} for run in runs]
    first, speed, *others = headline_of(runs)
    assert "auto Adam ended better than Adam" in first
    assert (
        speed
        == "auto Adam reached Adam's final test loss in 100 % of Adam's training time."
    )
    assert [sentence.split(" ended")[0] for sentence in others] == [
        *("auto SGD", "SCott", "stratified SGD")
    ]
    assert others[1] == (
        "SCott ended better than SGD; it reached SGD's final test loss in 100 % of SGD's "
        "training time."
    )


def test_one_seed_is_too_few_for_a_test():
    runs = [run_record("auto Adam", test=1.0, **AUTO), run_record("Adam", test=2.0)]
    assert headline_of(runs)[0] == (
        "At equal training time, by test loss, auto Adam ended lower than Adam, but one "
        "seed is too few to tell whether by chance."
    )
    runs = [run_record("auto Adam", test=3.0, **AUTO), run_record("Adam", test=2.0)]
    assert "auto Adam ended higher than Adam, but one seed" in headline_of(runs)[0]


def test_divergence_is_part_of_the_answer():
    lost = run_record("auto Adam", 3, status="diverged", setting="s0", **AUTO)
    first, *_ = headline_of([*compared("better"), lost])
    assert "auto Adam ended worse than Adam (auto Adam: 1 of 4 diverged)" in first


def test_without_a_plain_partner_the_lowest_is_named():
    assert headline_of(seed_records("SGD", [1.0, 2.0])) == [
        "SGD ended at a test NLL of 2.500 ± 0.707; there is nothing to compare it with."
    ]
    two = [*seed_records("SGD", HIGH), *seed_records("Adam", LOW)]
    assert headline_of(two) == [
        "Adam had the lowest mean of 2 optimizers, a test NLL of 2.100 ± 0.100."
    ]
    more = [{**run, "setting": f"s{n}"} for n in range(2) for run in two]
    more += seed_records("SGD", LOW, setting="s3") + seed_records(
        "Adam", HIGH, setting="s3"
    )
    (sentence,) = headline_of(more)
    lowest = "The lowest mean test loss of 3 settings: Adam in 2 and SGD in 1."
    assert sentence.startswith(lowest)
    only = [{**run, "setting": f"s{n}"} for n in range(2) for run in two[:3]]
    assert headline_of(only) == [
        "SGD finished in 2 settings; there is nothing to compare it with."
    ]
    assert headline_of(seed_records("SGD", [1.0], status="failed")) == [
        "No run has finished yet."
    ]


def test_budget_is_named_as_it_was():
    runs = runs_frame(*compared("tied"))
    assert equal_budget(runs) == "equal training time"
    by_gradients = runs.assign(time_budget=float("nan"), gradient_budget=1000.0)
    assert equal_budget(by_gradients) == "equal gradients"
    mixed = runs.assign(time_budget=range(len(runs)))
    assert equal_budget(mixed) == "the end of training"
