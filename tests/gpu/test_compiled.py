"""Compiled steps on the accelerator equal eager ones."""

from __future__ import annotations

import pytest
from helpers.accelerator import assert_same_parameters, fit_on, gpu_tests, precision_of
from helpers.training import TinyNetwork, tiny_network
from torch import nn

pytestmark = gpu_tests


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [("scott", "adam"), ("plain", "sgd"), ("stratified", "adagrad"), ("storm", "adamw")],
)
def test_compiled_steps_equal_eager_ones(device, method, optimizer):
    settings = {"method": method, "optimizer": optimizer, "gamma": None}
    expected = fit_on(device, inner_steps=20, **settings)
    found = fit_on(device, inner_steps=20, compile=True, **settings)
    assert found[1].compiled, found[1].compile_fallback
    assert not expected[1].compiled
    assert_same_parameters(found[0], expected[0])


class Dropout(TinyNetwork):
    """A network with dropout."""

    def loss(self, past_target, future_target):
        hidden = nn.functional.dropout(past_target, 0.3, self.training)
        return super().loss(hidden, future_target)


@pytest.mark.parametrize("method", ["scott", "plain"])
def test_compiled_steps_draw_the_dropout_of_eager_ones(device, method):
    runs = []
    for compiled in (True, False):
        network = Dropout().to(precision_of(device))
        network.load_state_dict(tiny_network().state_dict())
        settings = {"method": method, "gamma": None, "inner_steps": 20}
        runs.append(fit_on(device, network, compile=compiled, **settings))
        assert runs[-1][1].compiled is compiled
    assert_same_parameters(runs[0][0], runs[1][0])
