"""The report of an outer loop: losses, norms, and what a rollback makes of them."""

from __future__ import annotations

import math

import pytest
import torch

from pts_scott.method.protocol import LoopReport, Step


def report(losses: list[float], norms: list[float] | None = None) -> LoopReport:
    windows = torch.zeros(1, dtype=torch.long)
    pairs = zip(losses, norms or [1.0] * len(losses), strict=True)
    return LoopReport([Step(windows, *map(torch.tensor, pair)) for pair in pairs])


def test_report_has_the_losses_and_the_last_norm():
    loop = report([3.0, 2.0], [5.0, 4.0])
    assert loop.losses == [3.0, 2.0]
    assert loop.squared_norm == 4.0
    assert loop.is_finite


def test_loop_without_steps_is_finite():
    loop = LoopReport([])
    assert loop.is_finite
    assert loop.losses == []
    assert math.isnan(loop.squared_norm)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nonfinite_loss_or_norm_is_noticed(bad):
    assert not report([1.0, bad]).is_finite
    assert not report([1.0, 1.0], [bad, 1.0]).is_finite


def test_rollback_hides_the_losses_of_nonfinite_steps():
    loop = report([3.0, 2.0, 1.0], [1.0, math.inf, 1.0]).as_rolled_back()
    assert loop.rolled_back
    assert loop.losses == pytest.approx([3.0, math.nan, 1.0], nan_ok=True)


def test_rollback_without_a_nonfinite_number_blames_the_last_step():
    loop = report([3.0, 2.0]).as_rolled_back()
    assert loop.losses == pytest.approx([3.0, math.nan], nan_ok=True)
