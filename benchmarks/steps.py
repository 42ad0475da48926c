"""Profile a training step, relative to the installed backend and to the bare network.

Two tables are printed and written as CSV, with a figure:

- whole training runs against the backend's own trainer, if it has the same model,
  including data loading and Lightning, and the share of each part of a step;
- for each model and M: the bare limit (forward, backward and update of the same network
  on a batch that is already in memory), our plain step, our SCott inner step and an
  anchor, eager and compiled.

Rounds are interleaved and medians are compared. Compilation is timed separately. With
``--device``, all sides are measured there, and clocks are read when it has finished.
"""

from __future__ import annotations

import argparse
import csv
import logging
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from gluonts.dataset.common import ListDataset
from torch import nn

from pts_scott import ScottTrainer, Stratifier, WindowIndex
from pts_scott._utils.rng import Generators
from pts_scott.backends import backend
from pts_scott.engine.build import EngineOptions, build_engine
from pts_scott.engine.compiled import CompiledEngine
from pts_scott.engine.eager import EagerEngine
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.losses import Losses
from pts_scott.method.hyperparameters import Hyperparameters
from pts_scott.method.methods import METHODS
from pts_scott.method.output import OutputSelector
from pts_scott.method.protocol import Counters, Sample
from pts_scott.method.scott import Algorithm
from pts_scott.models.networks import LSTMNetwork, VARNetwork, nbeats_network
from pts_scott.strata.partition import Strata
from pts_scott.training.callbacks import Observer
from pts_scott.training.optimizers import make_optimizer
from pts_scott.training.trainer_checks import lightning_accelerator, resolve_device

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ANCHOR = 49  # windows per anchor: weekday × season on Traffic
INNER_STEPS = 20
ROUND_SECONDS = 0.5
STRATIFIER = Stratifier.periodic(ANCHOR)
DEVICE = torch.device("cpu")  # of all measurements; `main` sets it


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make the optimizer of all sides, with torch's fused kernel where there is one."""
    return make_optimizer(
        *("adam", list(parameters)), learning_rate=1e-3, weight_decay=1e-5, fusable=True
    )


def clock() -> float:
    """Return the time when the device has finished what it was given."""
    if DEVICE.type != "cpu":
        torch.get_device_module(DEVICE).synchronize()
    return time.perf_counter()


@dataclass(frozen=True)
class Model:
    """A network to measure."""

    name: str
    context_length: int
    prediction_length: int
    make: Callable[[], nn.Module]
    compiled: bool = True


def nbeats(stacks: int, width: int, context: int, prediction: int) -> nn.Module:
    """Build N-BEATS with one generic block per stack."""
    return nbeats_network(
        context_length=context,
        prediction_length=prediction,
        periodicity=24,
        num_stacks=stacks,
        widths=[width] * stacks,
        num_blocks=[1] * stacks,
        num_block_layers=[4] * stacks,
        expansion_coefficient_lengths=[32] * stacks,
        stack_types=["G"] * stacks,
    )


def feedforward(context: int, prediction: int) -> nn.Module:
    """Build the backend's own feed-forward network, four layers of 80."""
    return backend.simple_feedforward(context, prediction, [80] * 4, None, False)


MODELS = (
    Model("SimpleFeedForward (8, 1)", 8, 1, lambda: feedforward(8, 1)),
    Model("SimpleFeedForward (72, 24)", 72, 24, lambda: feedforward(72, 24)),
    # Compiling would replace its fused kernel by unrolled steps.
    Model(
        "LSTM 2 x 100", 72, 24, lambda: LSTMNetwork(prediction_length=24), compiled=False
    ),
    Model("N-BEATS 4 x 64", 72, 24, lambda: nbeats(4, 64, 72, 24)),
    # Matrix products dominate its time, and compiling takes minutes.
    Model("N-BEATS 30 x 512", 72, 24, lambda: nbeats(30, 512, 72, 24), compiled=False),
    Model("VAR", 72, 24, lambda: VARNetwork(context_length=72, prediction_length=24)),
)


