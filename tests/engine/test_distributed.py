"""The distributed engine: several processes take the steps that one would take."""

from __future__ import annotations

import pytest
import torch
from helpers.processes import needs_fork, outcome, run_processes
from helpers.series import wave_windows
from helpers.training import QUIET, quiet_trainer, tiny_network
from torch import nn

from pts_scott import Stratifier
from pts_scott.errors import ModelError
from pts_scott.method.methods import METHODS

pytestmark = needs_fork


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("method", METHODS)
def test_several_processes_take_the_steps_of_one(method, size, tmp_path):
    expected, history = outcome(method=method)()
    found = run_processes(tmp_path, size, outcome(method=method, processes=size))
    counted = ["step", "outer", "epoch", "gradients", "anchors"]
    for parameters, own in found:
        for x, y, first in zip(parameters, expected, found[0][0], strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)
            torch.testing.assert_close(x, first, rtol=0, atol=0)  # bit by bit
        assert own[counted].equals(history[counted])
        assert (own["val_loss"] - history["val_loss"]).abs().max() < 1e-9


def test_fewer_windows_than_processes_may_be_sharded(tmp_path):
    settings = {"batch_size": 2, "stratifier": Stratifier.series()}
    settings["anchor_batch_size"] = 1
    expected, _ = outcome(**settings)()
    for parameters, _ in run_processes(tmp_path, 4, outcome(processes=4, **settings)):
        for x, y in zip(parameters, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


def test_processes_agree_on_early_stops_and_the_time_budget(tmp_path):
    settings = {"epochs": None, "time_budget": 0.5, "gamma": 0.9, "processes": 2}
    (_, one), (_, other) = run_processes(tmp_path, 2, outcome(**settings))
    assert one["step"].tolist() == other["step"].tolist()
    assert one["anchors"].tolist() == other["anchors"].tolist()


def test_without_a_seed_all_processes_use_that_of_the_first(tmp_path):
    found = run_processes(tmp_path, 2, outcome(processes=2, seed=None))
    for x, y in zip(found[0][0], found[1][0], strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


class RunningLevel(nn.Module):
    """A network with a buffer that depends on the windows of its process."""

    def __init__(self) -> None:
        super().__init__()
        self.network = tiny_network()
        self.register_buffer("level", torch.zeros((), dtype=torch.float64))

    def loss(self, past_target, future_target):
        if self.training:
            self.level += past_target.mean().detach()
        return self.network.loss(past_target, future_target)


def test_networks_that_change_their_buffers_are_refused():
    kwargs = {**QUIET, "strategy": "ddp", "devices": 2}
    with pytest.raises(ModelError, match="differ between processes"):
        quiet_trainer(trainer_kwargs=kwargs).fit(RunningLevel(), wave_windows())
