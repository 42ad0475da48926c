"""Training in several processes that are forked from the test."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from torch import nn

from helpers.series import wave_windows
from helpers.training import QUIET, quiet_trainer, tiny_network
from pts_scott import ScottTrainer, Stratifier

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


def train(
    processes: int = 1,
    callbacks: tuple[pl.Callback, ...] = (),
    network: nn.Module | None = None,
    strategy: Any = "ddp",
    **settings: Any,
) -> tuple[nn.Module, ScottTrainer]:
    """Train a network (a tiny one), in one of several processes or alone."""
    kwargs = {**QUIET, "callbacks": list(callbacks)}
    if processes > 1:
        kwargs |= {"strategy": strategy, "devices": processes}
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
    network, windows = network or tiny_network(), wave_windows()
    trainer.fit(network, windows, windows.last())
    return network, trainer


def run_processes(
    folder: Path, size: int, work: Callable[[], Any], timeout: float = 90
) -> list[Any]:
    """Return the result of each process, its error, or None for one that was killed.

    The processes are forked from this one, with the environment that torchrun would give
    them, and so start at once.
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
    """Make a function that trains, and returns the parameters and the history."""

    def work() -> Any:
        network, trainer = train(**settings)
        return list(network.state_dict().values()), trainer.history

    return work
