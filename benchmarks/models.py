"""Every model of the stack: steps a second against the library's own loop.

    python benchmarks/models.py [MODEL ...] [--rounds 3] [--steps 100] [--default-sizes]

Each model trains with the library's own loop and with ScottTrainer (plain and SCott),
on the same data with M = 32 and one thread, eager; what a run takes beside its steps is
left out by taking the difference of two lengths. Rounds are interleaved; medians are
printed as a Markdown table, the one in docs/models.md.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pts_scott import ScottTrainer, with_scott
from pts_scott.stacks import stack

sys.path[:0] = [
    str(Path(__file__).parent.parent / "tests"),
    str(Path(__file__).parent.parent / "tests/stacks"),
]


if stack.NAME == "gluonts":
    from test_gluonts import MODELS, dataset
else:
    from test_pytorchts import MODELS
    from test_pytorchts import data_of as dataset

BATCH = 32
QUIET = {"enable_progress_bar": False}
SIZES = ("hidden_size", "num_cells", "hidden_dim", "variable_dim", "embed_dim")
SIZES += ("d_model", "residual_channels", "residual_layers", "diff_steps")


def library_run(model: Any, arguments: dict[str, Any], steps: int) -> None:
    """Train with the library's own loop."""
    data = dataset(model)
    if stack.NAME == "gluonts":
        lightning = {
            **{"max_epochs": 1, "accelerator": "cpu", "logger": False},
            **{"enable_progress_bar": False, "enable_model_summary": False},
            "enable_checkpointing": True,
        }
        estimator = model.estimator(
            **arguments,
            batch_size=BATCH,
            num_batches_per_epoch=steps,
            trainer_kwargs=lightning,
        )
        estimator.train(data)
        return
    import pts

    trainer = pts.Trainer(
        epochs=1, batch_size=BATCH, num_batches_per_epoch=steps, device="cpu"
    )
    model.estimator(**arguments, trainer=trainer).train(data, prefetch_factor=None)


def our_run(model: Any, arguments: dict[str, Any], steps: int, method: str) -> None:
    """Train the same model with ScottTrainer."""
    trainer = ScottTrainer(
        method=method,
        optimizer="adam",
        batch_size=BATCH,
        anchor_batch_size=4,
        epochs=1,
        num_batches_per_epoch=steps,
        device="cpu",
        compile=False,
        seed=0,
        trainer_kwargs=QUIET,
    )
    with_scott(model.estimator)(**arguments, trainer=trainer).train(dataset(model))


def seconds_of(run: Callable[[int], None], steps: int) -> float:
    """Seconds of one step: a long run less a short one."""
    taken = []
    for length in (steps // 4, steps + steps // 4):
        began = time.perf_counter()
        run(length)
        taken.append(time.perf_counter() - began)
    return (taken[1] - taken[0]) / steps


def main() -> None:
    """Measure the models that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--default-sizes", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print("| model | library, steps/s | plain | SCott |")
    print("|---|---|---|---|")
    for name in options.models:
        model = MODELS[name]
        arguments = dict(model.arguments)
        if options.default_sizes:
            arguments = {k: v for k, v in arguments.items() if k not in SIZES}
        runs: dict[str, Callable[[int], None]] = {
            "library": lambda n, m=model, a=arguments: library_run(m, a, n),
            "plain": lambda n, m=model, a=arguments: our_run(m, a, n, "plain"),
            "scott": lambda n, m=model, a=arguments: our_run(m, a, n, "scott"),
        }
        times: dict[str, list[float]] = {kind: [] for kind in runs}
        for _ in range(options.rounds):
            for kind, run in runs.items():
                times[kind].append(seconds_of(run, options.steps))
        median = {kind: statistics.median(found) for kind, found in times.items()}
        ratios = [median["library"] / median[kind] for kind in ("plain", "scott")]
        print(
            f"| {name} | {1 / median['library']:.0f} | {ratios[0]:.1f} × | "
            f"{ratios[1]:.1f} × |",
            flush=True,
        )


if __name__ == "__main__":
    main()
