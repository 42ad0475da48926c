"""Steps a second against the stack's own trainer: one run, one thread, as ratios.

The setting is SimpleFeedForward with four layers of 80, M = 32, on series of the size
of Exchange-Rate (8 × 6070 business days, context 8, prediction 1). Each side trains
its own whole loop; rounds are interleaved and medians are compared.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from gluonts.dataset.common import ListDataset

from pts_scott import ScottTrainer, SimpleFeedForwardEstimator, Stratifier
from pts_scott.gradients import Losses
from pts_scott.stacks import stack

HIDDEN = [80] * 4
BATCH_SIZE = 32
CONTEXT, PREDICTION = 8, 1
STRATIFIER = Stratifier.ranges(4) * Stratifier.series()


def random_walks(series: int = 8, length: int = 6070) -> ListDataset:
    """Series of the size of Exchange-Rate's training range."""
    steps = np.random.default_rng(0).standard_normal((series, length))
    return ListDataset(
        [
            {"item_id": str(i), "start": "1990-01-01", "target": walk}
            for i, walk in enumerate(1 + 0.1 * np.exp(0.01 * steps.cumsum(axis=1)))
        ],
        freq="B",
    )


def library_seconds(data: ListDataset, steps: int) -> float:
    """Seconds a step of the stack's own estimator and trainer, data loading included."""
    if stack.NAME == "pytorchts":
        from pts import Trainer
        from pts.model.simple_feedforward import SimpleFeedForwardEstimator as Library

        trainer = Trainer(epochs=1, batch_size=BATCH_SIZE, num_batches_per_epoch=steps)
        estimator = Library(
            freq="B",
            prediction_length=PREDICTION,
            context_length=CONTEXT,
            num_hidden_dimensions=HIDDEN,
            trainer=trainer,
        )
        arguments = {"prefetch_factor": None}
    else:
        from gluonts.torch import SimpleFeedForwardEstimator as Library

        estimator = Library(
            prediction_length=PREDICTION,
            context_length=CONTEXT,
            hidden_dimensions=HIDDEN,
            batch_size=BATCH_SIZE,
            num_batches_per_epoch=steps,
            trainer_kwargs={
                "max_epochs": 1,
                "logger": False,
                "default_root_dir": tempfile.mkdtemp(),  # for GluonTS' checkpoint
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "accelerator": "cpu",
            },
        )
        arguments = {}
    began = time.perf_counter()
    estimator.train(data, **arguments)
    return (time.perf_counter() - began) / steps


def our_trainer(method: str, steps: int, compiled: bool) -> ScottTrainer:
    """Our trainer in the same setting, without early stop: K steps an anchor."""
    return ScottTrainer(
        method=method,
        optimizer="adam",
        batch_size=BATCH_SIZE,
        stratifier=STRATIFIER,
        gamma=None,
        epochs=1,
        num_batches_per_epoch=steps,
        compile=compiled,
        seed=0,
        trainer_kwargs={"enable_progress_bar": False},
    )


def our_seconds(data: ListDataset, method: str, steps: int, compiled: bool) -> float:
    """Seconds a step of our whole loop, anchors included, compilation apart."""
    trainer = our_trainer(method, steps, compiled)
    SimpleFeedForwardEstimator(
        freq="B",
        prediction_length=PREDICTION,
        context_length=CONTEXT,
        hidden_dimensions=HIDDEN,
        trainer=trainer,
    ).train(data)
    return float(trainer.history["seconds"].iloc[-1]) / steps


def bare_seconds(data: ListDataset, steps: int) -> float:
    """Forward, backward and update on a batch in memory: the bare eager limit."""
    network = stack.simple_feedforward(CONTEXT, PREDICTION, HIDDEN, None, False)
    losses = Losses(network)
    batch = {
        "past_target": 1 + torch.rand(BATCH_SIZE, CONTEXT),
        "future_target": 1 + torch.rand(BATCH_SIZE, PREDICTION),
        "future_observed_values": torch.ones(BATCH_SIZE, PREDICTION),
    }
    optimizer = torch.optim.Adam(network.parameters(), weight_decay=1e-5, fused=True)
    began = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        losses(batch).mean().backward()
        optimizer.step()
    return (time.perf_counter() - began) / steps


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    data = random_walks()

    sides: dict[str, Callable[[int], float]] = {
        f"{stack.NAME}'s own trainer": lambda n: library_seconds(data, n),
        "bare eager step": lambda n: bare_seconds(data, n),
        "plain, eager": lambda n: our_seconds(data, "plain", n, False),
        "SCott inner step, eager": lambda n: our_seconds(data, "scott", n, False),
    }
    if not options.no_compile:
        sides["plain, compiled"] = lambda n: our_seconds(data, "plain", n, True)
        sides["SCott inner step, compiled"] = lambda n: our_seconds(
            data, "scott", n, True
        )
    times: dict[str, list[float]] = {name: [] for name in sides}
    for measure in sides.values():  # warm up
        measure(40)
    for _ in range(options.rounds):
        for name, measure in sides.items():
            times[name].append(measure(options.steps))

    medians = {name: statistics.median(values) for name, values in times.items()}
    own = medians[f"{stack.NAME}'s own trainer"]
    print(f"SimpleFeedForward 4 x 80, M = {BATCH_SIZE}, Adam, one thread, medians of")
    print(f"{options.rounds} interleaved rounds of {options.steps} steps:\n")
    print(f"{'':30s} {'ms/step':>8s} {'steps/s':>8s} {'times as fast':>14s}")
    for name, value in medians.items():
        print(f"{name:30s} {value * 1e3:8.3f} {1 / value:8.0f} {own / value:14.2f}")


if __name__ == "__main__":
    main()
