"""What do I gain? Two comparisons at equal training time, on data generated on the spot.

On the paper's synthetic data, a VAR model is trained with plain SGD, with SCott and with
the automatic choice of the sampler. On series of very different scale and volatility,
GluonTS' SimpleFeedForward is trained by GluonTS itself, and here with plain and
automatically chosen mini-batches. Run it with ``python -m pts_scott.demo``.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from pts_scott._utils.arguments import real_number, whole_number
from pts_scott._utils.rng import isolated_rng
from pts_scott._utils.spacing import evenly_spaced
from pts_scott.backends import ScottTrainer, backend
from pts_scott.backends.estimators import library_estimators
from pts_scott.data.window_index import WindowIndex
from pts_scott.datasets.catalogue import load
from pts_scott.datasets.series_data import SeriesData
from pts_scott.datasets.synthetic import (
    CONTEXT_LENGTH,
    PREDICTION_LENGTH,
    synthetic_windows,
)
from pts_scott.engine.losses import evaluate
from pts_scott.errors import ScottError
from pts_scott.experiments.library_loop import LibraryCurve, train_with_library
from pts_scott.experiments.lightning_control import silence_lightning
from pts_scott.experiments.progress import terminal_bar
from pts_scott.experiments.report.axes import set_loss_axis
from pts_scott.experiments.report.curves import loss_axis, mean_curve, tail_mean
from pts_scott.experiments.report.figures import save_figure
from pts_scott.experiments.report.reach import first_reached
from pts_scott.models.networks import VARNetwork
from pts_scott.models.with_scott import with_scott
from pts_scott.strata.synthetic import synthetic_stratifier
from pts_scott.training.callbacks import Measurements
from pts_scott.training.lightning_module import OuterLoopModule

#: Trains with a seed for some seconds; returns columns ``step``, ``seconds``, ``loss``.
Train = Callable[[int, float], pd.DataFrame]

# Step sizes and anchors that `pts-scott tune comparison/var-synthetic-M1` chose by the
# loss on the last tenth of its training range.
VAR_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"method": "plain", "learning_rate": 5e-3},
    "SCott": {
        "method": "scott",
        "learning_rate": 2.5e-2,
        "anchor_batch_size": 64,
        "inner_steps": 200,
        "gamma": None,
    },
    "auto": {"method": "auto", "learning_rate": 5e-3},
}
MEASURED_WINDOWS = 4096
POINTS = 40  # of the plotted curves
WARM_UP = 0.3  # seconds
TAIL = 1 / 6  # the loss at the end is the mean over this last share of the time
SERIES, HOURS = 60, 1000
COLOURS = ("#0072B2", "#D55E00", "#009E73")  # distinct for colour-blind readers


@dataclass(frozen=True)
class Comparison:
    """Optimizers on one model and dataset; the first is what the others are held to."""

    title: str
    loss: str
    sides: dict[str, Train]


def paper_comparison(repetitions: int) -> Comparison:
    """Return SGD, SCott and auto for a VAR model on the paper's synthetic data."""
    windows = synthetic_windows(repetitions)
    return Comparison(
        title="VAR on the paper's synthetic data, M = 1",
        loss="scaled mean squared error",
        sides={
            name: _var_side(windows, settings)
            for name, settings in VAR_OPTIMIZERS.items()
        },
    )


def _var_side(windows: WindowIndex, settings: dict[str, Any]) -> Train:
    def train(seed: int, seconds: float) -> pd.DataFrame:
        curve = LossCurve(windows)
        trainer = _trainer(
            seconds,
            seed,
            curve,
            optimizer="sgd",
            batch_size=1,
            clip_gradient=None,
            stratifier=synthetic_stratifier(),
            **settings,
        )
        with isolated_rng(seed, torch.device("cpu")):
            network = VARNetwork(CONTEXT_LENGTH, PREDICTION_LENGTH)
        trainer.fit(network, windows)
        return pd.DataFrame(curve.points)

    return train


