"""Compare training speed with other training loops, model by model: one table.

    python benchmarks/libraries.py [MODEL ...] [--batch-sizes 32 256] [--rounds 5]

Each side trains the same network, with the library's default layer sizes, on the data of
the tests, on one thread, with Adam and clipping at 10: the library's own loop (as it
is, and with ``cache_data=True``), `ScottTrainer` with the plain method, eager and
compiled, and where they are installed AutoGluon's wrapper of the model and
neuralforecast's closest model, whose networks are their own. The bare limit is one
compiled function on a batch that is already in memory: forward, backward, clipping and
update, and nothing else.

Rounds are interleaved, and medians are reported. Times are those between steps; what
happens before the first one is not part of them. Seconds of compilation are reported
apart, with an empty cache and with that of the first run, and as a part of the default
5,000 steps.
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
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

# Seconds of compilation are those of a first run, unless a cache is given.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="compiled-"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import lightning.pytorch as pl
import models as own_models
import pandas as pd
import torch
from tables import markdown

from pts_scott import NBEATSEstimator, ScottTrainer, with_scott
from pts_scott.backends import backend
from pts_scott.engine.compiled import CompiledEngine
from pts_scott.engine.gradients import Gradients
from pts_scott.method.protocol import Counters, Sample
from pts_scott.training.runner import OuterLoopRunner

SIZES, dataset_of = own_models.SIZES, own_models.dataset_of
Model = type(own_models.MODELS["SimpleFeedForward"])
#: One step ahead, as in the paper's experiments.
SHORT = "SimpleFeedForward (8, 1)"
MODELS = dict(own_models.MODELS)
MODELS[SHORT] = replace(
    MODELS["SimpleFeedForward"],
    arguments=MODELS["SimpleFeedForward"].arguments
    | {"context_length": 8, "prediction_length": 1},
)
if backend.NAME == "gluonts":  # which has no N-BEATS, so that it is this package's
    lengths = {"freq": "h", "context_length": 12, "prediction_length": 4}
    MODELS["N-BEATS"] = Model(NBEATSEstimator, lengths)
DEFAULT_STEPS = 5000
ROUND_SECONDS = 2.0
QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}
#: neuralforecast's closest model, by name, with the arguments that all of them take.
NEURALFORECAST = {
    "SimpleFeedForward": ("MLP", {"hidden_size": 20, "num_layers": 2}),
    "DLinear": ("DLinear", {}),
    "PatchTST": ("PatchTST", {"hidden_size": 32, "n_heads": 4, "encoder_layers": 2}),
    "TiDE": ("TiDE", {"hidden_size": 4, "decoder_output_dim": 4}),
    "DeepAR": ("DeepAR", {"lstm_hidden_size": 40, "lstm_n_layers": 2}),
    "TFT": ("TFT", {"hidden_size": 32, "n_head": 4}),
    "WaveNet": ("TCN", {"encoder_hidden_size": 24}),
    "N-BEATS": ("NBEATS", {"stack_types": ["identity"] * 30, "n_blocks": [1] * 30}),
}
AUTOGLUON = {
    "SimpleFeedForward": "SimpleFeedForward",
    "DLinear": "DLinear",
    "PatchTST": "PatchTST",
    "TiDE": "TiDE",
    "DeepAR": "DeepAR",
    "TFT": "TemporalFusionTransformer",
    "WaveNet": "WaveNet",
}


class Ticks(pl.Callback):
    """Records when each step ends, also in copies of this object."""

    recorded: ClassVar[list[float]] = []

    def __init__(self) -> None:
        self.recorded.clear()

    def on_train_batch_end(self, *_: Any) -> None:
        """Record the time."""
        self.recorded.append(time.perf_counter())

    def seconds_per_step(self) -> float:
        """Return the mean over the last three quarters of the steps."""
        times = self.recorded[len(self.recorded) // 4 :]
        return (times[-1] - times[0]) / (len(times) - 1)


def arguments_of(name: str) -> dict[str, Any]:
    """Return the arguments of a model with the library's default layer sizes."""
    return {k: v for k, v in MODELS[name].arguments.items() if k not in SIZES}


