"""Threads: one for small steps, what was asked for otherwise, the old number after."""

from __future__ import annotations

import pytest
import torch
from helpers.series import wave_windows
from helpers.training import quiet_trainer, tiny_network
from torch import nn

from pts_scott.errors import ArgumentError
from pts_scott.training import threads
from pts_scott.training.threads import choose_threads


@pytest.fixture
def many_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "available_cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize(
    ("network", "batch_size", "expected"),
    [
        (nn.Linear(100, 100), 32, 1),
        (nn.Linear(2000, 2000), 32, 4),
        (nn.LSTM(100, 100), 32, 4),
        (nn.LSTM(100, 100), 1, 1),
    ],
    ids=["small", "large", "recurrent", "recurrent, one window"],
)
def test_small_steps_get_one_thread_and_large_ones_half_of_the_cores(
    network, batch_size, expected
):
    assert choose_threads(network, batch_size, context_length=72) == expected


@pytest.mark.usefixtures("many_cores")
def test_layers_without_a_size_yet_do_not_count():
    network = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    assert choose_threads(network, 32, 72) == 1


@pytest.mark.usefixtures("many_cores")
def test_two_cores_get_one_thread(monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 2)
    assert choose_threads(nn.Linear(2000, 2000), 256, 72) == 1


@pytest.mark.usefixtures("many_cores")
def test_the_environment_is_heard(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert choose_threads(nn.Linear(10, 10), 1, 72) == 8


@pytest.mark.parametrize(("setting", "expected"), [("auto", 1), (2, 2)])
def test_training_has_its_number_of_threads_and_the_caller_the_old_one(
    setting, expected, monkeypatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen = set()
    network = tiny_network()
    network.layers.register_forward_pre_hook(lambda *_: seen.add(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        quiet_trainer(threads=setting).fit(network, wave_windows())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == {expected}


@pytest.mark.parametrize("value", [0, -1, 1.5, "many", None])
def test_wrong_numbers_are_refused(value):
    with pytest.raises(ArgumentError, match="threads"):
        quiet_trainer(threads=value)
