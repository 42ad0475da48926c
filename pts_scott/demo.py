"""SCott against plain SGD on the paper's synthetic data, for the same training time.

Run it with ``python -m pts_scott.demo``; it downloads nothing.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pandas as pd
import torch
from tqdm import tqdm

from pts_scott import ScottTrainer, WindowIndex
from pts_scott.datasets.synthetic import (
    CONTEXT_LENGTH,
    PREDICTION_LENGTH,
    synthetic_windows,
)
from pts_scott.errors import ArgumentError, ScottError
from pts_scott.experiments.lightning_control import silence_lightning
from pts_scott.experiments.progress import advance_to, terminal_bar
from pts_scott.models.networks import VARNetwork
from pts_scott.strata.synthetic import synthetic_stratifier

# Method and step size by name. The step sizes are those of the paper's grid with the
# lowest final loss (mean of the last five measurements after 40 s) on data of another
# seed; γ and M are the paper's.
COMPARED = {"SGD": ("plain", 5e-3), "SCott": ("scott", 1e-2)}
GAMMA = 0.125
BATCH_SIZE = 1
STEPS_PER_EPOCH = 1000  # between two measurements of the loss over all windows
SECONDS_BETWEEN_LINES = 5.0  # where there is no terminal for a progress bar
SECONDS_BETWEEN_UPDATES = 0.2


@dataclass(frozen=True)
class TrainedOptimizer:
    """The name of an optimizer and the history of its training."""

    name: str
    history: pd.DataFrame

    @property
    def curve(self) -> pd.DataFrame:
        """The rows with a measurement of the loss over all windows."""
        return self.history.dropna(subset=["val_loss"])


class TrainingProgress(pl.Callback):
    """A progress bar on terminals, and a line every few seconds elsewhere."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name, self._seconds = name, seconds
        self._bar = terminal_bar(seconds, " s", leave=True, desc=f"{name:6s}")
        self._pause = (
            SECONDS_BETWEEN_LINES if self._bar.disable else SECONDS_BETWEEN_UPDATES
        )
        self._shown = 0.0

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        """Show the time used and the loss of the latest steps."""
        if module.clock.seconds < self._shown + self._pause:
            return
        self._shown = module.clock.seconds
        loss = float(trainer.callback_metrics.get("train_loss", float("nan")))
        status = f"step {module.steps:6d}, loss of the latest steps {loss:8.3f}"
        self._bar.set_postfix_str(status, refresh=False)
        advance_to(self._bar, self._shown)
        if self._bar.disable:
            time = f"{self._shown:5.1f} of {self._seconds:.0f} s"
            tqdm.write(f"{self._name:6s} {time}, {status}", file=sys.stderr)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Close the bar."""
        self._bar.close()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Close the bar, so that the error has its own line."""
        self._bar.close()


def train(name: str, windows: WindowIndex, seconds: float, seed: int) -> TrainedOptimizer:
    """Train the VAR model with one optimizer, from the same initial weights for all."""
    method, learning_rate = COMPARED[name]
    trainer = ScottTrainer(
        method=method,
        optimizer="sgd",
        learning_rate=learning_rate,
        stratifier=synthetic_stratifier(),
        batch_size=BATCH_SIZE,
        gamma=GAMMA,
        epochs=None,
        num_batches_per_epoch=STEPS_PER_EPOCH,
        time_budget=seconds,
        output="last",
        clip_gradient=None,
        seed=seed,
        trainer_kwargs={
            "enable_progress_bar": False,
            "callbacks": [TrainingProgress(name, seconds)],
        },
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = VARNetwork(CONTEXT_LENGTH, PREDICTION_LENGTH)
    trainer.fit(network, windows, validation_windows=windows)
    return TrainedOptimizer(name, trainer.history)


def table(results: list[TrainedOptimizer]) -> pd.DataFrame:
    """Return the final losses and the cost of each optimizer."""
    rows = []
    for result in results:
        last, curve = result.history.iloc[-1], result.curve
        rows.append(
            {
                "optimizer": result.name,
                "final loss": curve["val_loss"].iloc[-1],
                "mean of the last 5": curve["val_loss"].tail(5).mean(),
                "gradients": int(last["gradients"]),
                "seconds": round(last["seconds"], 1),
                "steps": int(last["step"]),
                "anchors": int(last["anchors"]),
            }
        )
    return pd.DataFrame(rows).set_index("optimizer").round(3)


def plot(results: list[TrainedOptimizer], path: Path) -> None:
    """Plot the loss over all windows against seconds and against gradients."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, column, label in (
        (axes[0], "seconds", "training time (s)"),
        (axes[1], "gradients", "gradients computed"),
    ):
        for result, colour in zip(results, ("tab:orange", "tab:blue"), strict=True):
            curve = result.curve
            axis.plot(curve[column], curve["val_loss"], color=colour, label=result.name)
        axis.set_xlabel(label)
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(ScalarFormatter())
        axis.yaxis.set_minor_locator(NullLocator())
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("scaled mean squared error\nover all windows")
    axes[0].legend(frameon=False)
    figure.suptitle("VAR on the paper's synthetic data, M = 1")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pts_scott.demo", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="training time per optimizer"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of data, initial weights and draws"
    )
    parser.add_argument(
        "--repetitions", type=int, default=2000, help="repetitions of the patterns"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("results/demo"), help="folder of the results"
    )
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)  # more threads slow such small operators down
    silence_lightning()
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        if not 0 < options.seconds < float("inf"):
            raise ArgumentError(f"--seconds {options.seconds}: expected more than 0.")
        options.output.mkdir(parents=True, exist_ok=True)
        windows = synthetic_windows(options.repetitions, options.seed)
        print(synthetic_stratifier().stratify(windows))
        results = [
            train(name, windows, options.seconds, options.seed) for name in COMPARED
        ]
        for result in results:
            path = options.output / f"{result.name.lower()}.csv"
            result.history.to_csv(path, index=False)
        plot(results, options.output / "loss.png")
    except (ScottError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"\n{table(results).to_string()}\n\nplot and histories: {options.output}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