# -- sides ----------------------------------------------------------------------------


def library(name: str, size: int, steps: int, cache_data: bool) -> float:
    """Return the seconds per step of GluonTS' own loop."""
    ticks = Ticks()
    kwargs = {**QUIET, "max_epochs": 1, "callbacks": [ticks]}
    estimator = MODELS[name].estimator(
        **arguments_of(name),
        batch_size=size,
        num_batches_per_epoch=steps,
        trainer_kwargs=kwargs,
    )
    estimator.train(dataset_of(MODELS[name]), cache_data=cache_data)
    return ticks.seconds_per_step()


def without_ticks(name: str, size: int, steps: int, cache_data: bool = False) -> float:
    """Return the seconds per step of a loop without callbacks: long minus short runs."""

    def run(length: int) -> None:
        model, settings = MODELS[name], {"num_batches_per_epoch": length}
        if backend.NAME == "pytorchts":
            import pts

            trainer = pts.Trainer(epochs=1, device="cpu", batch_size=size, **settings)
            estimator = model.estimator(**arguments_of(name), trainer=trainer)
            estimator.train(
                dataset_of(model), prefetch_factor=None, cache_data=cache_data
            )
            return
        model.estimator(
            **arguments_of(name), epochs=1, batch_size=size, **settings
        ).train(dataset_of(model))

    return own_models.seconds_of(run, steps)


