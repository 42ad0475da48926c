"""Per-window gradients: equal to autograd, by vmap or window by window."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.series import wave_windows
from helpers.training import TinyNetwork
from helpers.variance import (
    brute_force,
    gradient_table,
    moved,
    partition,
    point,
    probe_of,
)
from torch import nn

from pts_scott.backends import backend
from pts_scott.diagnostics import window_gradients as module
from pts_scott.diagnostics.window_gradients import window_gradients
from pts_scott.engine.losses import Losses
from pts_scott.models.networks import LSTMNetwork, VARNetwork, nbeats_network


def test_window_gradients_match_autograd_per_window(losses, windows, tables):
    batch = windows.gather(torch.arange(len(windows)))
    for at, table in zip((point(losses), moved(losses)), tables):
        rows = window_gradients(losses, at, batch)
        torch.testing.assert_close(rows, table, rtol=1e-10, atol=1e-12)


class BranchesOnValues(TinyNetwork):
    """A network that branches on the values of its windows, which vmap refuses."""

    def loss(self, past_target, future_target):
        factor = 2.0 if bool((past_target > 1e6).any()) else 1.0
        return factor * super().loss(past_target, future_target)


@pytest.mark.parametrize("make", [TinyNetwork, BranchesOnValues])
@pytest.mark.parametrize("disabled", [torch.no_grad, torch.inference_mode])
def test_probing_works_under_no_grad_and_inference_mode(windows, make, disabled):
    losses = Losses(make().double())

    def tables():
        snapshot = moved(losses)
        batch = windows.gather(torch.arange(3))
        table = probe_of(losses, windows, sample=16).measure(snapshot)
        return table, window_gradients(losses, snapshot, batch)

    expected = tables()
    with disabled():
        table, rows = tables()
    pd.testing.assert_frame_equal(table, expected[0])
    torch.testing.assert_close(rows, expected[1])


def lstm(dtype: torch.dtype) -> LSTMNetwork:
    return LSTMNetwork(prediction_length=2, hidden_size=5, num_layers=2).to(dtype)


@pytest.mark.parametrize(
    "network",
    [BranchesOnValues().double(), lstm(torch.float32), lstm(torch.float64)],
    ids=["branches on values", "lstm", "lstm in float64"],
)
def test_network_without_vmap_support_is_measured_per_window(network):
    dtype = next(network.parameters()).dtype
    losses, windows = Losses(network), wave_windows(dtype)
    probe = probe_of(losses, windows, exact=True)
    table = probe.measure(moved(losses))
    assert not probe._window_gradients._use_vmap
    tables = [
        gradient_table(losses, windows, at).double()
        for at in (point(losses), moved(losses))
    ]
    expected = brute_force(*tables, partition(windows))
    rtol = 1e-4 if dtype == torch.float32 else 1e-9
    np.testing.assert_allclose(table["variance"], list(expected.values()), rtol=rtol)
    sampled = probe_of(losses, windows, sample=16).measure(moved(losses))
    assert (sampled["variance"] > 0).all()


def test_vmap_is_not_used_if_it_only_repeats_a_kernel():
    losses, windows = Losses(lstm(torch.float32)), wave_windows(torch.float32)
    probe = probe_of(losses, windows, sample=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        probe.measure()
    assert not probe._window_gradients._use_vmap


@pytest.mark.parametrize(
    "make",
    [
        lambda: VARNetwork(context_length=6, prediction_length=2),
        pytest.param(
            lambda: backend.simple_feedforward(6, 2, [4, 4], None, False),
            marks=pytest.mark.skipif(
                torch.__version__ < (2, 7),
                reason="vmap does not support checks of distributions",
            ),
        ),
        lambda: nbeats_network(
            context_length=6,
            prediction_length=2,
            periodicity=1,
            num_stacks=1,
            widths=[4],
            num_blocks=[1],
            num_block_layers=[2],
            expansion_coefficient_lengths=[2],
            stack_types=["G"],
        ),
    ],
    ids=["var", "feedforward", "nbeats"],
)
def test_models_of_the_paper_are_measured_with_vmap(make):
    losses, windows = Losses(make()), wave_windows(torch.float32)
    probe = probe_of(losses, windows, sample=64)
    table = probe.measure(moved(losses, 0.01))
    assert probe._window_gradients._use_vmap
    assert (table["variance"] > 0).all()


class SharedGradients(nn.Module):
    """A network whose gradients share memory, with an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(2))
        self.b = nn.Parameter(torch.ones(2))
        self.scalar = nn.Parameter(torch.ones(()))
        self.unused = nn.Parameter(torch.ones(3))

    def loss(self, past_target, future_target):
        forecast = self.scalar * past_target[:, :2] + self.a + self.b
        return (forecast - future_target).square().mean(dim=1)


@pytest.mark.parametrize("rows", [1, 256])
def test_gradients_sharing_memory_are_not_modified_twice(windows, rows, monkeypatch):
    monkeypatch.setattr(module, "PASS_WINDOWS", rows)
    losses = Losses(SharedGradients().double())
    table = probe_of(losses, windows, exact=True).measure(moved(losses))
    tables = [
        gradient_table(losses, windows, at) for at in (point(losses), moved(losses))
    ]
    expected = brute_force(*tables, partition(windows))
    np.testing.assert_allclose(table["variance"], list(expected.values()), rtol=1e-9)
    sampled = probe_of(losses, windows, sample=400, per_stratum=40)
    drawn = sampled.measure(moved(losses))
    error = (drawn["variance"] - list(expected.values())).abs()
    assert (error < 4 * drawn["standard_error"]).all()
    assert (drawn["standard_error"] < 0.2 * drawn["variance"]).all()
