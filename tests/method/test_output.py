"""The return line: the last parameters, a sampled snapshot, or the best on validation."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from pts_scott.errors import ScottWarning
from pts_scott.method.output import OutputSelector


class OneParameter:
    """A network with a single number."""

    def __init__(self) -> None:
        self.value = 0

    def copy_state(self) -> int:
        return self.value

    def restore_state(self, copy: int) -> None:
        self.value = copy


def selector(output: str, network: OneParameter, seed: int = 0) -> OutputSelector:
    return OutputSelector(output, network, torch.Generator().manual_seed(seed))


def validate(chosen: OutputSelector, network: OneParameter, losses: list[float]) -> None:
    """Offer the values 1, 2, … with their validation losses."""
    for network.value, loss in enumerate(losses, 1):
        chosen.offer_validated(loss)


def test_last_parameters_stay_in_the_network():
    network = OneParameter()
    chosen = selector("last", network)
    chosen.offer_snapshot(1.0)
    validate(chosen, network, [1.0, 0.5, 2.0])
    chosen.restore()
    assert network.value == 3


def test_best_parameters_are_those_with_the_smallest_validation_loss():
    network = OneParameter()
    chosen = selector("best", network)
    validate(chosen, network, [3.0, math.nan, 0.5, 0.5, 2.0])
    chosen.restore()
    assert network.value == 3, "the first of two equal losses"


def test_best_without_validation_returns_the_last_with_a_warning():
    network = OneParameter()
    network.value = 4
    with pytest.warns(ScottWarning, match="before the first validation"):
        selector("best", network).restore()
    assert network.value == 4


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_best_without_a_finite_loss_returns_the_last_with_a_warning(loss):
    network = OneParameter()
    chosen = selector("best", network)
    validate(chosen, network, [loss, loss])
    with pytest.warns(ScottWarning, match="no validation loss was finite"):
        chosen.restore()
    assert network.value == 2


def test_snapshots_are_sampled_in_proportion_to_their_weights():
    weights, repeats = [0.1, 0.4, 0.2, 0.3], 4000
    generator, counts = torch.Generator().manual_seed(0), Counter()
    for _ in range(repeats):
        network = OneParameter()
        chosen = OutputSelector("sampled", network, generator)
        for network.value, weight in enumerate(weights):
            chosen.offer_snapshot(16 * weight)
        network.value = -1  # the last parameters
        chosen.restore()
        counts[network.value] += 1
    assert set(counts) == set(range(len(weights)))
    for value, p in enumerate(weights):
        # Five standard errors: a right sampler fails once in about 400,000 runs.
        error = np.sqrt(p * (1 - p) / repeats)
        assert abs(counts[value] / repeats - p) < 5 * error


def test_single_snapshot_is_always_kept():
    for seed in range(20):
        network = OneParameter()
        network.value = 7
        chosen = selector("sampled", network, seed)
        chosen.offer_snapshot(0.1)
        network.value = 8
        chosen.restore()
        assert network.value == 7


def test_state_dict_resumes_the_best():
    network = OneParameter()
    chosen = selector("best", network)
    validate(chosen, network, [2.0, 1.0])
    resumed = selector("best", network)
    resumed.load_state_dict(chosen.state_dict())
    network.value = 9
    resumed.offer_validated(1.5)
    resumed.restore()
    assert network.value == 2


def test_state_dict_resumes_the_sampling():
    """A resumed selector keeps the weights of the snapshots before it."""
    found = []
    for resume in (False, True):
        generator, values = torch.Generator().manual_seed(3), []
        for _ in range(50):
            network = OneParameter()
            chosen = OutputSelector("sampled", network, generator)
            for network.value in range(4):
                chosen.offer_snapshot(1.0)
                if resume:
                    state = chosen.state_dict()
                    chosen = OutputSelector("sampled", network, generator)
                    chosen.load_state_dict(state)
            chosen.restore()
            values.append(network.value)
        found.append(values)
    assert found[0] == found[1]
    assert len(set(found[0])) == 4
