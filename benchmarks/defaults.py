"""ScottTrainer() against the training that GluonTS does by default, in equal wall time.

Each pair of runs shares a seed: first `with_scott(X)` without any argument about
training but the time, then X as it is, for the wall time that the first took in all. MASE
is of the GluonTS backtest on windows after the training range. A row is written after
each pair, and pairs in the file are not repeated::

    PTS_SCOTT_DATA=... python benchmarks/defaults.py results/defaults.csv
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import torch
from gluonts.dataset.common import ListDataset
from gluonts.evaluation import Evaluator, make_evaluation_predictions
from gluonts.torch import (
    DeepAREstimator,
    PatchTSTEstimator,
    SimpleFeedForwardEstimator,
    TemporalFusionTransformerEstimator,
)

from pts_scott import ScottTrainer, datasets, with_scott

PREDICTION = 24
MODELS: dict[str, tuple[type, float, dict[str, Any]]] = {
    "SimpleFeedForward": (SimpleFeedForwardEstimator, 20.0, {"context_length": 72}),
    "DeepAR": (DeepAREstimator, 40.0, {"freq": "h", "context_length": 72}),
    "PatchTST": (
        PatchTSTEstimator,
        40.0,
        {"context_length": 72, "patch_len": 16},
    ),
    "TFT": (
        TemporalFusionTransformerEstimator,
        40.0,
        {"freq": "h", "context_length": 72},
    ),
}
WINDOWS = 3  # forecast starts per series in the backtest, a day apart


def gappy_frame() -> list[dict[str, Any]]:
    """Generate 50 hourly series of very different level, with gaps."""
    rng = np.random.default_rng(0)
    steps = np.arange(1200)
    entries = []
    for number in range(50):
        level = np.exp(rng.normal(2.0, 1.5))
        daily = np.sin(2 * np.pi * (steps / 24 + rng.random()))
        weekly = 1 + 0.3 * ((steps // 24) % 7 >= 5) * rng.normal()
        noise = rng.normal(0, rng.choice([0.05, 0.3, 1.0]), len(steps))
        target = level * (1.5 + daily * weekly + noise)
        for begin in rng.integers(0, 1000, 4):
            target[begin : begin + rng.integers(3, 30)] = np.nan
        entries.append({"item_id": str(number), "start": "2024-01-01", "target": target})
    return entries


def entries_of(name: str) -> list[dict[str, Any]]:
    """Return the series of a named dataset, or the generated ones."""
    if name == "gaps":
        return gappy_frame()
    return list(datasets.load(name).entries())


def split(entries: list[dict[str, Any]]) -> tuple[ListDataset, ListDataset]:
    """Return the training range, and one series per forecast start after it."""
    held_out = PREDICTION * WINDOWS
    train = [{**e, "target": e["target"][:-held_out]} for e in entries]
    ends = [held_out - PREDICTION * (k + 1) for k in range(WINDOWS)]
    test = [
        {**e, "target": e["target"][: len(e["target"]) - end]}
        for e in entries
        for end in ends
    ]
    return ListDataset(train, freq="h"), ListDataset(test, freq="h")


def mase(predictor: Any, test: ListDataset) -> float:
    """Return the mean absolute scaled error of the backtest."""
    torch.manual_seed(0)
    forecasts, truth = make_evaluation_predictions(test, predictor, num_samples=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metrics, _ = Evaluator(num_workers=0, seasonality=24)(truth, forecasts)
    return float(metrics["MASE"])


def pair(model: str, data: str, seed: int) -> dict[str, Any]:
    """Train a model both ways, and return a row of results."""
    estimator, seconds, arguments = MODELS[model]
    train, test = split(entries_of(data))
    quiet = {"enable_progress_bar": False, "logger": False}
    trainer = ScottTrainer(
        epochs=None, time_budget=seconds, seed=seed, threads=1, trainer_kwargs=quiet
    )
    began = time.perf_counter()
    ours = with_scott(estimator)(
        prediction_length=PREDICTION, **arguments, trainer=trainer
    ).train(train)
    wall = time.perf_counter() - began
    pl.seed_everything(seed, verbose=False)
    limit = {"max_epochs": 10**6, "max_time": {"seconds": wall}}
    began = time.perf_counter()
    theirs = estimator(
        prediction_length=PREDICTION,
        **arguments,
        trainer_kwargs={**quiet, **limit, "enable_model_summary": False},
    ).train(train)
    theirs_wall = time.perf_counter() - began
    history = trainer.history.iloc[-1]
    return {
        "model": model,
        "data": data,
        "seed": seed,
        "ours": mase(ours, test),
        "gluonts": mase(theirs, test),
        "seconds": wall,
        "gluonts_seconds": theirs_wall,
        "steps": int(history["step"]),
        "probe_seconds": float(history["probe_seconds"]),
        "compiled": trainer.compiled,
        "sampler": history["sampler"],
    }


def main() -> None:
    """Make all pairs that are not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--data", nargs="*", default=["electricity-12x8760", "gaps"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for model in options.models:
            for data in options.data:
                done = pd.read_csv(options.output) if options.output.exists() else None
                key = {"model": model, "data": data, "seed": seed}
                if (
                    done is not None
                    and (done[list(key)] == pd.Series(key)).all(axis=1).any()
                ):
                    continue
                row = pd.DataFrame([pair(model, data, seed)])
                row.to_csv(options.output, mode="a", header=done is None, index=False)
                print(row.to_string(index=False, header=False), flush=True)


if __name__ == "__main__":
    main()
