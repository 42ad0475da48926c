"""Measure training on many series from a memory-mapped Arrow file: memory, time, draws.

    python benchmarks/large.py            # all rows
    python benchmarks/large.py learned    # some of them

Series are generated and written batch by batch, so that they are never in memory as a
whole. Each row is a process of its own. Memory is the peak of anonymous pages (RssAnon in
/proc/PID/status, read every few milliseconds by another process) beyond what the process
holds after its imports and a small training run. Pages of the mapped file are not in it:
the operating system drops them whenever it needs memory. Draws are compared with those of
a small file, in the same process, by the CPU time of interleaved rounds.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from pts_scott import (
    ArrowDataset,
    ScottTrainer,
    SimpleFeedForwardEstimator,
    Stratifier,
    WindowIndex,
)
from pts_scott.method.samplers import AllocatedSampler, Sampler, UniformSampler
from pts_scott.strata.learned import Learned

ROUNDS, DRAWS, BATCH = 21, 4096, 32
ROWS = 10_000  # series written at once
WEEK = {"D": 7, "h": 168}


class Size(NamedTuple):
    """The series of a file, and the windows of the model trained on it."""

    series: int
    steps: int
    freq: str
    prediction_length: int
    context_length: int


SMALL = {"D": Size(1_000, 300, "D", 7, 28), "h": Size(1_000, 1_000, "h", 24, 72)}
DAYS, HOURS = Size(500_000, 300, "D", 7, 28), Size(100_000, 1_000, "h", 24, 72)


WATCH = """
import select, sys
peak, path = 0, f"/proc/{sys.argv[1]}/status"
while not select.select([sys.stdin], [], [], 0.004)[0]:
    with open(path) as status:
        line = next(line for line in status if line.startswith("RssAnon"))
    peak = max(peak, int(line.split()[1]))
print(peak)
"""


class Watch:
    """Measures the peak of this process' anonymous memory, from another process."""

    def __init__(self) -> None:
        command, pipe = [sys.executable, "-c", WATCH, str(os.getpid())], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        time.sleep(0.2)  # until it has started

    def megabytes(self) -> float:
        """End the measurement and return the peak."""
        return int(self._process.communicate("\n")[0]) / 1e3


def anonymous_megabytes() -> float:
    """Return the anonymous memory of this process now."""
    gc.collect()
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1e3


def write(path: Path, size: Size) -> None:
    """Write series of very different levels and noise, with a weekly pattern."""
    generator = np.random.default_rng(0)
    kinds = [pa.list_(pa.float32()), pa.timestamp("us"), pa.string()]
    schema = pa.schema(list(zip(("target", "start", "item_id"), kinds)))
    wave = 1 + 0.5 * np.sin(2 * np.pi * np.arange(size.steps) / WEEK[size.freq])
    with pa.RecordBatchFileWriter(str(path), schema) as writer:
        for first in range(0, size.series, ROWS):
            count = min(ROWS, size.series - first)
            level, noise = np.exp(generator.standard_normal((2, count, 1)))
            values = generator.standard_normal((count, size.steps), dtype=np.float32)
            values = np.maximum(level * (wave + 0.3 * noise * values), 0)
            offsets = np.arange(count + 1, dtype=np.int32) * size.steps
            columns = [
                pa.ListArray.from_arrays(offsets, values.astype(np.float32).reshape(-1)),
                pa.array([np.datetime64("2023-01-01", "us")] * count, kinds[1]),
                pa.array([f"item {i}" for i in range(first, first + count)], kinds[2]),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))


class Run(NamedTuple):
    """A run that has ended: its trainer, its windows, and the time it took."""

    trainer: ScottTrainer
    windows: WindowIndex
    index_seconds: float
    train_seconds: float

    def sampler(self) -> Sampler:
        """Return a sampler of the strata that the run used last."""
        generator = torch.Generator().manual_seed(0)
        strata = self.trainer.strata
        if strata is None:
            return UniformSampler(self.windows, BATCH, generator)
        return AllocatedSampler(strata, strata.weights, BATCH, generator)


def train(path: Path, size: Size, options: dict[str, Any]) -> Run:
    """Train a network on all windows of a file."""
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    trainer = ScottTrainer(
        **{"seed": 0, "trainer_kwargs": {**quiet, "logger": False}, **options}
    )
    estimator = SimpleFeedForwardEstimator(
        size.freq, size.prediction_length, size.context_length, trainer=trainer
    )
    began = time.perf_counter()
    windows = estimator.create_windows(ArrowDataset(path, size.freq))
    indexed = time.perf_counter()
    estimator.train_windows(windows)
    return Run(trainer, windows, indexed - began, time.perf_counter() - indexed)


