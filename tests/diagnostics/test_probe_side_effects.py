"""The variance probe changes neither the network nor global random state."""

from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.series import wave_windows
from helpers.training import TinyNetwork
from helpers.variance import moved, point, probe_of
from torch import nn

from pts_scott.diagnostics.window_gradients import window_gradients
from pts_scott.engine.losses import Losses


class DropoutNetwork(nn.Module):
    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Dropout(dropout), nn.Linear(8, 2))

    def loss(self, past_target, future_target):
        return (self.layers(past_target) - future_target).square().mean(dim=1)


def test_dropout_is_disabled():
    windows = wave_windows()
    network = DropoutNetwork().double()
    without = DropoutNetwork(0.0).double()
    without.load_state_dict(network.state_dict())
    tables = [
        probe_of(Losses(x), windows, sample=64).measure(moved(Losses(x)))
        for x in (network, without)
    ]
    pd.testing.assert_frame_equal(*tables)


def random_states():
    return torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()


@pytest.mark.parametrize("exact", [True, False])
def test_probing_changes_neither_network_nor_random_state(exact):
    def train(probing: bool):
        torch.manual_seed(4)
        network = DropoutNetwork().double()
        windows, losses = wave_windows(), Losses(network)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        probe = probe_of(losses, windows, sample=16, exact=exact)
        for _ in range(3):
            losses(windows.gather(torch.arange(8))).mean().backward()
            if probing:
                gradients = [p.grad.clone() for p in network.parameters()]
                parameters, states = point(losses), random_states()
                trained = [p.requires_grad for p in network.parameters()]
                snapshot = moved(losses)
                copies = [s.clone() for s in snapshot]
                probe.measure(snapshot)
                window_gradients(losses, snapshot, windows.gather(torch.arange(4)))
                assert all(map(torch.equal, snapshot, copies))
                assert not any(s.requires_grad for s in snapshot)
                assert all(map(torch.equal, parameters, point(losses)))
                grads = [p.grad for p in network.parameters()]
                assert all(map(torch.equal, gradients, grads))
                assert trained == [p.requires_grad for p in network.parameters()]
                assert all(m.training for m in losses.modules())
                after = random_states()
                assert torch.equal(states[0], after[0])
                assert states[1:] == after[1:]
            optimizer.step()
        return point(losses)

    assert all(map(torch.equal, train(probing=True), train(probing=False)))


class AlwaysRandom(TinyNetwork):
    """A network that draws from torch, NumPy and Python even in evaluation mode."""

    def loss(self, past_target, future_target):
        noise = torch.rand(()) + np.random.rand() + random.random()
        return noise * super().loss(past_target, future_target)


def test_random_network_does_not_change_global_random_state(windows):
    probe = probe_of(Losses(AlwaysRandom().double()), windows, sample=16)
    before = random_states()
    assert (probe.measure()["variance"] > 0).all()
    after = random_states()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
