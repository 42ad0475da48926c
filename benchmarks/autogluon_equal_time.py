"""Compare with AutoGluon's own models at equal time: one time limit for every fit.

    python benchmarks/autogluon_equal_time.py [SETTING ...] [--seconds 60] [--seeds 3]

Each side is one `TimeSeriesPredictor.fit` of one model with the same time limit, on one
thread: AutoGluon's own, and this package's with the plain and the auto method. Everything
counts towards the limit, compilation included, and every fit is a process with an empty
cache of compiled steps. Layers, context and batch size are AutoGluon's defaults; epochs
are as many as the time allows. Training uses the first 80 % of the hours, and forecasts
of five days of the rest, evenly spaced, are scored by AutoGluon.

Sides are interleaved. Finished fits are kept in a CSV file, and the command resumes.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from autogluon_tables import AUTOGLUON_COLUMNS, METRICS, summarise_fits
from tables import markdown

OWN = "AutoGluon"
SIDES: dict[str, dict[str, Any]] = {
    OWN: {},
    "ScottTrainer, plain": {"method": "plain"},
    "ScottTrainer, auto": {"method": "auto"},
}
MODELS = ("SimpleFeedForward", "DeepAR")
DATA = ("electricity-321x840", "traffic-21x17544")
SETTINGS = tuple(f"{model}/{data}" for model in MODELS for data in DATA)
KEY = ["setting", "side", "seed", "seconds"]
HOURS, DAYS = 24, 5  # of a forecast; forecasts that are scored
UNLIMITED = 1_000_000  # epochs: the time limit ends a fit


def frame_of(name: str) -> pd.DataFrame:
    """Return a dataset as a frame with a row per series and hour, without constants."""
    from pts_scott import load

    parts = []
    for entry in load(name, constant="drop").dataset():
        start, values = entry["start"].to_timestamp(), np.asarray(entry["target"])
        times = pd.date_range(start, periods=len(values), freq="h")
        columns = {"item_id": entry["item_id"], "timestamp": times, "target": values}
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def one_fit(name: str, side: str, seed: int, seconds: float) -> dict[str, Any]:
    """Fit one side, in a process of its own, and return its scores."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="compiled-")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl
    import torch
    from autogluon.timeseries import TimeSeriesDataFrame, TimeSeriesPredictor

    import pts_scott.integrations.autogluon  # noqa: F401 - registers the models

    class Steps(pl.Callback):
        """Counts steps, also in copies of this object."""

        made = 0

        def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
            Steps.made = trainer.global_step

    torch.set_num_threads(1)
    model, _, dataset = name.partition("/")
    frame = frame_of(dataset)
    data = TimeSeriesDataFrame.from_data_frame(frame)
    length = int(frame["item_id"].value_counts().iloc[0])
    held_out = length // 5
    settings: dict[str, Any] = {
        "max_epochs": UNLIMITED,
        "early_stopping_patience": None,
        "trainer_kwargs": {"callbacks": [Steps()]},
        **SIDES[side],
    }
    if side != OWN:
        model, settings = f"Scott{model}", {**settings, "threads": 1, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        predictor = TimeSeriesPredictor(
            prediction_length=HOURS, freq="h", path=folder, verbosity=0
        )
        began = time.perf_counter()
        predictor.fit(
            data.slice_by_timestep(None, -held_out),
            hyperparameters={model: settings},
            time_limit=seconds,
            enable_ensemble=False,
            skip_model_selection=True,
            random_seed=seed,
        )
        taken = time.perf_counter() - began
        ends = np.linspace(held_out - HOURS, 0, DAYS).round().astype(int)
        found = []
        for end in ends:
            until = data.slice_by_timestep(None, -int(end) if end else None)
            found.append(predictor.evaluate(until, metrics=list(METRICS)))
    scores = {m: -float(np.mean([score[m] for score in found])) for m in METRICS}
    key = dict(zip(KEY, (name, side, seed, seconds)))
    return {**key, "fit": taken, "steps": Steps.made, **scores}


def main() -> None:
    """Fit what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("benchmark-results"))
    options = parser.parse_args()
    options.output.mkdir(exist_ok=True)
    path = options.output / "equal_time-autogluon.csv"
    fits = pd.read_csv(path).to_dict("records") if path.exists() else []
    for name, seed, side in itertools.product(
        options.settings, range(options.seeds), SIDES
    ):
        key = (name, side, seed, options.seconds)
        if any(tuple(fit[k] for k in KEY) == key for fit in fits):
            continue
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            fits.append(process.submit(one_fit, *key).result())
        pd.DataFrame(fits).to_csv(path, index=False)
        print(fits[-1], file=sys.stderr, flush=True)
    print(markdown(summarise_fits(pd.DataFrame(fits)), AUTOGLUON_COLUMNS))


if __name__ == "__main__":
    main()
