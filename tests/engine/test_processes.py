"""Processes: shards, all-reduced updates, and the loss of a process."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
from helpers.processes import needs_fork, outcome, run_processes, train
from helpers.training import QUIET
from lightning.pytorch.strategies import DDPStrategy

from pts_scott import Checkpoints
from pts_scott.engine.gradients import Update
from pts_scott.engine.processes import (
    Processes,
    ProcessGroup,
    broadcast,
    raise_on_lost_process,
)
from pts_scott.errors import ProcessError
from pts_scott.training.checkpoint_files import read
from pts_scott.training.run_state import KEY

pytestmark = needs_fork


def test_single_process_keeps_all_windows():
    alone, numbers = Processes(), torch.arange(5)
    assert alone.shard(numbers, numbers)[0] is numbers
    update = Update((numbers,), numbers[0])
    assert alone.reduce(update) is update
    assert alone.sums([1.0, 2.0]) == [1.0, 2.0]


def process_group_results() -> dict[str, Any]:
    """Use a process group, and return what this process gets."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    group = ProcessGroup(
        torch.float64,
        torch.device("cpu"),
        lambda: (10.0 + rank, rank == 1),
    )
    windows = torch.arange(5)
    shard, weights = group.shard(windows, 0.1 * windows)
    own = torch.full((2, 2), 1.0 + rank)
    memory = torch.arange(12.0) + 100 * rank
    broadcast(memory.reshape(3, 4)[:, ::2])
    update = group.reduce(Update((own,), torch.tensor(0.5)))
    return {
        "is_first": group.is_first,
        "shard": shard.tolist(),
        "weights": weights.tolist(),
        "direction": update.direction[0].tolist(),
        "dtype": update.direction[0].dtype,
        "loss": float(update.loss),
        "seconds": group.seconds,
        "interrupted": group.interrupted,
        "sums": group.sums([1.0, rank]),
        "memory": memory.tolist(),
        "gathered": group.gather(f"{rank} of {size}"),
    }


def test_process_group_shards_windows_and_sums_updates(tmp_path):
    results = run_processes(tmp_path, 2, process_group_results)
    assert [found["is_first"] for found in results] == [True, False]
    assert [found["shard"] for found in results] == [[0, 2, 4], [1, 3]]
    assert results[1]["weights"] == pytest.approx([0.1, 0.3])
    for found in results:
        assert found["direction"] == [[3.0, 3.0], [3.0, 3.0]]
        assert found["dtype"] == torch.float32
        assert found["loss"] == 1.0
        assert found["seconds"] == 10.0, "those of the first process"
        assert found["interrupted"], "one of the processes was"
        assert found["sums"] == [2.0, 1.0]
        assert found["gathered"] == ["0 of 2", "1 of 2"]
    # What lies between the values of a view is each process' own.
    assert results[0]["memory"] == list(range(12))
    expected = [n if n % 2 == 0 else n + 100 for n in range(12)]
    assert results[1]["memory"] == expected


@pytest.mark.parametrize(
    "message",
    [
        "[gloo/transport/tcp/pair.cc] Connection closed by peer",
        "NCCL error: unhandled system error",
        "Connection reset by peer",
        "Broken pipe",
        "Timed out waiting 2000ms for recv operation",
        "Application timeout caused pair closure",
    ],
)
def test_lost_process_is_recognised_by_the_message_of_torch(message):
    with pytest.raises(ProcessError, match="resume=True"), raise_on_lost_process():
        raise RuntimeError(message)


def test_lost_process_error_has_the_address_that_torch_reports():
    message = (
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by "
        "peer [10.0.0.2]:38035. This is typically caused by a remote worker crashing."
    )
    expected = (
        r"cannot be reached \(Connection closed by peer \[10.0.0.2\]:38035\); training"
    )
    with pytest.raises(ProcessError, match=expected), raise_on_lost_process():
        raise RuntimeError(message)