def mixed_comparison() -> Comparison:
    """Return the library's loop, plain and auto for SimpleFeedForward on mixed series."""
    data = mixed_series()
    name = next(n for n in library_estimators() if n.endswith(".SimpleFeedForward"))
    estimator = library_estimators()[name]
    lengths = {
        "context_length": 72,
        "prediction_length": 24,
        **({"freq": data.freq} if backend.NAME == "pytorchts" else {}),
    }
    windows = with_scott(estimator)(**lengths).create_windows(data.dataset())
    sides: dict[str, Train] = {}
    if backend.NAME == "gluonts":
        sides["GluonTS' own trainer"] = _library_side(estimator, lengths, data, windows)
    for method in ("plain", "auto"):
        sides[f"ScottTrainer, {method}"] = _estimator_side(
            estimator, lengths, windows, method
        )
    return Comparison(
        title="SimpleFeedForward on mixed series, M = 32",
        loss="negative log-likelihood",
        sides=sides,
    )


def mixed_series(seed: int = 0) -> SeriesData:
    """Return hourly series; their levels and noise differ by orders of magnitude."""
    rng = np.random.default_rng(seed)
    times = pd.date_range("2024-01-01", periods=HOURS, freq="h")
    day = np.sin(2 * np.pi * np.arange(HOURS) / 24)
    series = {}
    for number in range(SERIES):
        level, noise = 10 ** rng.uniform(0, 4), 10 ** rng.uniform(-2, 0)
        wave = 1 + rng.uniform(0, 0.5) * np.roll(day, rng.integers(24))
        series[str(number)] = level * wave * np.exp(noise * rng.standard_normal(HOURS))
    return load(pd.DataFrame(series, index=times))


def _library_side(
    estimator: type, lengths: dict[str, Any], data: SeriesData, windows: Any
) -> Train:
    numbers = evenly_spaced(len(windows), MEASURED_WINDOWS)

    def train(seed: int, seconds: float) -> pd.DataFrame:
        curve = LibraryCurve({"loss": (windows, numbers)}, POINTS, seconds=seconds)
        endless = {"trainer_kwargs": {"max_epochs": -1}}  # the curve ends the run
        with isolated_rng(seed, torch.device("cpu")):
            return train_with_library(
                estimator(**lengths, **endless), data.dataset(), curve
            )

    return train


def _estimator_side(
    estimator: type, lengths: dict[str, Any], windows: Any, method: str
) -> Train:
    def train(seed: int, seconds: float) -> pd.DataFrame:
        curve = LossCurve(windows)
        trainer = _trainer(seconds, seed, curve, method=method)
        with_scott(estimator)(**lengths, trainer=trainer).train_windows(windows)
        return pd.DataFrame(curve.points)

    return train


class LossCurve(Measurements):
    """A callback that measures the loss over evenly spaced windows."""

    def __init__(self, windows: WindowIndex) -> None:
        super().__init__(POINTS)
        self._windows = windows
        self._numbers = evenly_spaced(len(windows), MEASURED_WINDOWS)
        self.points: list[dict[str, float]] = []

    def measure(self, trainer: pl.Trainer, module: OuterLoopModule) -> None:
        """Add a point."""
        loss = float(evaluate(module.losses, self._windows, self._numbers))
        point = {"step": module.steps, "seconds": module.clock.seconds, "loss": loss}
        self.points.append(point)


def _trainer(
    seconds: float, seed: int, curve: LossCurve, **settings: Any
) -> ScottTrainer:
    return ScottTrainer(
        epochs=None,
        time_budget=seconds,
        output="last",
        compile=True,
        threads=1,
        seed=seed,
        trainer_kwargs={"enable_progress_bar": False, "callbacks": [curve]},
        **settings,
    )


# -- runs -------------------------------------------------------------------------------


def run(
    comparisons: list[Comparison],
    seeds: int,
    seconds: float,
    say: Callable[[str], None],
) -> pd.DataFrame:
    """Train every side with every seed, seeds in turn, and return all curves.

    Each side first trains for a moment: the first steps of a process load libraries.
    """
    curves = []
    total = seeds * sum(len(comparison.sides) for comparison in comparisons)
    with terminal_bar(total, " runs", unit_scale=False) as bar:
        for comparison in comparisons:
            bar.set_description_str("compilation")
            for train in comparison.sides.values():
                train(0, WARM_UP)
            for seed in range(seeds):
                for name, train in comparison.sides.items():
                    bar.set_description_str(f"{name}, seed {seed}")
                    curve = train(seed, seconds)
                    last = curve.iloc[-1]
                    say(
                        f"{name}, seed {seed}: loss {last['loss']:.4g} after "
                        f"{int(last['step']):,} steps in {last['seconds']:.1f} s"
                    )
                    curve.insert(0, "comparison", comparison.title)
                    curve.insert(1, "side", name)
                    curve.insert(2, "seed", seed)
                    curves.append(curve)
                    bar.update()
    return pd.concat(curves, ignore_index=True)


