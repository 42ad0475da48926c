"""Measure training over several processes: all-reduce latency and steps per second.

    python benchmarks/scaling.py

Processes are forked on this machine and communicate over gloo. The first table shows the
time of one all-reduce; the second the steps per second of two of the paper's networks,
one with many parameters (N-BEATS) and one with much work per parameter (LSTM), with
``strategy="ddp"``, each process with its shard of M windows on one thread, also with
directions sent in bf16. Beside them stands a plain loop with torch's own
``DistributedDataParallel``, which reduces while the backward pass still runs. Rounds are
interleaved, and medians shown. The last line shows the cost of a checkpoint of the
former.
"""

from __future__ import annotations

import argparse
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
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from pts_scott import (
    Checkpoints,
    LSTMEstimator,
    NBEATSEstimator,
    ScottTrainer,
    Stratifier,
)
from pts_scott.engine.losses import Losses

SIZES = (10**4, 10**5, 10**6, 10**7)


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
    network: str,
    processes: int,
    method: str,
    size: int,
    folder: str | None = None,
    hook: Any = None,
) -> tuple[float, float]:
    """Return the steps per second of a network, and the seconds of a checkpoint."""
    kwargs: dict[str, Any] = {"enable_progress_bar": False}
    if processes > 1:
        strategy = "ddp" if hook is None else DDPStrategy(ddp_comm_hook=hook)
        kwargs |= {"strategy": strategy, "devices": processes}
    count = max(8, 640 // size)
    trainer = ScottTrainer(
        method=method,
        optimizer="adam",
        clip_gradient=None,
        batch_size=size,
        anchor_batch_size=2,
        stratifier=Stratifier.calendar("weekday", "season"),
        epochs=1,
        num_batches_per_epoch=count,
        inner_steps=4,  # so that the first ones can be left out
        gamma=None,
        compile=False,
        device="cpu",
        threads=1,
        seed=0,
        checkpoint=None if folder is None else Checkpoints(folder, minutes=None),
        trainer_kwargs=kwargs,
    )
    estimator_of(network, trainer).train(data())
    history = trainer.history
    first, last = history.iloc[0], history.iloc[-1]
    rate = (last["step"] - first["step"]) / (last["seconds"] - first["seconds"])
    return float(rate), trainer.checkpoint_seconds


def estimator_of(network: str, trainer: ScottTrainer) -> Any:
    """Return an estimator at (72, 24)."""
    estimator = {"N-BEATS": NBEATSEstimator, "LSTM": LSTMEstimator}[network]
    return estimator(freq="h", prediction_length=24, context_length=72, trainer=trainer)


def torch_steps(network: str, processes: int, size: int) -> float:
    """Return the steps per second of a plain loop in torch, with its own DDP."""
    dist.init_process_group("gloo")
    estimator = estimator_of(network, ScottTrainer())
    windows = estimator.create_windows(data())
    losses = Losses(estimator.create_network(None))
    model = torch.nn.parallel.DistributedDataParallel(losses, find_unused_parameters=True)
    optimizer = torch.optim.Adam(losses.parameters(), lr=1e-3, fused=True)
    generator = torch.Generator().manual_seed(dist.get_rank())
    times = []
    for _ in range(max(8, 640 // size)):
        drawn = windows.draw(size // processes, generator)
        optimizer.zero_grad()
        model(windows.gather(drawn, losses.fields)).mean().backward()
        optimizer.step()
        times.append(time.perf_counter())
    dist.destroy_process_group()
    return (len(times) - 4) / (times[-1] - times[3])


def table(name: str, size: int, rounds: int) -> None:
    """Print the rows of one network and M."""
    bf16 = default_hooks.bf16_compress_hook

    def ours(processes: int, method: str, hook: Any = None) -> Callable[[], float]:
        work = functools.partial(steps, name, processes, method, size, None, hook)
        return lambda: run_processes(processes, work)[0]

    sides = {
        "one process, plain": ours(1, "plain"),
        "two processes, plain": ours(2, "plain"),
        "two processes, plain, bf16": ours(2, "plain", bf16),
        "two processes, torch's DDP": lambda: run_processes(
            2, functools.partial(torch_steps, name, 2, size)
        ),
        "one process, SCott": ours(1, "scott"),
        "two processes, SCott": ours(2, "scott"),
        "two processes, SCott, bf16": ours(2, "scott", bf16),
    }
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, run in sides.items():
            rates[side].append(run())
    for side, found in rates.items():
        method = "SCott" if "SCott" in side else "plain"
        alone = statistics.median(rates[f"one process, {method}"])
        rate = statistics.median(found)
        print(
            f"| {name} | {size} | {side} | {rate:.2f} | {rate / alone:.2f} |", flush=True
        )


def main() -> None:
    """Run all measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["N-BEATS", "LSTM"])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print("| values in a reduction | ms, 2 processes |\n|---|---|")
    for size, seconds in run_processes(2, reductions).items():
        print(f"| {size} | {1000 * seconds:.2f} |")
    print(
        "\n| network | M | side | steps/s | against one process |\n|---|---|---|---|---|"
    )
    for name, size in itertools.product(options.networks, options.batch_sizes):
        table(name, size, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        _, seconds = run_processes(1, lambda: steps("N-BEATS", 1, "scott", 64, folder))
        size = os.path.getsize(os.path.join(folder, "last.ckpt"))
    print(f"\na checkpoint of this run: {size / 1e6:.0f} MB, {seconds:.2f} s")


if __name__ == "__main__":
    main()
