"""Measure training over several processes: all-reduce latency and steps per second.

    python benchmarks/scaling.py

Processes are forked on this machine and communicate over gloo. The first table shows the
time of one all-reduce; the second the steps per second of two of the paper's networks,
one with many parameters (N-BEATS) and one with much work per parameter (LSTM), with
``strategy="ddp"``, each process with its shard of M = 64 windows on one thread. The last
line shows the cost of a checkpoint of the former.
"""

from __future__ import annotations

import functools
import itertools
import logging
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from gluonts.dataset.common import ListDataset

from pts_scott import (
    Checkpoints,
    LSTMEstimator,
    NBEATSEstimator,
    ScottTrainer,
    Stratifier,
)

SIZES = (10**4, 10**5, 10**6, 10**7)
PROCESSES = (1, 2)


def run_processes(size: int, work: Callable[[], Any]) -> Any:
    """Run ``work`` in several processes and return the result of the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def run(rank: int) -> None:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= {"WORLD_SIZE": str(size), "RANK": str(rank)}
        os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
        os.environ |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "benchmark"}
        torch.set_num_threads(1)
        result = work()
        if rank == 0:
            queue.put(result)

    children = [context.Process(target=run, args=(rank,)) for rank in range(size)]
    for child in children:
        child.start()
    result = queue.get()
    for child in children:
        child.join()
    return result


def reductions() -> dict[int, float]:
    """Return the seconds per all-reduce, by number of values."""
    dist.init_process_group("gloo")
    found = {}
    for size in SIZES:
        values = torch.ones(size)
        times = []
        for _ in range(12):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(values)
            times.append(time.perf_counter() - began)
        found[size] = statistics.median(times[2:])
    dist.destroy_process_group()
    return found


def data() -> ListDataset:
    """Return eight waves, each over a year of hours."""
    hours = np.arange(24 * 365)
    rows = [5 + np.sin(2 * np.pi * hours / 24 + shift) for shift in range(8)]
    return ListDataset([{"start": "2024-01-01", "target": row} for row in rows], freq="h")


def steps(
    network: str, processes: int, method: str, folder: str | None = None
) -> tuple[float, float]:
    """Return the steps per second of a network, and the seconds of a checkpoint."""
    kwargs: dict[str, Any] = {"enable_progress_bar": False}
    if processes > 1:
        kwargs |= {"strategy": "ddp", "devices": processes}
    trainer = ScottTrainer(
        method=method,
        optimizer="adam",
        clip_gradient=None,
        batch_size=64,
        anchor_batch_size=2,
        stratifier=Stratifier.calendar("weekday", "season"),
        epochs=1,
        num_batches_per_epoch=40,
        gamma=None,
        compile=False,
        device="cpu",
        threads=1,
        seed=0,
        checkpoint=None if folder is None else Checkpoints(folder, minutes=None),
        trainer_kwargs=kwargs,
    )
    estimator = {"N-BEATS": NBEATSEstimator, "LSTM": LSTMEstimator}[network]
    estimator(freq="h", prediction_length=24, context_length=72, trainer=trainer).train(
        data()
    )
    seconds = float(trainer.history["seconds"].iloc[-1])
    return 40 / seconds, trainer.checkpoint_seconds


def main() -> None:
    """Run all measurements and print them."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print("| values in a reduction | ms, 2 processes |\n|---|---|")
    for size, seconds in run_processes(2, reductions).items():
        print(f"| {size} | {1000 * seconds:.2f} |")
    print(
        "\n| network | processes | plain, steps/s | SCott, steps/s |\n|---|---|---|---|"
    )
    for name, number in itertools.product(("N-BEATS", "LSTM"), PROCESSES):
        rates = [
            run_processes(number, functools.partial(steps, name, number, method))[0]
            for method in ("plain", "scott")
        ]
        print(f"| {name} | {number} | {rates[0]:.2f} | {rates[1]:.2f} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        _, seconds = run_processes(1, lambda: steps("N-BEATS", 1, "scott", folder))
        size = os.path.getsize(os.path.join(folder, "last.ckpt"))
    print(f"\na checkpoint of this run: {size / 1e6:.0f} MB, {seconds:.2f} s")


if __name__ == "__main__":
    main()
