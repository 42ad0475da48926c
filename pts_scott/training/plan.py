"""The plan of a run: all of its settings, except for network and windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.optim.lr_scheduler import LRScheduler

from pts_scott.method.hyperparameters import Hyperparameters
from pts_scott.training.budget import Budget


@dataclass(frozen=True)
class Plan:
    """Method, budget, output and optimizer of one run.

    Parameters
    ----------
    hyperparameters
        The method and its numbers.
    budget
        When training ends.
    coefficient
        c of the control variate, or "linear".
    num_batches_per_epoch
        Steps per epoch.
    output
        "last", "sampled" or "best".
    clip_gradient
        Maximum norm of an update; None for no clipping.
    make_optimizer, make_scheduler
        Factories; None for no scheduler.
    skip_limit
        Number of consecutive non-finite steps after which training ends.
    compiled
        Whether steps are to be compiled.
    must_compile
        Whether a compiled step that is wrong is an error.
    """

    hyperparameters: Hyperparameters
    budget: Budget
    coefficient: float | str
    num_batches_per_epoch: int
    output: str
    clip_gradient: float | None
    make_optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
    make_scheduler: Callable[[torch.optim.Optimizer], LRScheduler] | None = None
    skip_limit: int = 10
    compiled: bool = False
    must_compile: bool = False
