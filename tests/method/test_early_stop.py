"""The early stop: line 7 of Algorithm 2."""

from __future__ import annotations

import math

import pytest
import torch

from pts_scott.method.early_stop import EarlyStop, NeverStop
from pts_scott.method.protocol import Step


def step(squared_norm: float, skipped: bool = False, cancelled: bool = False) -> Step:
    windows = torch.zeros(1, dtype=torch.long)
    numbers = (torch.tensor(1.0), torch.tensor(squared_norm))
    return Step(windows, *numbers, skipped, cancelled)


def started(gamma: float | None) -> EarlyStop:
    early_stop = EarlyStop(gamma)
    early_stop.begin()
    return early_stop


def test_stops_at_gamma_times_the_first_squared_norm():
    early_stop = started(0.25)
    norms = [8.0, 9.0, 2.5, 2.0]
    assert [early_stop(step(n)) for n in norms] == [False, False, False, True]


def test_first_norm_belongs_to_its_outer_loop():
    early_stop = started(0.25)
    assert not early_stop(step(8.0))
    early_stop.begin()
    assert not early_stop(step(1.0)), "at the first step of a loop"
    assert not early_stop(step(0.3))
    assert early_stop(step(0.25))


def test_later_norms_do_not_replace_the_first_one():
    early_stop = started(0.5)
    norms = [8.0, 5.0, 4.5, 4.1]  # each above half of the first, not of a larger one
    assert not any(early_stop(step(n)) for n in norms)
    assert early_stop(step(4.0))


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_nonfinite_norm_ends_the_outer_loop(norm):
    early_stop = started(0.25)
    assert not early_stop(step(8.0))
    assert early_stop(step(norm))


@pytest.mark.parametrize("gamma", [None, 0.25])
@pytest.mark.parametrize("what", ["skipped", "cancelled"])
def test_skipped_or_cancelled_step_ends_the_outer_loop(gamma, what):
    early_stop = started(gamma)
    assert not early_stop(step(8.0))
    assert early_stop(step(8.0, **{what: True}))


def test_without_gamma_no_norm_ends_the_outer_loop():
    early_stop = started(None)
    assert not any(early_stop(step(n)) for n in (8.0, 1e-9, 0.0))


def test_methods_without_anchor_never_stop():
    never = NeverStop()
    never.begin()
    assert not never(step(0.0))
    assert not never(step(math.nan, skipped=True))