def random_walks(series: int = 8, length: int = 6070) -> ListDataset:
    """Return series of the size of Exchange-Rate's training range."""
    steps = np.random.default_rng(0).standard_normal((series, length))
    return ListDataset(
        [
            {"item_id": str(i), "start": "1990-01-01", "target": walk}
            for i, walk in enumerate(1 + 0.1 * np.exp(0.01 * steps.cumsum(axis=1)))
        ],
        freq="D",
    )


def interleaved(
    sides: dict[str, Callable[[], float]], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds per step of each side, measured in interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            times[name].append(measure())
    return times


# -- whole training runs ----------------------------------------------------------------


def library_seconds(model: Model, data: ListDataset, size: int, steps: int) -> float:
    """Return the seconds per step of the backend's own trainer, with data loading."""
    lengths = {
        "prediction_length": model.prediction_length,
        "context_length": model.context_length,
    }
    arguments: dict[str, Any] = {}
    if backend.NAME == "pytorchts":
        from pts import Trainer
        from pts.model.n_beats import NBEATSEstimator
        from pts.model.simple_feedforward import SimpleFeedForwardEstimator

        trainer = Trainer(
            epochs=1, batch_size=size, num_batches_per_epoch=steps, device=DEVICE
        )
        arguments = {"prefetch_factor": None}
        estimator = (
            SimpleFeedForwardEstimator(
                freq="D", num_hidden_dimensions=[80] * 4, trainer=trainer, **lengths
            )
            if model.name.startswith("Simple")
            else NBEATSEstimator(
                freq="D", num_stacks=4, widths=[64], trainer=trainer, **lengths
            )
        )
    else:
        from gluonts.torch import SimpleFeedForwardEstimator

        estimator = SimpleFeedForwardEstimator(
            hidden_dimensions=[80] * 4,
            batch_size=size,
            num_batches_per_epoch=steps,
            trainer_kwargs={
                "max_epochs": 1,
                "logger": False,
                "default_root_dir": tempfile.mkdtemp(),  # for GluonTS' checkpoint
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "accelerator": lightning_accelerator(DEVICE),
            },
            **lengths,
        )
    began = clock()
    estimator.train(data, **arguments)
    return (clock() - began) / steps


class Parts(Observer):
    """Seconds by part of a step; those within an anchor count as anchor only.

    On an accelerator only anchors are timed: a clock in every step would slow it down.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = False

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Watch the engine, which exists from here on."""
        runner = pl_module.runner
        self.watch(runner.algorithm, runner.parts.engine)

    def watch(self, algorithm: Algorithm, engine: EagerEngine) -> None:
        """Wrap a timer around the parts of an outer loop."""
        method = algorithm.method
        watched: list[tuple[Any, str, str]] = [
            (method.step_sampler, "draw", "drawing"),
            (algorithm, "_anchor", "anchor"),
        ]
        if method.anchor_sampler is not None:
            watched.append((method.anchor_sampler, "draw", "drawing"))
        if DEVICE.type != "cpu":
            watched = [(algorithm, "_anchor", "anchor")]
        elif isinstance(engine, CompiledEngine):
            watched.append((engine, "apply", "whole step, compiled"))
        else:
            watched += [
                (engine, "gather", "gathering"),
                (engine.gradients, "weighted", "gradients"),
                (engine.gradients, "control_variate", "gradients"),
                (engine, "_update", "update"),
            ]
        for owner, name, part in watched:
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            began = clock()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[part] += clock() - began
                self._inside = False

        return timed


def run_trainer(
    model: Model, windows: WindowIndex, method: str, size: int, steps: int, compiled: bool
) -> tuple[ScottTrainer, Parts]:
    """Run a whole training without early stop: K steps per anchor."""
    parts = Parts()
    trainer = ScottTrainer(
        method=method,
        optimizer="adam",
        clip_gradient=None,
        batch_size=size,
        stratifier=STRATIFIER,
        inner_steps=INNER_STEPS,
        gamma=None,
        epochs=1,
        num_batches_per_epoch=steps,
        device=DEVICE,
        compile=compiled,
        seed=0,
        trainer_kwargs={"enable_progress_bar": False, "callbacks": [parts]},
    )
    trainer.fit(model.make(), windows)
    return trainer, parts


def whole_runs(
    model: Model, data: ListDataset, sizes: Iterable[int], rounds: int, steps: int
) -> Iterable[dict[str, Any]]:
    """Yield rows of whole training runs, with the shares of their parts."""
    windows = WindowIndex.from_dataset(
        data, "D", model.context_length, model.prediction_length
    )
    for size in sizes:
        last: dict[str, tuple[ScottTrainer, Parts]] = {}

        def ours(
            method: str, compiled: bool, size: int = size, last: Any = last
        ) -> float:
            run = run_trainer(model, windows, method, size, steps, compiled)
            last[f"{method}, {'compiled' if compiled else 'eager'}"] = run
            return float(run[0].history["seconds"].iloc[-1]) / steps

        sides: dict[str, Callable[[], float]] = {}
        for method in ("plain", "scott"):
            for compiled in (False, True):
                name = f"{method}, {'compiled' if compiled else 'eager'}"
                sides[name] = lambda m=method, c=compiled: ours(m, c)  # type: ignore[misc]
        own = f"{backend.NAME}'s own trainer"
        sides[own] = lambda size=size: library_seconds(  # type: ignore[misc]
            model, data, size, steps
        )
        for measure in sides.values():
            measure()  # warm up
        times = interleaved(sides, rounds)
        base = statistics.median(times[own])
        for name, values in times.items():
            median = statistics.median(values)
            row: dict[str, Any] = {
                "model": model.name,
                "M": size,
                "side": name,
                "ms": 1e3 * median,
                "times as fast": base / median,
                "rounds": " ".join(f"{1e3 * v:.3f}" for v in values),
            }
            if name in last:
                trainer, parts = last[name]
                total = float(trainer.history["seconds"].iloc[-1])
                shares = {k: v / total for k, v in parts.seconds.items()}
                shares["bookkeeping"] = 1 - sum(shares.values())
                row |= {"compile s": trainer.compile_seconds, "shares": shares}
            yield row


# -- the engine against the bare limit --------------------------------------------------


class Engine:
    """Steps of one network as in training, but without Lightning."""

    def __init__(
        self,
        model: Model,
        windows: WindowIndex,
        strata: Strata,
        method: str,
        size: int,
        compiled: bool,
    ) -> None:
        torch.manual_seed(0)
        losses = Losses(model.make().to(DEVICE))
        gradients = Gradients(losses, compiled=compiled)
        optimizer = adam(losses.trainable().values())
        numbers = Hyperparameters(
            method=method, batch_size=size, inner_steps=INNER_STEPS, gamma=None
        )
        generators, counters = Generators.from_seed(0), Counters()
        chosen = METHODS[method](numbers, windows, strata, generators)
        engine, self.wrapper, early_stop = build_engine(
            chosen,
            gradients,
            lambda numbers: windows.gather(numbers, losses.fields),
            counters,
            EngineOptions(optimizer, optimizer.step),
        )
        output = OutputSelector("last", losses, generators.output)
        self.algorithm = Algorithm(
            chosen, self.wrapper, early_stop, output, counters, generators.length
        )
        began = clock()
        if compiled:
            engine.warm_up(chosen.anchor_windows, size, False)
        self.compile_seconds = clock() - began if compiled else 0.0
        self.parts = Parts()
        self.parts.watch(self.algorithm, engine)

    def step(self, steps: int) -> float:
        """Return the seconds per step, without anchors."""
        self.parts.seconds.clear()
        began = clock()
        for _ in range(0, steps, INNER_STEPS):
            report = self.algorithm.outer_loop(
                1e-3, 1.0, lambda made: made < steps, steps
            )
            self.wrapper.finish(report)
        seconds = clock() - began - self.parts.seconds["anchor"]
        return seconds / (-(-steps // INNER_STEPS) * min(steps, INNER_STEPS))

    def anchor(self, repeats: int) -> float:
        """Return the seconds per anchor."""
        began = clock()
        for _ in range(repeats):
            self.algorithm._anchor()
        return (clock() - began) / repeats


class Bare:
    """Forward, backward and update on a batch that is already in memory."""

    def __init__(self, model: Model, windows: WindowIndex, size: int, compiled: bool):
        torch.manual_seed(0)
        self.losses = Losses(model.make().to(DEVICE))
        numbers = windows.draw(size, torch.Generator().manual_seed(0))
        self.batch = windows.gather(numbers, self.losses.fields)
        self.optimizer = adam(self.losses.parameters())
        self.sample, self.compile_seconds = Sample(numbers), 0.0
        self.engine: CompiledEngine | None = None
        if compiled:
            self.engine = CompiledEngine(
                Gradients(self.losses),
                lambda _: self.batch,
                Counters(),
                self.optimizer,
                uses_snapshot=False,
            )
            began = clock()
            self.step(1)
            self.compile_seconds = clock() - began

    def step(self, steps: int) -> float:
        """Return the seconds per step."""
        began = clock()
        for _ in range(steps):
            if self.engine is not None:
                v = self.engine.direction(self.sample, None, 1.0)
                self.engine.apply(v, last=False)
            else:
                self.optimizer.zero_grad()
                self.losses(self.batch).mean().backward()
                self.optimizer.step()
        return (clock() - began) / steps


def engine_rows(
    model: Model,
    data: ListDataset,
    sizes: Iterable[int],
    rounds: int,
    compile_sizes: Iterable[int],
) -> Iterable[dict[str, Any]]:
    """Yield rows of one model: steps and anchors against the bare limit."""
    windows = WindowIndex.from_dataset(
        data, "D", model.context_length, model.prediction_length
    ).to(DEVICE)
    strata = STRATIFIER.stratify(windows)
    for compiled, mode_sizes in ((False, sizes), (True, compile_sizes)):
        for size in mode_sizes:
            mode = "compiled" if compiled else "eager"
            bare = Bare(model, windows, size, compiled)
            plain = Engine(model, windows, strata, "plain", size, compiled)
            scott = Engine(model, windows, strata, "scott", size, compiled)
            bare.step(3)
            steps = int(min(500, max(4, ROUND_SECONDS / bare.step(3))))
            sides = {
                "bare limit": lambda b=bare, n=steps: b.step(n),
                "plain step": lambda e=plain, n=steps: e.step(n),
                "SCott inner step": lambda e=scott, n=steps: e.step(n),
            }
            seconds = {
                "bare limit": bare.compile_seconds,
                "plain step": plain.compile_seconds,
                "SCott inner step": scott.compile_seconds,
            }
            if size == 32:
                same = Engine(model, windows, strata, "plain", ANCHOR, compiled)
                sides[f"anchor of {ANCHOR}"] = lambda e=scott, n=steps: e.anchor(n)
                sides[f"plain step, M = {ANCHOR}"] = lambda e=same, n=steps: e.step(n)
            for measure in sides.values():
                measure()
            times = interleaved(sides, rounds)
            base = statistics.median(times["bare limit"])
            for side, values in times.items():
                median = statistics.median(values)
                yield {
                    "model": model.name,
                    "M": size,
                    "how": mode,
                    "side": side,
                    "ms": 1e3 * median,
                    "against the bare limit": median / base,
                    "compile s": seconds.get(side, 0.0),
                    "rounds": " ".join(f"{1e3 * v:.3f}" for v in values),
                }


# -- output -----------------------------------------------------------------------------


def print_runs(rows: list[dict[str, Any]]) -> None:
    """Print whole runs as a table, with the shares of their parts."""
    for row in rows:
        shares = "  ".join(f"{k} {v:.0%}" for k, v in row.get("shares", {}).items())
        print(
            f"{row['model']:27s} M = {row['M']:3d}  {row['side']:24s} "
            f"{row['ms']:9.3f} ms {row['times as fast']:6.2f} x  {shares}",
            flush=True,
        )


def draw_figure(
    runs: list[dict[str, Any]], engine: list[dict[str, Any]], path: Path
) -> None:
    """Plot the parts of a step in whole runs, and steps against the bare limit."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    shown = [r for r in runs if r["M"] == 32 and r["model"] == MODELS[0].name]
    parts = ["drawing", "gathering", "gradients", "update", "whole step, compiled"]
    parts += ["anchor", "bookkeeping"]
    colors = dict(zip(parts, plt.get_cmap("tab10").colors, strict=False))
    for place, row in enumerate(reversed(shown)):
        begin = 0.0
        for part in parts:
            width = row.get("shares", {}).get(part, 0.0) * row["ms"]
            left.barh(place, width, left=begin, color=colors[part])
            begin += width
        if not row.get("shares"):
            left.barh(place, row["ms"], color="0.6")
        left.text(row["ms"], place, f" {row['times as fast']:.1f} ×", va="center")
    labels = [r["side"].replace("scott", "SCott") for r in reversed(shown)]
    left.set_yticks(range(len(shown)), labels)
    left.set_xlabel("ms per step, whole training runs")
    left.set_title(f"{backend.NAME}: {MODELS[0].name}, M = 32", fontsize=10)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colors[p]) for p in parts]
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13)}
    left.legend(handles, parts, ncols=4, fontsize=8, **below)
    left.margins(x=0.15)

    cells = [
        r for r in engine if r["M"] == 32 and not r["side"].startswith("plain step,")
    ]
    names = list(dict.fromkeys((r["model"], r["how"]) for r in cells))
    sides = list(dict.fromkeys(r["side"] for r in cells if r["side"] != "bare limit"))
    for k, side in enumerate(sides):
        values = {
            (r["model"], r["how"]): r["against the bare limit"]
            for r in cells
            if r["side"] == side
        }
        places = [i + 0.25 * (k - 1) for i, n in enumerate(names) if n in values]
        right.barh(places, [values[n] for n in names if n in values], 0.25, label=side)
    right.axvline(1, color="0.3", linewidth=0.8)
    right.axvline(2, color="0.3", linewidth=0.8, linestyle=":")
    right.set_yticks(range(len(names)), [f"{m}, {h}" for m, h in names], fontsize=8)
    right.invert_yaxis()
    right.set_xlabel("time against the bare limit (M = 32)")
    right.set_title("against forward, backward and update alone", fontsize=10)
    right.legend(ncols=3, fontsize=8, **below)
    figure.savefig(path, dpi=110)


def write_csv(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows, with every column that any of them has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Run all measurements, print and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="per training run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--models", nargs="+", help="parts of the models' names")
    parser.add_argument("--compile-sizes", type=int, nargs="*", default=[1, 32, 256])
    parser.add_argument("--no-runs", action="store_true", help="skip whole training runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="e.g. cuda, or auto")
    parser.add_argument("--output", type=Path, default=Path("benchmark-results"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    global DEVICE
    DEVICE = resolve_device(options.device)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    options.output.mkdir(exist_ok=True)
    data = random_walks()
    wanted = [
        m
        for m in MODELS
        if not options.models or any(w in m.name for w in options.models)
    ]
    print(
        f"{backend.NAME}, torch {torch.__version__}, {DEVICE}, {options.threads} "
        "thread(s), Adam, "
        f"medians of {options.rounds} interleaved rounds"
    )

    runs: list[dict[str, Any]] = []
    if not options.no_runs:
        print("\nWhole training runs:", flush=True)
        for model in wanted:
            if model in MODELS[:2] or (
                backend.NAME == "pytorchts" and model is MODELS[3]
            ):
                sizes = options.batch_sizes if model is MODELS[0] else [32]
                for row in whole_runs(model, data, sizes, options.rounds, options.steps):
                    runs.append(row)
                    print_runs([row])
        write_csv(runs, options.output / f"runs-{backend.NAME}.csv")

    print("\nSteps against the bare limit:", flush=True)
    engine: list[dict[str, Any]] = []
    for model in wanted:
        compiled = options.compile_sizes if model.compiled else []
        for row in engine_rows(
            model, data, options.batch_sizes, options.rounds, compiled
        ):
            engine.append(row)
            print(
                f"{row['model']:27s} M = {row['M']:3d}  {row['how']:8s} "
                f"{row['side']:22s} {row['ms']:9.3f} ms "
                f"{row['against the bare limit']:6.2f} x the bare limit"
                + (f"  compiled in {row['compile s']:.0f} s" if row["compile s"] else ""),
                flush=True,
            )
        write_csv(engine, options.output / f"engine-{backend.NAME}.csv")
    if runs and engine:
        draw_figure(runs, engine, options.output / f"steps-{backend.NAME}.png")
    print(f"\nwritten to {options.output}/")


if __name__ == "__main__":
    main()
