"""Errors of a network, traced to the window on which it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from pts_scott._utils.text import cause
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.losses import Losses
from pts_scott.engine.nonfinite_windows import failing_window, name_windows
from pts_scott.errors import DivergenceError, ScottError, WindowLossError
from pts_scott.training.fault_log import FaultLog


@contextmanager
def named_window_errors(
    losses: Losses,
    windows: WindowIndex,
    current: Callable[[], Tensor | None],
    faults: FaultLog,
    step: int,
) -> Iterator[None]:
    """Name the window if the network fails on one.

    Parameters
    ----------
    losses
        The network.
    windows, current
        The index, and the windows to search.
    faults
        Knows windows that were finite before training.
    step
        For the message.

    Raises
    ------
    WindowLossError
        If a window is the reason.
    DivergenceError
        If it fails on windows that were finite before training.
    """
    try:
        yield
    except ScottError:
        raise
    except Exception as error:
        suspects = current()
        found = None
        if suspects is not None:
            found = failing_window(losses, windows, suspects)
        if found is None:  # it is not the network, or needs another batch to fail
            raise
        number, reason = found
        if faults.has_diverged():
            raise DivergenceError(
                f"training diverged after step {step}: {losses.name} fails "
                "on windows that it was checked on before training "
                f"({cause(reason)}). Lower learning_rate, or set clip_gradient."
            ) from error
        raise WindowLossError(
            f"{losses.name} fails on {name_windows(windows, number)}: "
            f"{cause(reason)}. Check the values and features of that window: a "
            "category, for example, must be below its cardinality."
        ) from error
