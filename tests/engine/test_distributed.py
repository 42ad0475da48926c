"""Several processes: the steps of one, shared out."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from helpers.series import wave_windows
from helpers.training import QUIET, TinyNetwork, quiet_trainer, tiny_network
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from pts_scott import Checkpoints, ScottTrainer, Stratifier
from pts_scott.engine.gradients import Update
from pts_scott.engine.processes import Processes, raise_on_lost_process
from pts_scott.engine.tensors import zeros_like
from pts_scott.errors import ModelError, ProcessError
from pts_scott.method.methods import METHODS
from pts_scott.training.checkpoint_files import read
from pts_scott.training.run_state import KEY

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


def train(
    processes: int = 1, callbacks: tuple[pl.Callback, ...] = (), **settings: Any
) -> tuple[TinyNetwork, ScottTrainer]:
    kwargs = {**QUIET, "callbacks": list(callbacks)}
    if processes > 1:
        kwargs |= {"strategy": "ddp", "devices": processes}
    arguments = {
        "optimizer": "adam",
        "learning_rate": 0.01,
        "batch_size": 5,
        "anchor_batch_size": 2,
        "inner_steps": 7,
        "epochs": 2,
        "num_batches_per_epoch": 20,
        "stratifier": Stratifier.series() * Stratifier.periodic(3),
        "trainer_kwargs": kwargs,
    }
    trainer = quiet_trainer(**{**arguments, **settings})
    network, windows = tiny_network(), wave_windows()
    trainer.fit(network, windows, windows.last())
    return network, trainer


def together(
    folder: Path, size: int, work: Callable[[], Any], timeout: float = 90
) -> list[Any]:
    """What each of some processes makes of it, or the error that it ends with.

    They are forked from here with the environment that torchrun would give them, and
    so start at once.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(rank: int) -> None:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= {"WORLD_SIZE": str(size), "RANK": str(rank)}
        os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
        os.environ |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}
        try:
            result = work()
        except Exception as error:
            result = error
        (folder / f"result{rank}").write_bytes(pickle.dumps(result))
        os._exit(0)

    context = multiprocessing.get_context("fork")
    children = [context.Process(target=run, args=(rank,)) for rank in range(size)]
    for child in children:
        child.start()
    deadline = time.monotonic() + timeout
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
    for child in children:
        if child.is_alive():
            child.kill()
            pytest.fail(f"a process did not end within {timeout} s")
    paths = [folder / f"result{rank}" for rank in range(size)]
    return [pickle.loads(p.read_bytes()) if p.exists() else None for p in paths]


def outcome(**settings: Any) -> Callable[[], Any]:
    def work() -> Any:
        network, trainer = train(**settings)
        return [p.detach() for p in network.parameters()], trainer.history

    return work


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("method", METHODS)
def test_several_processes_take_the_steps_of_one(method, size, tmp_path):
    expected, history = outcome(method=method)()
    found = together(tmp_path, size, outcome(method=method, processes=size))
    counted = ["step", "outer", "epoch", "gradients", "anchors"]
    for parameters, own in found:
        for x, y, first in zip(parameters, expected, found[0][0], strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)
            torch.testing.assert_close(x, first, rtol=0, atol=0)  # to the bit
        assert own[counted].equals(history[counted])
        assert (own["val_loss"] - history["val_loss"]).abs().max() < 1e-9


