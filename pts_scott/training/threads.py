"""The number of CPU threads for training.

Small operators gain nothing from a second thread, and threads wait for each other when
other programs use the machine: two threads were measured to be between 1.3 and 100 times
slower than one on two busy cores, and at best 1.6 times faster on idle ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy

LARGE_STEP = 1e8  # parameters × windows × steps at which they are used

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
#: Layers that use their parameters at each step of a window.
STEPWISE = (nn.RNNBase, *CONVOLUTIONS)


def is_large_step(
    network: nn.Module,
    batch_size: int,
    context_length: int,
    stepwise: tuple[type[nn.Module], ...] = STEPWISE,
) -> bool:
    """Return whether arithmetic, not overhead, takes most of a step's time.

    Parameters
    ----------
    network, batch_size, context_length
        The network, and the windows of a step.
    stepwise
        Layers whose parameters count for each step of a context.
    """
    work = 0
    for layer in network.modules():
        own = (p.numel() for p in layer.parameters(recurse=False) if not is_lazy(p))
        work += sum(own) * (context_length if isinstance(layer, stepwise) else 1)
    return batch_size * work >= LARGE_STEP


def choose_threads(network: nn.Module, batch_size: int, context_length: int) -> int:
    """Return a number of threads that is never far from the best.

    OMP_NUM_THREADS takes precedence. Otherwise one, or half of the cores if there are
    more than two and a step is large enough to share.
    """
    if os.environ.get("OMP_NUM_THREADS"):
        return torch.get_num_threads()
    if not is_large_step(network, batch_size, context_length):
        return 1
    return max(1, min(available_cores() // 2, torch.get_num_threads()))


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_limit(
    threads: int | str, network: nn.Module, batch_size: int, context_length: int
) -> AbstractContextManager[None]:
    """Return the context manager for a user's ``threads=`` and a network."""
    if isinstance(threads, str):  # "auto"
        threads = choose_threads(network, batch_size, context_length)
    return limited_threads(threads)


@contextmanager
def limited_threads(number: int) -> Iterator[None]:
    """Set the number of threads, and restore the old number on exit."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
