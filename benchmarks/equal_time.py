"""Compare with the library's own training: when its final loss is reached.

    python benchmarks/equal_time.py [SETTING ...] [--seeds 3] [--output benchmark-results]

The library trains as its users would: its own loop and defaults, 100 epochs of 50 steps
with M = 32, GluonTS also with ``cache_data=True``. `ScottTrainer` trains the same network
on the same data for as many seconds: with its defaults, which compile only runs of a
minute and more, and compiled, with the plain and the auto method. Losses are measured
over the same windows of the training and of the test range, with the clock stopped.

Compilation counts: it is added to the seconds of every point. Every run is a process of
its own with an empty cache of compiled steps, as on a machine that has never compiled
anything; a side that was "compiled before" has those of one earlier, short run.

Runs are interleaved over seeds, on one thread. Finished runs are kept in a CSV file, and
the command resumes where it was interrupted. The backend is the one that is installed.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pandas as pd
import torch
from equal_time_tables import OWN_SIDES, Side, render, summarise

from pts_scott._utils.rng import isolated_rng
from pts_scott.backends import backend
from pts_scott.engine.losses import Losses, evaluate
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.config_files import parse_tree
from pts_scott.experiments.curve import select_windows
from pts_scott.experiments.library_loop import LibraryCurve, Parts, train_with_library
from pts_scott.experiments.lightning_control import silence_lightning
from pts_scott.experiments.run import perform, warm_up
from pts_scott.experiments.setting import Setting

LIBRARY = {"gluonts": "GluonTS", "pytorchts": "PyTorchTS"}[backend.NAME]
#: The library's own loop, and options of its ``train``.
LIBRARY_SIDES: dict[str, dict[str, Any]] = {LIBRARY: {}}
if backend.NAME == "gluonts":
    LIBRARY_SIDES["GluonTS, cache_data"] = {"cache_data": True}
KEY = ["setting", "side", "seed"]
PREFIX = {"gluonts": "gluonts", "pytorchts": "pts"}[backend.NAME]
HOURLY = {"context_length": 72, "prediction_length": 24}
MODELS: dict[str, dict[str, Any]] = {
    "SimpleFeedForward": {
        "gluonts": {"hidden_dimensions": [80] * 4},
        "pytorchts": {"num_hidden_dimensions": [80] * 4},
    },
    "DeepAR": {"gluonts": {}, "pytorchts": {}},
}
DATA = ("electricity-321x840", "traffic-21x17544")
SETTINGS = tuple(f"{model}/{data}" for model in MODELS for data in DATA)
SIZE, EPOCHS, BATCHES = 32, 100, 50
EVALUATIONS = 50
WINDOWS = 2048  # over which a loss is measured


def experiment_of(name: str, seconds: float, compiled: bool | str = True) -> Experiment:
    """Return a setting with our optimizers, for a number of seconds."""
    model, _, data = name.partition("/")
    tree = {
        "data": {"name": data, **HOURLY, "constant": "drop"},
        "model": {
            "name": f"{PREFIX}.{model}",
            "arguments": MODELS[model][backend.NAME],
        },
        "optimizers": {
            method: {"method": method, "optimizer": "adam", "clip_gradient": 10.0}
            for method in ("plain", "auto")
        },
        "batch_size": SIZE,
        "time_budget": seconds,
        "evaluations": EVALUATIONS,
        "curve_windows": WINDOWS,
        "evaluation_windows": WINDOWS,
        "backtest_samples": 0,
        "compile": compiled,
        "device": "cpu",
        "threads": 1,
    }
    return parse_tree(tree, name)


def library_curve(setting: Setting, seed: int, **options: Any) -> pd.DataFrame:
    """Train with the library's own loop, and return its losses along the way."""
    parts = {
        loss: (windows, select_windows(windows, WINDOWS))
        for loss, windows in (
            ("train_loss", setting.training),
            ("test_loss", setting.held_out),
        )
    }
    ours = setting.estimator("plain", seed)
    arguments = copy.deepcopy(ours.arguments)
    dataset = setting.split.train.dataset()
    with isolated_rng(seed, torch.device("cpu")):
        if backend.NAME == "gluonts":
            estimator = ours.library_estimator(
                **arguments,
                batch_size=SIZE,
                num_batches_per_epoch=BATCHES,
                trainer_kwargs={"max_epochs": EPOCHS},
            )
            curve = LibraryCurve(parts, EVALUATIONS, steps=EPOCHS * BATCHES)
            found = train_with_library(estimator, dataset, curve, **options)
            return found.assign(compile_seconds=0.0)
        trainer = watched_trainer(parts)
        estimator = ours.library_estimator(**arguments, trainer=trainer)
        estimator.train(dataset, prefetch_factor=None)
        return pd.DataFrame(trainer.points).assign(compile_seconds=0.0)