def test_fewer_windows_than_processes_are_shared_out_too(tmp_path):
    settings = {"batch_size": 2, "stratifier": Stratifier.series()}
    settings["anchor_batch_size"] = 1
    expected, _ = outcome(**settings)()
    for parameters, _ in together(tmp_path, 4, outcome(processes=4, **settings)):
        for x, y in zip(parameters, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


def test_early_stops_and_a_budget_of_time_are_decided_alike(tmp_path):
    settings = {"epochs": None, "time_budget": 0.5, "gamma": 0.9, "processes": 2}
    (_, one), (_, other) = together(tmp_path, 2, outcome(**settings))
    assert one["step"].tolist() == other["step"].tolist()
    assert one["anchors"].tolist() == other["anchors"].tolist()


def test_without_a_seed_all_take_the_first_ones(tmp_path):
    found = together(tmp_path, 2, outcome(processes=2, seed=None))
    for x, y in zip(found[0][0], found[1][0], strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


class Die(pl.Callback):
    """Ends one of the processes as a crash would, in a hook of its second epoch."""

    def __init__(self, rank: int, hook: str) -> None:
        self.rank = rank
        setattr(self, hook, self._maybe)

    def _maybe(self, trainer, pl_module, *_):
        if trainer.global_rank == self.rank and pl_module.steps >= 21:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("rank", "hook"),
    [
        (1, "on_train_batch_end"),
        (0, "on_train_batch_end"),
        (1, "on_save_checkpoint"),
        (0, "on_validation_epoch_end"),
        (1, "on_train_epoch_end"),
    ],
)
def test_a_process_that_dies_ends_the_run_soon_with_a_usable_checkpoint(
    rank, hook, tmp_path
):
    checkpoint = Checkpoints(tmp_path / "run", steps=5)
    settings = {"checkpoint": checkpoint, "processes": 2, "callbacks": (Die(rank, hook),)}
    began = time.monotonic()
    found = together(tmp_path, 2, outcome(**settings))
    assert time.monotonic() - began < 60
    assert found[rank] is None, "it was killed"
    assert isinstance(found[1 - rank], ProcessError)
    assert "resume=True" in str(found[1 - rank])
    assert 10 < read(checkpoint.path)[KEY]["counters"]["steps"] < 40
    (tmp_path / "again").mkdir()
    settings |= {"callbacks": (), "resume": True}
    found = together(tmp_path / "again", 2, outcome(**settings))
    expected, _ = outcome()()
    for parameters, _ in found:
        for x, y in zip(parameters, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


class Terminate(pl.Callback):
    """Sends SIGTERM to one of the processes, as batch systems do to one or all."""

    def on_train_batch_end(self, trainer, pl_module, *_):
        if trainer.global_rank == 1 and 10 < pl_module.steps < 20:
            os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_to_one_process_ends_all_in_good_order(tmp_path):
    checkpoint = Checkpoints(tmp_path / "run")
    settings = {"checkpoint": checkpoint, "processes": 2, "callbacks": (Terminate(),)}
    (_, one), (_, other) = together(tmp_path, 2, outcome(**settings))
    assert one["step"].tolist() == other["step"].tolist()
    assert read(checkpoint.path)[KEY]["counters"]["steps"] == one["step"].iloc[-1] < 40


class Hang(pl.Callback):
    """Stops one of the processes, so that it answers no more."""

    def on_train_batch_end(self, trainer, pl_module, *_):
        if trainer.global_rank == 1:
            time.sleep(10)
            os._exit(1)


def test_for_a_process_that_hangs_one_waits_as_long_as_is_said(tmp_path):
    strategy = DDPStrategy(timeout=timedelta(seconds=2))
    kwargs = {**QUIET, "callbacks": [Hang()], "strategy": strategy, "devices": 2}

    def work() -> Any:
        began = time.monotonic()
        with pytest.raises(ProcessError, match="cannot be reached"):
            train(trainer_kwargs=kwargs)
        return time.monotonic() - began

    waited, other = together(tmp_path, 2, work)
    assert 2 <= waited < 9, "before the other one ended by itself"
    assert other is None


def test_processes_that_find_other_checkpoints_are_refused(tmp_path):
    """As on hosts that do not share a folder: the first goes on, the other begins."""
    train(checkpoint=Checkpoints(tmp_path / "0", steps=5), epochs=1)

    def work() -> Any:
        folder = tmp_path / os.environ["RANK"]
        return outcome(checkpoint=folder, resume=True, processes=2)()

    for error in together(tmp_path, 2, work):
        assert isinstance(error, ProcessError)
        assert "All hosts must share the checkpoint folder" in str(error)


def test_other_errors_are_left_as_they_are():
    with (
        pytest.raises(RuntimeError, match="shapes differ") as caught,
        raise_on_lost_process(),
    ):
        raise RuntimeError("shapes differ")
    assert not isinstance(caught.value, ProcessError)


class OtherData(pl.Callback):
    """Makes one of the processes believe that it has other data."""

    def setup(self, trainer, pl_module, stage):
        if trainer.global_rank == 1:
            pl_module.fingerprint = {"data": {"windows": 3}}


def test_processes_with_other_data_are_refused(tmp_path):
    errors = together(tmp_path, 2, outcome(processes=2, callbacks=(OtherData(),)))
    for error in errors:
        assert isinstance(error, ProcessError)
        assert "the same script and data" in str(error)


class Running(nn.Module):
    """A network whose buffer follows its windows."""

    def __init__(self) -> None:
        super().__init__()
        self.network = tiny_network()
        self.register_buffer("level", torch.zeros((), dtype=torch.float64))

    def loss(self, past_target, future_target):
        if self.training:
            self.level += past_target.mean().detach()
        return self.network.loss(past_target, future_target)


def test_networks_with_running_values_are_refused():
    kwargs = {**QUIET, "strategy": "ddp", "devices": 2}
    with pytest.raises(ModelError, match="differ between processes"):
        quiet_trainer(trainer_kwargs=kwargs).fit(Running(), wave_windows())


def test_one_process_has_all_of_it():
    alone, numbers = Processes(), torch.arange(5)
    assert alone.shard(numbers, numbers)[0] is numbers
    update = Update((numbers,), numbers[0])
    assert alone.reduce(update) is update
    assert alone.sums([1.0, 2.0]) == [1.0, 2.0]
    (zero,) = zeros_like((torch.ones(3),))
    assert zero.tolist() == [0, 0, 0]
