"""CPU threads: chosen by the size of a step, and restored after training."""

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
    """A machine with eight cores and no OMP_NUM_THREADS."""
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
        (nn.Conv1d(100, 100, 5), 32, 4),
    ],
    ids=["small", "large", "recurrent", "recurrent, one window", "convolution"],
)
def test_small_steps_use_one_thread_and_large_ones_half_of_the_cores(
    network, batch_size, expected
):
    assert choose_threads(network, batch_size, context_length=72) == expected


@pytest.mark.usefixtures("many_cores")
def test_uninitialised_lazy_layers_do_not_count():
    network = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    assert choose_threads(network, 32, 72) == 1


@pytest.mark.usefixtures("many_cores")
def test_two_cores_use_one_thread(monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 2)
    assert choose_threads(nn.Linear(2000, 2000), 256, 72) == 1


@pytest.mark.usefixtures("many_cores")
def test_omp_num_threads_is_respected(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert choose_threads(nn.Linear(10, 10), 1, 72) == 8


@pytest.mark.parametrize(("setting", "expected"), [("auto", 1), (2, 2)])
def test_number_of_threads_is_set_for_training_and_restored_after(
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
def test_invalid_numbers_of_threads_are_refused(value):
    with pytest.raises(ArgumentError, match="threads"):
        quiet_trainer(threads=value)