def watched_trainer(parts: Parts) -> Any:
    """Return PyTorchTS' own trainer, which measures before it asks for a batch."""
    import pts

    from pts_scott.backends.pytorchts.losses import PyTorchTSLosses

    class Watched(pts.Trainer):  # type: ignore[misc]
        def __call__(self, net: Any, train_iter: Any, **others: Any) -> None:
            self.points: list[dict[str, float]] = []
            self._step, self._began = 0, time.perf_counter()
            self._measured = Losses(PyTorchTSLosses(copy.deepcopy(net)), fields)
            super().__call__(net, Batches(self, net, train_iter), **others)
            self.look(net)

        def look(self, net: Any) -> None:
            """Measure if it is time."""
            spent = time.perf_counter() - self._began
            if self._step * EVALUATIONS >= len(self.points) * EPOCHS * BATCHES:
                self._measured.network.wrapped.load_state_dict(net.state_dict())
                point = {"step": self._step, "seconds": spent}
                for name, (windows, numbers) in parts.items():
                    point[name] = float(evaluate(self._measured, windows, numbers))
                self.points.append(point)
                self._began = time.perf_counter() - spent
            self._step += 1

    class Batches:
        """The library's batches, with a look at the network before each of them."""

        def __init__(self, trainer: Watched, net: Any, batches: Any) -> None:
            self._trainer, self._net, self._batches = trainer, net, batches

        def __iter__(self) -> Iterator[Any]:
            for batch in self._batches:
                self._trainer.look(self._net)
                yield batch

    fields = next(iter(parts.values()))[0].fields
    return Watched(
        epochs=EPOCHS, batch_size=SIZE, num_batches_per_epoch=BATCHES, device="cpu"
    )


def own_curve(setting: Setting, side: Side, seed: int) -> pd.DataFrame:
    """Train with `ScottTrainer`, and return its losses; compilation counts."""
    run = perform(setting, side.method, seed)
    if run.record["compile_fallback"]:
        raise RuntimeError(run.record["compile_fallback"])
    compilation = run.record["compile_seconds"] or 0.0
    curve = run.curve.assign(compile_seconds=compilation)
    curve["seconds"] += compilation
    return curve


# -- runs in processes of their own ----------------------------------------------------


def one_run(name: str, side: str, seed: int, seconds: float, cache: str) -> pd.DataFrame:
    """Train one side, in a process of its own, with this cache of compiled steps."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    torch.set_num_threads(1)
    silence_lightning()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    own = OWN_SIDES.get(side)
    setting = Setting(experiment_of(name, seconds, own.compile if own else False))
    warm_up(setting, "plain")
    curve = (
        library_curve(setting, seed, **LIBRARY_SIDES[side])
        if own is None
        else own_curve(setting, own, seed)
    )
    return curve.assign(setting=name, side=side, seed=seed)


def in_process(*arguments: Any) -> pd.DataFrame:
    """Return the curve of a run in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(one_run, *arguments).result()


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("benchmark-results"))
    options = parser.parse_args()
    options.output.mkdir(exist_ok=True)
    path = options.output / f"equal_time-{backend.NAME}.csv"
    curves = [pd.read_csv(path)] if path.exists() else []
    done = {key: c for all_ in curves for key, c in all_.groupby(KEY, sort=False)}
    for name, seed, side in itertools.product(
        options.settings, range(options.seeds), (*LIBRARY_SIDES, *OWN_SIDES)
    ):
        if (name, side, seed) in done:
            continue
        theirs = done.get((name, LIBRARY, seed))
        seconds = 1.0 if theirs is None else float(theirs["seconds"].max())
        with tempfile.TemporaryDirectory(prefix="compiled-") as cache:
            if side in OWN_SIDES and OWN_SIDES[side].compiled_before:
                in_process(name, side, seed, 0.5, cache)
            curve = in_process(name, side, seed, seconds, cache)
        done[name, side, seed] = curve
        pd.concat(done.values()).to_csv(path, index=False)
        last = curve.iloc[-1]
        print(
            f"{name}, {side}, seed {seed}: {last['seconds']:.1f} s, "
            f"{int(last['step'])} steps, test loss {last['test_loss']:.4f}",
            file=sys.stderr,
            flush=True,
        )
    print(render(summarise(pd.concat(done.values()), LIBRARY)))


if __name__ == "__main__":
    main()