class Kill(pl.Callback):
    """Kills one of the processes, in a hook of its second epoch."""

    def __init__(self, rank: int, hook: str) -> None:
        self.rank = rank
        setattr(self, hook, self._kill)

    def _kill(self, trainer, pl_module, *_):
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
def test_killed_process_ends_the_run_soon_with_a_usable_checkpoint(rank, hook, tmp_path):
    checkpoint = Checkpoints(tmp_path / "run", steps=5)
    settings = {
        "checkpoint": checkpoint,
        "processes": 2,
        "callbacks": (Kill(rank, hook),),
    }
    began = time.monotonic()
    found = run_processes(tmp_path, 2, outcome(**settings))
    assert time.monotonic() - began < 60
    assert found[rank] is None, "it was killed"
    assert isinstance(found[1 - rank], ProcessError)
    assert "resume=True" in str(found[1 - rank])
    assert 10 < read(checkpoint.path)[KEY]["counters"]["steps"] < 40
    (tmp_path / "again").mkdir()
    settings |= {"callbacks": (), "resume": True}
    found = run_processes(tmp_path / "again", 2, outcome(**settings))
    expected, _ = outcome()()
    for parameters, _ in found:
        for x, y in zip(parameters, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


class Terminate(pl.Callback):
    """Sends SIGTERM to one of the processes, as batch systems do."""

    def on_train_batch_end(self, trainer, pl_module, *_):
        if trainer.global_rank == 1 and 10 < pl_module.steps < 20:
            os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_to_one_process_stops_all_after_the_same_step(tmp_path):
    checkpoint = Checkpoints(tmp_path / "run")
    settings = {"checkpoint": checkpoint, "processes": 2, "callbacks": (Terminate(),)}
    (_, one), (_, other) = run_processes(tmp_path, 2, outcome(**settings))
    assert one["step"].tolist() == other["step"].tolist()
    assert read(checkpoint.path)[KEY]["counters"]["steps"] == one["step"].iloc[-1] < 40


class Hang(pl.Callback):
    """Lets one of the processes hang, so that it no longer answers."""

    def on_train_batch_end(self, trainer, pl_module, *_):
        if trainer.global_rank == 1:
            time.sleep(10)
            os._exit(1)


def test_hanging_process_is_waited_for_until_the_timeout(tmp_path):
    strategy = DDPStrategy(timeout=timedelta(seconds=2))
    kwargs = {**QUIET, "callbacks": [Hang()], "strategy": strategy, "devices": 2}

    def work() -> Any:
        began = time.monotonic()
        with pytest.raises(ProcessError, match="cannot be reached"):
            train(trainer_kwargs=kwargs)
        return time.monotonic() - began

    waited, other = run_processes(tmp_path, 2, work)
    assert 2 <= waited < 9, "before the other one exits by itself"
    assert other is None


def test_processes_with_different_checkpoints_are_refused(tmp_path):
    """As on hosts without a shared folder: the first resumes, the other starts anew."""
    train(checkpoint=Checkpoints(tmp_path / "0", steps=5), epochs=1)

    def work() -> Any:
        folder = tmp_path / os.environ["RANK"]
        return outcome(checkpoint=folder, resume=True, processes=2)()

    for error in run_processes(tmp_path, 2, work):
        assert isinstance(error, ProcessError)
        assert "All hosts must share the checkpoint folder" in str(error)


def test_other_errors_are_raised_unchanged():
    with (
        pytest.raises(RuntimeError, match="shapes differ") as caught,
        raise_on_lost_process(),
    ):
        raise RuntimeError("shapes differ")
    assert not isinstance(caught.value, ProcessError)


class OtherData(pl.Callback):
    """Gives one of the processes the fingerprint of other data."""

    def setup(self, trainer, pl_module, stage):
        if trainer.global_rank == 1:
            pl_module.fingerprint = {"data": {"windows": 3}}


def test_processes_with_different_data_are_refused(tmp_path):
    errors = run_processes(tmp_path, 2, outcome(processes=2, callbacks=(OtherData(),)))
    for error in errors:
        assert isinstance(error, ProcessError)
        assert "the same script and data" in str(error)