def on_a_grid(curves: pd.DataFrame, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Return times, and the loss of each seed at these times, one row per seed.

    Parameters
    ----------
    curves
        Those of one side of a comparison.
    seconds
        The training time.
    """
    begin = curves.groupby("seed")["seconds"].min().max()
    grid = np.linspace(begin, seconds, POINTS)
    rows = [np.interp(grid, c["seconds"], c["loss"]) for _, c in curves.groupby("seed")]
    return grid, np.stack(rows)


def conclude(comparison: Comparison, curves: pd.DataFrame, seconds: float) -> list[str]:
    """Return a sentence for each side but the first, which follows from the losses.

    The loss at the end is the mean over the last part of the time: with M = 1 that of a
    single step depends on the few before it.
    """
    own = curves[curves["comparison"] == comparison.title]
    first, *others = comparison.sides
    plain = _ends(own[own["side"] == first], seconds)
    goal = np.mean(plain)
    sentences = []
    for name in others:
        found = own[own["side"] == name]
        ends = _ends(found, seconds)
        lower = int((ends < plain).sum())
        reached = first_reached(mean_curve(found, "seconds", "loss"), goal)
        time = (
            "It did not reach that loss"
            if math.isnan(reached)
            else f"It reached that loss after {reached / seconds:.0%} of the time"
        )
        sentences.append(
            f"{name} ended at {np.mean(ends):.4g}, {first} at {goal:.4g}: lower with "
            f"{lower} of {len(ends)} seeds. {time}."
        )
    return sentences


def _ends(curves: pd.DataFrame, seconds: float) -> np.ndarray:
    """Return the loss of each seed, averaged over the last part of the time."""
    seeds = curves.groupby("seed")[["seconds", "loss"]]
    return np.array([tail_mean(own.to_numpy(), seconds, TAIL) for _, own in seeds])


def plot(comparisons: list[Comparison], curves: pd.DataFrame, seconds: float) -> Figure:
    """Plot the mean loss against training time, with a band from lowest to highest.

    The axis shows where the curves end; they may begin above it.
    """
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, len(comparisons), squeeze=False)[0]
    for axes, comparison in zip(panels, comparisons, strict=True):
        own = curves[curves["comparison"] == comparison.title]
        means = []
        for name, colour in zip(comparison.sides, COLOURS):
            grid, losses = on_a_grid(own[own["side"] == name], seconds)
            means.append(pd.DataFrame({"x": grid, "mean": losses.mean(axis=0)}))
            axes.plot(grid, means[-1]["mean"], color=colour, label=name)
            band = losses.min(axis=0), losses.max(axis=0)
            axes.fill_between(grid, *band, color=colour, alpha=0.15, linewidth=0)
        set_loss_axis(axes, loss_axis(means))
        axes.set_title(comparison.title, fontsize="medium")
        axes.set_xlabel("training time (s)")
        axes.set_ylabel(comparison.loss)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return figure


def main(arguments: list[str] | None = None) -> int:
    """Run the comparisons and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pts_scott.demo",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="training time of each run"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each optimizer")
    parser.add_argument(
        "--repetitions", type=int, default=2000, help="of the paper's patterns"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("results/demo"), help="folder of the results"
    )
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)  # more threads slow such small operators down
    silence_lightning()
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        seconds = real_number("seconds", options.seconds, exclusive=True)
        whole_number("seeds", options.seeds)
        options.output.mkdir(parents=True, exist_ok=True)
        comparisons = [
            paper_comparison(options.repetitions),
            mixed_comparison(),
        ]
        if backend.NAME != "gluonts":
            _say("GluonTS' own trainer is compared only if the current GluonTS is there.")
        curves = run(comparisons, options.seeds, seconds, _say)
        curves.to_csv(options.output / "curves.csv", index=False)
        save_figure(plot(comparisons, curves, seconds), options.output / "loss.png")
    except (ScottError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for comparison in comparisons:
        print(
            f"\n{comparison.title}, {seconds:g} s of training, without compilation; the "
            "loss at the end is the mean over the last sixth of the time:"
        )
        print("\n".join(f"  {s}" for s in conclude(comparison, curves, seconds)))
    print(f"\nplot and curves: {options.output}/")
    return 0


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
