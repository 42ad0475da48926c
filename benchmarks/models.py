"""Compare the training speed of every model with the library's own training loop.

    python benchmarks/models.py [MODEL ...] [--rounds 3] [--steps 60] [--write]

Each model trains with the library's own loop and with ScottTrainer (plain and SCott), on
the data of the tests, with the library's default layer sizes, M = 32, Adam, eager and on
one thread. The difference between a long and a short run excludes constant overhead.
Rounds are interleaved, and medians are printed as rows of the table in docs/models.md;
``--write`` updates that table, including what the tests guarantee for each model.
"""

from __future__ import annotations

import argparse
import contextlib
import io
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
from pts_scott.backends import backend

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

if backend.NAME == "gluonts":
    from gluonts.torch.model.deep_npts import DeepNPTSEstimator
    from helpers.gluonts_models import CONTRACT, LENGTHS, MODELS, Model, dataset_of

    MODELS = {**MODELS, "DeepNPTS": Model(DeepNPTSEstimator, {**LENGTHS, "freq": "h"})}
    TITLE = "GluonTS"
else:
    from helpers.pytorchts_models import CONTRACT, MODELS, dataset_of

    TITLE = "PyTorchTS"

BATCH = 32
# Arguments with which the tests make networks small.
SIZES = {
    *("hidden_size", "num_cells", "hidden_dim", "variable_dim", "embed_dim", "d_model"),
    *("nhead", "num_heads", "dim_feedforward", "dim_feedforward_scale", "num_bins"),
    *("num_encoder_layers", "num_decoder_layers", "residual_channels", "n_blocks"),
    *("residual_layers", "diff_steps", "conditioning_length", "channels", "num_stacks"),
    *("widths", "icnn_hidden_size", "icnn_num_layers"),
}


def library_run(model: Any, arguments: dict[str, Any], steps: int) -> None:
    """Train with the library's own loop."""
    settings: dict[str, Any] = {"batch_size": BATCH, "num_batches_per_epoch": steps}
    if backend.NAME == "pytorchts":
        import pts

        trainer = pts.Trainer(epochs=1, device="cpu", **settings)
        estimator = model.estimator(**arguments, trainer=trainer)
        estimator.train(dataset_of(model), prefetch_factor=None)
        return
    if "epochs" in model.estimator.__init__.__annotations__:  # DeepNPTS
        settings["epochs"] = 1
    else:
        settings["trainer_kwargs"] = {
            "max_epochs": 1,
            "accelerator": "cpu",
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": True,  # GluonTS' default
        }
    model.estimator(**arguments, **settings).train(dataset_of(model))


def our_run(model: Any, arguments: dict[str, Any], steps: int, method: str) -> None:
    """Train the same model with ScottTrainer."""
    trainer = ScottTrainer(
        method=method,
        optimizer="adam",
        clip_gradient=None,
        batch_size=BATCH,
        anchor_batch_size=4,
        epochs=1,
        num_batches_per_epoch=steps,
        device="cpu",
        compile=False,
        seed=0,
        trainer_kwargs={"enable_progress_bar": False},
    )
    with_scott(model.estimator)(**arguments, trainer=trainer).train(dataset_of(model))


def seconds_of(run: Callable[[int], None], steps: int) -> float:
    """Return the seconds per step: a long run minus a short one."""
    taken = []
    for length in (steps // 4, steps + steps // 4):
        began = time.perf_counter()
        with contextlib.redirect_stderr(io.StringIO()):  # PyTorchTS' progress
            run(length)
        taken.append(time.perf_counter() - began)
    return (taken[1] - taken[0]) / steps


def measure(name: str, rounds: int, steps: int) -> list[str]:
    """Return a model's cells: the library's steps per second, and our speedups."""
    model = MODELS[name]
    arguments = {k: v for k, v in model.arguments.items() if k not in SIZES}
    runs: dict[str, Callable[[int], None]] = {
        "library": lambda n: library_run(model, arguments, n),
        "plain": lambda n: our_run(model, arguments, n, "plain"),
        "scott": lambda n: our_run(model, arguments, n, "scott"),
    }
    times: dict[str, list[float]] = {kind: [] for kind in runs}
    for _ in range(rounds):
        for kind, run in runs.items():
            times[kind].append(seconds_of(run, steps))
    median = {kind: statistics.median(found) for kind, found in times.items()}
    ratios = [median["library"] / median[kind] for kind in ("plain", "scott")]
    return [f"{1 / median['library']:.0f}", *(f"{ratio:.1f} ×" for ratio in ratios)]


def row(name: str, cells: list[str], remark: str) -> str:
    """Return a row of the table."""
    guaranteed = ["yes" if found else "no" for found in CONTRACT[name].values()]
    return f"| {' | '.join([name, *guaranteed, *cells, remark]).rstrip()} |"


def write(name: str, cells: list[str]) -> None:
    """Write a model's row into the backend's table."""
    path = ROOT / "docs/models.md"
    before, heading, table = path.read_text().partition(f"## {TITLE}\n")
    lines = table.split("\n")
    for number, line in enumerate(lines):
        if line.startswith(f"| {name} |"):
            lines[number] = row(name, cells, line.split("|")[-2].strip())
            break
    path.write_text(before + heading + "\n".join(lines))


def main() -> None:
    """Measure the given models, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--write", action="store_true", help="into docs/models.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for name in options.models:
        cells = measure(name, options.rounds, options.steps)
        print(row(name, cells, ""), flush=True)
        if options.write:
            write(name, cells)


if __name__ == "__main__":
    main()
