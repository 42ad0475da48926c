"""The distributed engine: several processes take the steps that one would take."""

from __future__ import annotations

import os

import pytest
import torch
from helpers.processes import needs_fork, outcome, run_processes
from helpers.series import wave_windows
from helpers.training import QUIET, quiet_trainer, tiny_network
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from pts_scott import Stratifier
from pts_scott.errors import ArgumentError
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


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("method", ["plain", "stratified", "scott", "storm"])
def test_compiled_processes_take_the_steps_of_an_eager_one(method, tmp_path):
    # Five windows in two processes: shards, and so compiled functions, differ.
    settings = {"method": method, "batch_size": 5}
    expected, history = outcome(**settings)()
    work = outcome(**settings, compile=True, processes=2)
    for parameters, own in run_processes(tmp_path, 2, work):
        assert own["compile_seconds"].iloc[-1] > 0
        assert own["gradients"].iloc[-1] == history["gradients"].iloc[-1]
        for x, y in zip(parameters, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


def failing_in_the_second_process(graph, arguments):
    if os.environ.get("RANK") == "1":
        raise RuntimeError("no compiler here")
    return graph


@pytest.mark.usefixtures("traced")
@pytest.mark.filterwarnings("ignore:TinyNetwork could not be compiled")
def test_no_process_compiles_if_one_cannot(tmp_path, monkeypatch):
    place = "pts_scott.engine.compilation.compile_graph"
    monkeypatch.setattr(place, failing_in_the_second_process)
    expected, _ = outcome()()
    for parameters, _ in run_processes(tmp_path, 2, outcome(compile=True, processes=2)):
        for x, y in zip(parameters, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


def test_directions_in_buckets_equal_those_in_one(tmp_path, monkeypatch):
    expected, _ = outcome(processes=1)()
    monkeypatch.setattr("pts_scott.engine.processes.BUCKET", 100)  # bytes: 12 values
    for parameters, _ in run_processes(tmp_path, 2, outcome(processes=2)):
        for x, y in zip(parameters, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


def test_directions_may_be_sent_in_half_precision(tmp_path):
    expected, _ = outcome()()
    strategy = DDPStrategy(ddp_comm_hook=default_hooks.bf16_compress_hook)
    found = run_processes(tmp_path, 2, outcome(processes=2, strategy=strategy))
    for x, y, first in zip(found[1][0], expected, found[0][0], strict=True):
        torch.testing.assert_close(x, first, rtol=0, atol=0)  # all processes agree
        assert not torch.equal(x, y)
        # 40 steps of Adam at 0.01; a direction is rounded to 8 bits.
        torch.testing.assert_close(x, y, rtol=0, atol=0.02)


def test_unknown_communication_hooks_are_refused():
    strategy = DDPStrategy(ddp_comm_hook=lambda state, bucket: None)
    kwargs = {**QUIET, "strategy": strategy, "devices": 2}
    with pytest.raises(ArgumentError, match="bf16_compress_hook"):
        quiet_trainer(trainer_kwargs=kwargs).fit(tiny_network(), wave_windows())


class RunningLevel(nn.Module):
    """A network with a buffer that depends on the windows of its process."""

    def __init__(self) -> None:
        super().__init__()
        self.network = tiny_network()
        self.register_buffer("level", torch.zeros((), dtype=torch.float64))

    def loss(self, past_target, future_target):
        losses = self.network.loss(past_target - 0.01 * self.level, future_target)
        if self.training:
            self.level.lerp_(past_target.mean().detach(), 0.1)
        return losses


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("compiled", [False, True])
def test_buffers_that_change_are_those_of_the_first_process(tmp_path, compiled):
    work = outcome(processes=2, compile=compiled, network=RunningLevel())
    (first, _), (second, _) = run_processes(tmp_path, 2, work)
    assert first[0] != 0  # the level
    for x, y in zip(first, second, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
