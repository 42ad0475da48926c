"""SCott against plain SGD on the paper's synthetic data, for the same training time.

Run it with ``python -m pts_scott.demo``; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pandas as pd
import torch

from pts_scott import ScottTrainer, WindowIndex
from pts_scott.datasets.synthetic import (
    CONTEXT_LENGTH,
    PREDICTION_LENGTH,
    synthetic_windows,
)
from pts_scott.errors import ArgumentError, ScottError
from pts_scott.models.networks import VARNetwork
from pts_scott.strata.synthetic import synthetic_stratifier

# Of the paper's grid, the step size at which either method ends lowest (by the mean of
# its last five measurements, after 40 s) on data of another seed; γ and M are the
# paper's.
METHODS = {"SGD": ("plain", 5e-3), "SCott": ("scott", 1e-2)}
GAMMA = 0.125
BATCH_SIZE = 1
STEPS_AN_EPOCH = 1000  # between two measurements of the loss over all windows


@dataclass(frozen=True)
class Run:
    """One trained optimizer: its name and its history."""

    name: str
    history: pd.DataFrame

    @property
    def curve(self) -> pd.DataFrame:
        """The rows at which the loss over all windows was measured."""
        return self.history.dropna(subset=["val_loss"])


class Progress(pl.Callback):
    """Says how far a run is: a line that renews itself, or a line now and then."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds = name, seconds
        self.renew = sys.stderr.isatty()
        self.pause = 0.2 if self.renew else 5.0
        self.shown = 0.0

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        """Print the time used and the loss of the latest steps."""
        if module.clock.seconds < self.shown + self.pause:
            return
        self.shown = module.clock.seconds
        loss = float(trainer.callback_metrics.get("train_loss", float("nan")))
        line = (
            f"{self.name:6s} {self.shown:5.1f} of {self.seconds:.0f} s, step "
            f"{module.steps:6d}, loss of the latest steps {loss:8.3f}"
        )
        print(line, end="\r" if self.renew else "\n", file=sys.stderr, flush=True)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Leave the line for the next run."""
        if self.renew:
            print(file=sys.stderr)


def train(name: str, windows: WindowIndex, seconds: float, seed: int) -> Run:
    """Train the VAR model with one method, from the same start as the others."""
    method, learning_rate = METHODS[name]
    trainer = ScottTrainer(
        method=method,
        optimizer="sgd",
        learning_rate=learning_rate,
        stratifier=synthetic_stratifier(),
        batch_size=BATCH_SIZE,
        gamma=GAMMA,
        epochs=None,
        num_batches_per_epoch=STEPS_AN_EPOCH,
        time_budget=seconds,
        seed=seed,
        trainer_kwargs={
            "enable_progress_bar": False,
            "callbacks": [Progress(name, seconds)],
        },
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = VARNetwork(CONTEXT_LENGTH, PREDICTION_LENGTH)
    trainer.fit(network, windows, validation_windows=windows)
    return Run(name, trainer.history)


def table(runs: list[Run]) -> pd.DataFrame:
    """What each run reached and what it spent."""
    rows = []
    for run in runs:
        last, curve = run.history.iloc[-1], run.curve
        rows.append(
            {
                "optimizer": run.name,
                "loss at the end": curve["val_loss"].iloc[-1],
                "mean of the last 5": curve["val_loss"].tail(5).mean(),
                "gradients": int(last["gradients"]),
                "seconds": round(last["seconds"], 1),
                "steps": int(last["step"]),
                "anchors": int(last["anchors"]),
            }
        )
    return pd.DataFrame(rows).set_index("optimizer").round(3)


def plot(runs: list[Run], path: Path) -> None:
    """Loss over all windows against seconds and against gradients."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, column, label in (
        (axes[0], "seconds", "seconds of training"),
        (axes[1], "gradients", "gradients computed"),
    ):
        for run, colour in zip(runs, ("tab:orange", "tab:blue"), strict=True):
            axis.plot(
                run.curve[column], run.curve["val_loss"], color=colour, label=run.name
            )
        axis.set_xlabel(label)
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(ScalarFormatter())
        axis.yaxis.set_minor_locator(NullLocator())
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("mean squared error, scaled,\nover all windows")
    axes[0].legend(frameon=False)
    figure.suptitle("VAR on the paper's synthetic data, M = 1")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pts_scott.demo", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="of training for each"
    )
    parser.add_argument("--seed", type=int, default=0, help="of data, start and draws")
    parser.add_argument("--repetitions", type=int, default=2000, help="of the patterns")
    parser.add_argument(
        "--output", type=Path, default=Path("results/demo"), help="folder"
    )
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)  # operators this small get slower with more
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        if not 0 < options.seconds < float("inf"):
            raise ArgumentError(f"--seconds {options.seconds}: expected more than 0.")
        options.output.mkdir(parents=True, exist_ok=True)
        windows = synthetic_windows(options.repetitions, options.seed)
        print(synthetic_stratifier().stratify(windows))
        runs = [train(name, windows, options.seconds, options.seed) for name in METHODS]
        for run in runs:
            run.history.to_csv(options.output / f"{run.name.lower()}.csv", index=False)
        plot(runs, options.output / "loss.png")
    except (ScottError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"\n{table(runs).to_string()}\n\nplot and histories: {options.output}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
