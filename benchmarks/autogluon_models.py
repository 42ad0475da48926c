"""Compare training speed with AutoGluon's own models, inside AutoGluon: one table.

    python benchmarks/autogluon_models.py [MODEL ...] [--epochs 20] [--rounds 5]

Each side is one `TimeSeriesPredictor.fit` of one model, without validation or ensemble,
on the same hourly series and on one thread: AutoGluon's model, and this package's with
the plain and the auto method, eager and compiled. Batch size, context and layer sizes are
AutoGluon's defaults; all sides make the same number of steps, epochs times batches per
epoch.

Two times are reported. Training is what passes between Lightning's ``on_train_start`` and
``on_train_end``, without compilation. The whole fit is the call of ``fit``, with
compilation, data and saving. Rounds are interleaved, and medians are reported; a first
round, with an empty cache of compiled steps, is not part of them and reported apart.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, ClassVar

# A first compilation is one with an empty cache.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="compiled-")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import torch
from autogluon.timeseries import TimeSeriesPredictor
from autogluon.timeseries.models.registry import ModelRegistry
from tables import markdown

import pts_scott.integrations.autogluon  # noqa: F401 - registers the models
from pts_scott.training.lightning_module import OuterLoopModule

MODELS = ("SimpleFeedForward", "DLinear", "PatchTST", "TiDE", "DeepAR")
OWN = "AutoGluon"
#: Ours: method, and whether steps are compiled.
SIDES: dict[str, dict[str, Any]] = {
    "plain, eager": {"method": "plain", "compile": False},
    "plain, compiled": {"method": "plain", "compile": True},
    "auto, eager": {"method": "auto", "compile": False},
    "auto, compiled": {"method": "auto", "compile": True},
}
PREDICTION_LENGTH = 24


class Training(pl.Callback):
    """Measures training, also in copies of this object."""

    #: Steps, seconds of training and of compilation, and why steps were not compiled.
    measured: ClassVar[dict[str, Any]] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self.measured["began"] = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock, and subtract compilation."""
        taken = time.perf_counter() - self.measured.pop("began")
        compilation, fallback = 0.0, None
        if isinstance(pl_module, OuterLoopModule):
            compilation = pl_module.state.history.compile_seconds
            fallback = pl_module.compile_fallback
        self.measured["training"] = taken - compilation
        self.measured["compilation"] = compilation
        self.measured["not compiled"] = fallback or ""
        self.measured["steps"] = trainer.global_step


def series(count: int, length: int) -> pd.DataFrame:
    """Return hourly series with a daily wave, of different levels and noise."""
    rng = np.random.default_rng(0)
    times = pd.date_range("2024-01-01", periods=length, freq="h")
    wave = np.sin(np.arange(length) * 2 * np.pi / 24)
    parts = []
    for number in range(count):
        level, noise = rng.uniform(5, 50), rng.lognormal(0, 1)
        target = level + 3 * wave + noise * rng.standard_normal(length)
        parts.append(
            pd.DataFrame({"item_id": number, "timestamp": times, "target": target})
        )
    return pd.concat(parts)


def fit(model: str, settings: dict[str, Any], data: pd.DataFrame) -> dict[str, Any]:
    """Fit one model; return the seconds of the whole fit, of training, of compilation."""
    Training.measured.clear()
    steps = settings["max_epochs"] * settings["num_batches_per_epoch"]
    settings = {
        **settings,
        "early_stopping_patience": None,
        "trainer_kwargs": {"callbacks": [Training()]},
    }
    with tempfile.TemporaryDirectory() as folder, silence():
        predictor = TimeSeriesPredictor(
            prediction_length=PREDICTION_LENGTH, freq="h", path=folder, verbosity=0
        )
        began = time.perf_counter()
        predictor.fit(
            data,
            hyperparameters={model: settings},
            enable_ensemble=False,
            skip_model_selection=True,
        )
        taken = time.perf_counter() - began
    if Training.measured.get("steps") != steps:
        raise RuntimeError(
            f"{model} made {Training.measured.get('steps')} steps, not {steps}."
        )
    return {"fit": taken, **Training.measured}


@contextlib.contextmanager
def silence() -> Any:
    """Hide output and warnings."""
    with (
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def measure(
    model: str, steps: dict[str, int], data: pd.DataFrame, rounds: int
) -> list[dict[str, Any]]:
    """Return the rows of one model: one per side."""
    sides = {OWN: (model, steps)}
    for side, settings in SIDES.items():
        sides[side] = (f"Scott{model}", {**steps, **settings, "threads": 1})
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(rounds + 1):
        for side, (name, settings) in sides.items():
            found[side].append(fit(name, settings, data))
    own = ModelRegistry.get_model_class(model)(prediction_length=PREDICTION_LENGTH)
    size = own.get_hyperparameters()["batch_size"]
    rows: list[dict[str, Any]] = []
    for side, (first, *rest) in found.items():
        row = {"model": model, "M": size, "side": side, "steps": first["steps"]}
        for kind in ("training", "fit", "compilation"):
            row[f"{kind}, s"] = statistics.median(one[kind] for one in rest)
            row[f"first {kind}, s"] = first[kind]
            row[f"{kind}: rounds, s"] = " ".join(f"{one[kind]:.3f}" for one in rest)
        row["not compiled"] = first["not compiled"]
        rows.append(row)
    for row in rows:
        row["training, times"] = rows[0]["training, s"] / row["training, s"]
        row["fit, times"] = rows[0]["fit, s"] / row["fit, s"]
    return rows


#: Columns of the table for docs/autogluon.md, and how their cells are written.
COLUMNS = {
    "model": "{}",
    "M": "{}",
    "side": "{}",
    "training, s": "{:.2f}",
    "training, times": "{:.1f} ×",
    "fit, s": "{:.2f}",
    "fit, times": "{:.1f} ×",
    "first fit, s": "{:.1f}",
    "first compilation, s": "{:.1f}",
}


def main() -> None:
    """Measure the given models, or all of them; print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batches", type=int, default=50, help="per epoch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--series", type=int, default=100)
    parser.add_argument("--length", type=int, default=1000, help="hours per series")
    parser.add_argument("--output", type=Path, default=Path("benchmark-results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    options.output.mkdir(exist_ok=True)
    data = series(options.series, options.length)
    steps = {"max_epochs": options.epochs, "num_batches_per_epoch": options.batches}
    rows: list[dict[str, Any]] = []
    for model in options.models:
        rows += measure(model, steps, data, options.rounds)
        with (options.output / "autogluon.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        print(f"{model} is measured", file=sys.stderr, flush=True)
    print(markdown(rows, COLUMNS))


if __name__ == "__main__":
    main()
