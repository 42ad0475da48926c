"""Each optimizer is compared with the plain one of its update rule."""

from __future__ import annotations

import pytest
from helpers.small_results import run_record, runs_frame

from pts_scott.experiments.report.families import find_pairs, plain_partner
from pts_scott.experiments.report.summary import summarize_runs

PLAIN_ADAM = {"method": "plain", "rule": "adam"}


def cells_of(*records):
    return summarize_runs(runs_frame(*records)).set_index("optimizer")


@pytest.fixture
def cells():
    """The optimizers of a comparison at M = 1, where stratified steps have 16 windows."""
    return cells_of(
        run_record("SGD"),
        run_record("SCSG"),
        run_record("SCott"),
        run_record("Adam"),
        run_record("Adam, B windows", **PLAIN_ADAM, windows_per_step=16),
        run_record("a reshuffled Adam", **PLAIN_ADAM, replacement=False),
        run_record("auto Adam", method="auto", rule="adam"),
        run_record("stratified Adam", windows_per_step=16),
        run_record("alone", method="auto", rule="adamw"),
    )


def test_partner_is_plain_and_has_the_same_update_rule(cells):
    assert plain_partner(cells, "SCott") == "SGD"
    assert plain_partner(cells, "auto Adam") == "Adam"
    assert plain_partner(cells, "a reshuffled Adam") == "Adam"
    assert plain_partner(cells, "Adam") == "Adam"
    assert plain_partner(cells, "alone") is None


def test_partner_has_m_windows_drawn_with_replacement_under_any_name():
    cells = cells_of(
        run_record("a: wide", **PLAIN_ADAM, windows_per_step=16),
        run_record("b: reshuffled", **PLAIN_ADAM, replacement=False),
        run_record("c", **PLAIN_ADAM),
        run_record("d", method="auto", rule="adam"),
    )
    assert plain_partner(cells, "d") == "c"
    assert plain_partner(cells.drop(index="c"), "d") == "a: wide"


def test_optimizer_without_a_known_rule_has_no_partner():
    cells = cells_of(run_record("mine", method="plain"), run_record("yours"))
    assert plain_partner(cells, "yours") is None


def test_steps_of_more_windows_are_also_compared_with_plain_ones_of_as_many(cells):
    assert find_pairs(cells) == [
        ("SCSG", "SGD"),
        ("SCott", "SGD"),
        ("stratified Adam", "Adam"),
        ("stratified Adam", "Adam, B windows"),
        ("Adam, B windows", "Adam"),
        ("a reshuffled Adam", "Adam"),
        ("auto Adam", "Adam"),
        ("SCott", "SCSG"),
    ]
