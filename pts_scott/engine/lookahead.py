"""Accelerators: an engine that does not wait for the result of the early stop.

The norm of a step is copied to the host asynchronously. The early stop is evaluated only
after the next direction has been submitted to the device; if it fires, that direction is
cancelled: its gradients are counted, and its mini-batch is kept for the next outer loop.
The parameters equal those of an engine that waits, as long as the network draws no random
numbers (dropout) and no gradient budget ends the run.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pts_scott.engine.eager import Direction, EagerEngine
from pts_scott.engine.wrapper import EngineWrapper
from pts_scott.method.early_stop import EarlyStop
from pts_scott.method.protocol import Step


def should_look_ahead(device: torch.device, stochastic: bool, scaled: bool) -> bool:
    """Return whether steps on a device are made without waiting for their norms.

    Parameters
    ----------
    device
        The training device.
    stochastic
        Whether a cancelled direction would have drawn random numbers.
    scaled
        Whether a scaler of mixed precision has to see directions that are non-finite, or
        it would never lower its scale.
    """
    return device.type != "cpu" and not stochastic and not scaled


class DeferredEarlyStop(EarlyStop):
    """The early stop, evaluated one step late.

    Parameters
    ----------
    gamma
        γ; None for no early stop.
    device
        Where norms are computed.
    """

    def __init__(self, gamma: float | None, device: torch.device) -> None:
        super().__init__(gamma)
        self._norm: Tensor | None = None
        self._host: Tensor | None = None
        if device.type == "cuda":
            self._host = torch.empty((), dtype=torch.float64, pin_memory=True)
            self._event = torch.cuda.Event()

    def begin(self) -> None:
        super().begin()
        self._norm = None

    def __call__(self, step: Step) -> bool:
        """Send ‖v(t,k)‖² to the host; only a cancelled step is known to be the last."""
        if step.cancelled:
            return True
        self._norm = step.squared_norm
        if self._gamma is not None and self._host is not None:
            self._host.copy_(step.squared_norm, non_blocking=True)
            self._event.record(torch.cuda.current_stream(step.squared_norm.device))
        return False

    def fires(self) -> bool:
        """Return whether the previous step was the last of its outer loop."""
        if self._gamma is None or self._norm is None:
            return False
        if self._host is not None:
            self._event.synchronize()
        return self.is_met(float(self._norm if self._host is None else self._host))


class LookaheadEngine(EngineWrapper):
    """An engine that applies a direction unless the early stop has fired.

    Parameters
    ----------
    engine
        The engine that executes steps.
    early_stop
        The early stop of the run, evaluated here; None for methods without one.
    """

    def __init__(self, engine: EagerEngine, early_stop: DeferredEarlyStop | None) -> None:
        super().__init__(engine)
        self._early_stop = early_stop
        device = engine.gradients.parameters[0].device
        self._no_norm = torch.zeros((), device=device)

    def apply(self, v: Direction, last: bool) -> Step:
        """Update the parameters along v; a non-finite v becomes an update of zero."""
        if self._early_stop is not None and self._early_stop.fires():
            return Step(v.windows, v.loss, self._no_norm, cancelled=True)
        squared = v.squared_norm
        ok = squared.isfinite() & (squared <= self.engine.largest) & v.loss.isfinite()
        v.tensors = tuple(torch.where(ok, x, 0.0) for x in v.tensors)
        v.squared_norm = torch.where(ok, squared, 0.0)
        v.loss = torch.where(ok, v.loss, math.nan)
        return self.engine.apply(v, last)._replace(squared_norm=squared)