class Ours:
    """`ScottTrainer` with the plain method.

    Parameters
    ----------
    name
        The model.
    size
        M.
    compiled
        Whether steps are compiled.
    """

    def __init__(self, name: str, size: int, compiled: bool) -> None:
        self.name, self.size, self.compiled = name, size, compiled
        self.compile_seconds: list[float] = []
        self.fallback: str | None = None

    def __call__(self, steps: int) -> float:
        """Return the seconds per step."""
        trainer = self.trainer(steps)
        self.train(trainer)
        history = trainer.history
        self.compile_seconds.append(float(history["compile_seconds"].iloc[-1]))
        late = history[history["step"] >= trainer.num_batches_per_epoch]
        first, last = late.iloc[0], late.iloc[-1]
        return float(last["seconds"] - first["seconds"]) / (last["step"] - first["step"])

    def trainer(self, steps: int, **kwargs: Any) -> ScottTrainer:
        """Return a trainer for some steps, in three epochs."""
        return ScottTrainer(
            method="plain",
            batch_size=self.size,
            epochs=3,
            num_batches_per_epoch=max(steps // 3, 20),
            device="cpu",
            compile=self.compiled,
            threads=1,
            seed=0,
            trainer_kwargs={"enable_progress_bar": False, **kwargs},
        )

    def train(self, trainer: ScottTrainer) -> None:
        """Train the model."""
        model = MODELS[self.name]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            own = model.estimator is NBEATSEstimator
            estimator = model.estimator if own else with_scott(model.estimator)
            estimator(**arguments_of(self.name), trainer=trainer).train(dataset_of(model))
        reasons = [str(w.message) for w in told if "ompil" in str(w.message)]
        self.fallback = reasons[0] if reasons else None


class Limits(pl.Callback):
    """Measures steps of the engine at the end of a run: bare, plain, and inner ones."""

    def __init__(self, size: int, rounds: int) -> None:
        self.size, self.rounds = size, rounds
        self.medians: dict[str, float] = {}

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Build the engines, and measure them in interleaved rounds."""
        runner: OuterLoopRunner = module.runner  # type: ignore[assignment]
        generator = torch.Generator().manual_seed(0)

        def draw() -> Sample:
            return Sample(runner.windows.draw(self.size, generator))

        batch = runner._gather(draw().windows)
        bare = self._engine(runner, lambda _: batch)
        engine = self._engine(runner, runner._gather)
        anchor = engine.gradients.uniform(batch).direction
        windows = draw()
        sides = {
            "bare": lambda: bare.apply(bare.direction(windows, None, 1.0), False),
            "plain": lambda: engine.apply(engine.direction(draw(), None, 1.0), False),
            "inner": lambda: engine.apply(engine.direction(draw(), anchor, 1.0), False),
        }
        times: dict[str, list[float]] = {name: [] for name in sides}
        for step in sides.values():
            step()
        began = time.perf_counter()
        sides["inner"]()
        count = int(max(3, min(500, 0.5 / (time.perf_counter() - began))))
        for _ in range(self.rounds):
            for name, step in sides.items():
                began = time.perf_counter()
                for _ in range(count):
                    step()
                times[name].append((time.perf_counter() - began) / count)
        self.medians = {name: statistics.median(found) for name, found in times.items()}

    def _engine(self, runner: OuterLoopRunner, gather: Any) -> CompiledEngine:
        losses = runner.losses
        parameters = list(losses.trainable().values())
        optimizer = torch.optim.Adam(parameters, lr=1e-5, weight_decay=1e-5)
        gradients = Gradients(
            losses,
            compiled=True,
            stochastic=runner.effects.random,
            stateful=runner.effects.buffers,
            idle=runner.setup.facts.idle,  # type: ignore[union-attr]
        )
        return CompiledEngine(
            *(gradients, gather, Counters(), optimizer),
            uses_snapshot=True,
            clip_gradient=10.0,
        )


def neuralforecast(name: str, size: int, steps: int) -> float:
    """Return the seconds per step of neuralforecast's closest model."""
    import neuralforecast
    import neuralforecast.models

    kind, sizes = NEURALFORECAST[name]
    ticks = Ticks()
    model = getattr(neuralforecast.models, kind)(
        h=4,
        input_size=12,
        max_steps=steps,
        windows_batch_size=size,
        batch_size=4,
        callbacks=[ticks],
        **sizes,
        **QUIET,
    )
    neuralforecast.NeuralForecast([model], freq="h").fit(long_frame(name))
    return ticks.seconds_per_step()


def autogluon(name: str, size: int, steps: int) -> float:
    """Return the seconds per step of AutoGluon's wrapper."""
    from autogluon.timeseries import TimeSeriesPredictor

    ticks = Ticks()
    settings: dict[str, Any] = {
        "max_epochs": 1,
        "num_batches_per_epoch": steps,
        "batch_size": size,
        "early_stopping_patience": None,
        "trainer_kwargs": {"callbacks": [ticks]},
    }
    if name != "WaveNet":
        settings["context_length"] = 12
    frame = long_frame(name).rename(
        columns={"unique_id": "item_id", "ds": "timestamp", "y": "target"}
    )
    with tempfile.TemporaryDirectory() as folder:
        TimeSeriesPredictor(prediction_length=4, freq="h", path=folder, verbosity=0).fit(
            frame,
            hyperparameters={AUTOGLUON[name]: settings},
            enable_ensemble=False,
            skip_model_selection=True,
        )
    return ticks.seconds_per_step()


def long_frame(name: str) -> pd.DataFrame:
    """Return the data of a model as rows of (unique_id, ds, y)."""
    parts = []
    for entry in dataset_of(MODELS[name]):
        moments = pd.date_range(
            entry["start"].to_timestamp(), periods=len(entry["target"]), freq="h"
        )
        part = {"unique_id": entry["item_id"], "ds": moments, "y": entry["target"]}
        parts.append(pd.DataFrame(part))
    return pd.concat(parts)


# -- measurement ------------------------------------------------------------------------


def sides_of(name: str, size: int) -> dict[str, Callable[[int], float]]:
    """Return the sides of one row: functions from steps to seconds per step."""
    sides: dict[str, Callable[[int], float]] = {}
    if backend.NAME == "gluonts" and name != "DeepNPTS":
        if MODELS[name].estimator is not NBEATSEstimator:
            sides["library"] = lambda n: library(name, size, n, cache_data=False)
            sides["cached"] = lambda n: library(name, size, n, cache_data=True)
        if name in AUTOGLUON and is_installed("autogluon.timeseries"):
            sides["AutoGluon"] = lambda n: autogluon(name, size, n)
        if name in NEURALFORECAST and is_installed("neuralforecast"):
            sides["neuralforecast"] = lambda n: neuralforecast(name, size, n)
    else:
        sides["library"] = lambda n: without_ticks(name, size, n)
        if backend.NAME == "pytorchts":
            sides["cached"] = lambda n: without_ticks(name, size, n, cache_data=True)
    sides["eager"] = Ours(name, size, compiled=False)
    sides["compiled"] = Ours(name, size, compiled=True)
    return sides


def is_installed(package: str) -> bool:
    """Return whether a package can be imported."""
    try:
        __import__(package)
    except ImportError:
        return False
    return True


def measure(name: str, size: int, rounds: int) -> dict[str, Any]:
    """Return one row of the table."""
    sides = sides_of(name, size)
    ours = sides["compiled"]
    assert isinstance(ours, Ours)
    steps, row = {}, {"model": name, "M": size}
    for side in list(sides):
        try:
            first = silently(sides[side], 40)
        except Exception as error:
            row[f"{side}: error"] = f"{type(error).__name__}: {error}"[:200]
            del sides[side]
            continue
        steps[side] = int(max(20, min(3000, ROUND_SECONDS / first)))
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, run in sides.items():
            times[side].append(silently(run, steps[side]))
    medians = {side: statistics.median(found) for side, found in times.items()}
    limits = Limits(size, rounds)
    if ours.fallback is None:
        with contextlib.redirect_stderr(io.StringIO()):
            ours.train(ours.trainer(60, callbacks=[limits]))
    baseline = medians.get("cached", medians.get("library"))
    cold, *warm = ours.compile_seconds
    row |= {f"{side}, ms": 1e3 * value for side, value in medians.items()}
    row |= {f"{side}, ms per step": 1e3 * v for side, v in limits.medians.items()}
    if baseline is not None:
        amortised = medians["compiled"] + cold / DEFAULT_STEPS
        row["eager, times"] = baseline / medians["eager"]
        row["compiled, times"] = baseline / medians["compiled"]
        row["with compilation, times"] = baseline / amortised
    if limits.medians:
        row["against bare"] = medians["compiled"] / limits.medians["bare"]
        row["inner / 2 plain"] = limits.medians["inner"] / (2 * limits.medians["plain"])
    row |= {"compile s": cold, "again s": statistics.median(warm)}
    row["not compiled"] = ours.fallback or ""
    row |= {
        f"{side}: rounds, ms": " ".join(f"{1e3 * v:.3f}" for v in found)
        for side, found in times.items()
    }
    return row


def silently(run: Callable[[int], float], steps: int) -> float:
    """Run without output."""
    with (
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        return run(steps)


#: Columns of the table for docs/speed.md, and how their cells are written.
COLUMNS = {
    "model": "{}",
    "M": "{:.0f}",
    "library, ms": "{:.2f}",
    "cached, ms": "{:.2f}",
    "AutoGluon, ms": "{:.2f}",
    "neuralforecast, ms": "{:.2f}",
    "eager, ms": "{:.2f}",
    "compiled, ms": "{:.2f}",
    "bare, ms per step": "{:.2f}",
    "eager, times": "{:.1f} ×",
    "compiled, times": "{:.1f} ×",
    "with compilation, times": "{:.1f} ×",
    "inner / 2 plain": "{:.2f}",
    "compile s": "{:.0f}",
    "again s": "{:.0f}",
}


def main() -> None:
    """Measure the given models, or all of them; print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("benchmark-results"))
    parser.add_argument("--markdown", action="store_true", help="print what was measured")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    options.output.mkdir(exist_ok=True)
    path = options.output / f"libraries-{backend.NAME}.csv"
    rows: list[dict[str, Any]] = []
    if path.exists():  # an interrupted run goes on
        rows = pd.read_csv(path).to_dict("records")
    if options.markdown:
        print(markdown(rows, COLUMNS))
        return
    done = {(row["model"], row["M"]) for row in rows}
    for size in options.batch_sizes:
        for name in options.models:
            if (name, size) in done:
                continue
            rows.append(measure(name, size, options.rounds))
            columns = list(dict.fromkeys(key for row in rows for key in row))
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(rows)
            shown = {k: v for k, v in rows[-1].items() if "rounds" not in k}
            print(
                "  ".join(
                    f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
                    for k, v in shown.items()
                ),
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
