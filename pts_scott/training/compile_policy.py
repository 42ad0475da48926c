"""Whether the steps of a run are compiled.

Compiling takes tens of seconds, and saves two to five milliseconds in each step of a
small network (benchmarks/steps.py). The rule is fixed, not timed: compiled and eager runs
round differently, and the same seed must give the same result.
"""

from __future__ import annotations

import math
import os
import shutil
import warnings
from dataclasses import dataclass

from torch import nn

from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.losses import Losses
from pts_scott.engine.training_effects import TrainingEffects, why_uncompilable
from pts_scott.errors import ScottWarning
from pts_scott.method.hyperparameters import Hyperparameters
from pts_scott.method.methods import METHODS
from pts_scott.training.budget import Budget
from pts_scott.training.threads import CONVOLUTIONS, is_large_step

STEPS_THAT_REPAY_COMPILING = 10_000
SECONDS_THAT_REPAY_COMPILING = 60.0

NO_COMPILER = "no C++ compiler was found"


@dataclass(frozen=True)
class CompileDecision:
    """Whether to compile, and the reason if a request to compile was declined."""

    compiled: bool
    fallback: str | None = None


def decide_compilation(
    wanted: bool | str,
    losses: Losses,
    windows: WindowIndex,
    effects: TrainingEffects,
    hyperparameters: Hyperparameters,
    budget: Budget,
    *,
    on_cpu: bool,
    excluded: bool,
) -> CompileDecision:
    """Decide whether the steps of a run are compiled.

    Parameters
    ----------
    wanted
        True, False or "auto".
    losses, windows, effects
        The network, its windows, and the side effects of a training pass.
    hyperparameters, budget
        They determine the number of steps.
    on_cpu
        Whether training is on the CPU, where a C++ compiler is needed.
    excluded
        Whether the run cannot be compiled: it has mixed precision.
    """
    compiled = not excluded and wants_compilation(
        wanted, losses, windows, hyperparameters, budget
    )
    if compiled and on_cpu and not has_compiler():
        warnings.warn(
            f"{NO_COMPILER}, so gradients are not compiled; install g++ "
            "or clang++ for several times the speed, or pass compile=False.",
            ScottWarning,
            stacklevel=5,
        )
        return CompileDecision(False, NO_COMPILER)
    obstacle = why_uncompilable(losses, windows, effects) if compiled else None
    if obstacle:
        if wanted is True:
            warnings.warn(
                f"{losses.name} {obstacle}, so its steps are not compiled.",
                ScottWarning,
                stacklevel=5,
            )
        return CompileDecision(False)
    return CompileDecision(compiled)


def wants_compilation(
    wanted: bool | str,
    network: nn.Module,
    windows: WindowIndex,
    hyperparameters: Hyperparameters,
    budget: Budget,
) -> bool:
    """Resolve ``compile=`` for a network; "auto" compiles if enough steps repay it."""
    if wanted != "auto":
        return bool(wanted) and windows.compiles
    size = hyperparameters.batch_size
    steps = windows.context_length + windows.prediction_length
    return (
        windows.compiles
        # The kernel of a recurrent layer stays as it is, so its length does not count.
        and not is_large_step(network, size, steps, CONVOLUTIONS)
        and repays_compiling(hyperparameters, budget)
    )


def repays_compiling(hyperparameters: Hyperparameters, budget: Budget) -> bool:
    """Return whether a run has enough steps to make up for compiling them."""
    steps = math.inf if budget.steps is None else budget.steps
    if budget.gradients is not None:
        passes = 2 if METHODS[hyperparameters.method].uses_snapshot else 1
        steps = min(steps, budget.gradients / (passes * hyperparameters.batch_size))
    seconds = budget.seconds or math.inf
    return steps >= STEPS_THAT_REPAY_COMPILING and seconds >= SECONDS_THAT_REPAY_COMPILING


def has_compiler() -> bool:
    """Return whether torch finds a C++ compiler, which compilation on the CPU needs."""
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++", "cl"]
    return any(name and shutil.which(name) for name in names)