def defaults(path: Path, size: Size) -> dict[str, Any]:
    """Return no options: `ScottTrainer` as it is, with method="auto"."""
    return {}


def learned(path: Path, size: Size) -> dict[str, Any]:
    """Return the options of learned strata with spread allocation."""
    stratifier = Stratifier.learned(32)
    return {"method": "stratified", "stratifier": stratifier, "allocation": "spread"}


def fitted(path: Path, size: Size) -> dict[str, Any]:
    """Return the same with strata that another run found: all windows are sorted."""
    run = train(path, size, {**learned(path, size), "epochs": 3})
    assert run.trainer.strata is not None
    stratifier = pickle.loads(pickle.dumps(run.trainer.strata.stratifier))
    return {**learned(path, size), "stratifier": stratifier}


#: By name: the size of the series, and the options of the trainer.
CASES: dict[str, tuple[Size, Callable[[Path, Size], dict[str, Any]]]] = {
    "learned": (DAYS, learned),
    "auto": (DAYS, defaults),
    "fitted": (DAYS, fitted),
    "defaults": (HOURS, defaults),
}


def like(run: Run) -> dict[str, Any]:
    """Return the options of a short run that draws from strata of the same kind."""
    strata = run.trainer.strata
    if strata is None:
        return {"method": "plain", "epochs": 1}
    policy = strata.stratifier
    kind = Stratifier.learned(32) if isinstance(policy, Learned) else policy
    return {"method": "stratified", "stratifier": kind, "epochs": 3}


def rates(runs: list[Run]) -> list[tuple[float, float]]:
    """Return draws per CPU second of each run, without and with reading the windows."""
    samplers = [run.sampler() for run in runs]
    found: list[list[tuple[float, float]]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, sampler, results in zip(runs, samplers, found):
            began = time.thread_time()
            drawn = [sampler.draw().windows for _ in range(DRAWS)]
            middle = time.thread_time()
            for windows in drawn:
                run.windows.gather(windows)
            end = time.thread_time()
            results.append((DRAWS / (middle - began), DRAWS / (end - began)))
    medians = [[statistics.median(column) for column in zip(*own)] for own in found]
    return [(draw, read) for draw, read in medians]


def measure(case: str, folder: Path) -> dict[str, Any]:
    """Run one case in this process, and return its row."""
    size, options = CASES[case]
    small = SMALL[size.freq]
    paths = [folder / f"{s.series}x{s.steps}.arrow" for s in (small, size)]
    # A short run with a probe imports everything that is imported late.
    train(paths[0], small, {**learned(paths[0], small), "epochs": 3})
    own_options = options(paths[1], size)
    before, watch = anonymous_megabytes(), Watch()
    run = train(paths[1], size, own_options)
    peak = watch.megabytes()
    held = anonymous_megabytes()
    rate = rates([train(paths[0], small, like(run)), run])
    history = run.trainer.history.iloc[-1]
    return {
        "windows": len(run.windows),
        "sampler": history["sampler"],
        "MB before": before,
        "MB peak": peak - before,
        "MB held": held - before,
        "s index": run.index_seconds,
        "s strata": run.trainer.stratify_seconds,
        "s probes": history["probe_seconds"],
        "steps": history["step"],
        "s train": run.train_seconds,
        "draws/s": rate[1][0],
        "ratio": rate[1][0] / rate[0][0],
        "with reading": rate[1][1] / rate[0][1],
    }


def main() -> None:
    """Write the files, run each case in its own process, and print the rows."""
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["--measure"]:  # a process for one case
        row = measure(sys.argv[2], Path(sys.argv[3]))
        print(json.dumps(row, default=float))  # NumPy's numbers
        return
    with tempfile.TemporaryDirectory() as folder:
        for size in (*SMALL.values(), DAYS, HOURS):
            path = Path(folder) / f"{size.series}x{size.steps}.arrow"
            began = time.perf_counter()
            write(path, size)
            seconds, megabytes = time.perf_counter() - began, path.stat().st_size / 1e6
            print(f"{path.name}: {megabytes:.0f} MB written in {seconds:.1f} s")
        for case in sys.argv[1:] or CASES:
            command = [sys.executable, __file__, "--measure", case, folder]
            printed = subprocess.check_output(command, text=True)
            print(f"\n{case}")
            for name, value in json.loads(printed.splitlines()[-1]).items():
                text = value if isinstance(value, str) else f"{value:,.2f}"
                print(f"  {name:14s} {text:>16s}")


if __name__ == "__main__":
    main()
