"""Track memory, speed and open files over a long run of a small model.

    python benchmarks/long_run.py [--steps 200000] [--parts 10]

Trains VAR on two waves with SCott, compiled, with a checkpoint every 20,000 steps. For
each part of the run it prints the steps per second, and the resident memory and number of
open files at the end.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from gluonts.dataset.common import ListDataset

from pts_scott import Checkpoints, ScottTrainer, Stratifier, VAREstimator
from pts_scott.training.callbacks import Observer


def resident() -> float:
    """Return the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Monitor(Observer):
    """Callback that prints one line per part of the run."""

    def __init__(self, every: int) -> None:
        self._every, self._next = every, every
        self._last = (0, time.perf_counter())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Print a line if another part is done."""
        if pl_module.steps < self._next:
            return
        self._next += self._every
        now = time.perf_counter()
        steps, began = self._last
        rate = (pl_module.steps - steps) / (now - began)
        files = len(os.listdir("/proc/self/fd"))
        print(
            f"| {pl_module.steps} | {rate:.0f} | {resident():.1f} | {files} |", flush=True
        )
        self._last = (pl_module.steps, time.perf_counter())


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--parts", type=int, default=10)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    hours = np.arange(24 * 60)
    rows = [5 + np.sin(2 * np.pi * hours / 24 + shift) for shift in (0, 1)]
    entries = [{"start": "2024-01-01", "target": row} for row in rows]
    print("| step | steps/s | resident MB | open files |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        trainer = ScottTrainer(
            method="scott",
            optimizer="sgd",
            clip_gradient=None,
            stratifier=Stratifier.calendar("hour"),
            anchor_batch_size=2,
            epochs=1,
            num_batches_per_epoch=options.steps,
            compile=True,
            threads=1,
            seed=0,
            checkpoint=Checkpoints(folder, steps=20_000),
            trainer_kwargs={
                "enable_progress_bar": False,
                "callbacks": [Monitor(options.steps // options.parts)],
            },
        )
        VAREstimator(
            freq="h", prediction_length=4, context_length=12, trainer=trainer
        ).train(ListDataset(entries, freq="h"))
    history = trainer.history
    share = trainer.checkpoint_seconds / history["seconds"].iloc[-1]
    print(f"{len(history)} outer loops; checkpoints took {share:.2%} of training time")


if __name__ == "__main__":
    main()
