"""Eager steps equal a plain loop in torch."""

from __future__ import annotations

import pytest
import torch
from helpers.engine import assemble
from helpers.odd_networks import DETERMINISTIC, Linear, RunningLevel
from helpers.series import wave_windows
from helpers.training import (
    UNFUSED,
    assert_same_parameters,
    fit_waves,
    plain_loop,
    tiny_network,
)
from torch import nn

from pts_scott.method.protocol import Sample


@pytest.mark.parametrize("optimizer", UNFUSED)
@pytest.mark.parametrize("network", [*DETERMINISTIC, RunningLevel])
def test_plain_steps_equal_a_plain_loop(network, optimizer):
    found = fit_waves(network(), optimizer=optimizer)
    expected = plain_loop(network(), optimizer)
    # Only the order of sums differs, in double precision.
    assert_same_parameters(found, expected, rtol=1e-8, atol=1e-10)


class UnusedHead(Linear):
    """Has a head that its loss does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Parameter(torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("method", ["plain", "scott", "stratified"])
@pytest.mark.usefixtures("traced")
def test_weight_decay_does_not_shrink_unused_parameters(method, compile):
    network = fit_waves(UnusedHead(), method=method, optimizer="adam", compile=compile)
    assert network.head.tolist() == [1.0, 1.0, 1.0]


def test_large_samples_are_summed_up_over_several_passes(monkeypatch):
    engine = assemble(tiny_network(), wave_windows(), "svrg").parts.engine
    sample = Sample(torch.arange(20), torch.rand(20, dtype=torch.float64))
    whole = engine.anchor(sample)
    monkeypatch.setattr("pts_scott.engine.eager.MAX_PASS", 7)
    for x, y in zip(engine.anchor(sample), whole, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-14)


def test_clipped_update_has_the_largest_norm():
    run = assemble(tiny_network(), wave_windows(), "plain", clip_gradient=1e-3)
    before = run.parameters
    step = run.outer_loop(1).steps[0]
    assert float(step.squared_norm) > 1e-6, "the norm is that of v, before clipping"
    squared = sum(
        # SGD's update is lr (v + weight_decay θ), with lr 0.1 and weight_decay 1e-3.
        float(((x - y) / 0.1 - 1e-3 * x).square().sum())
        for x, y in zip(before, run.parameters)
    )
    assert squared**0.5 == pytest.approx(1e-3, rel=1e-3)
