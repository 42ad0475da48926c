"""An algorithm with its engine, assembled without Lightning."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from pts_scott import Stratifier, WindowIndex
from pts_scott._utils.rng import Generators
from pts_scott.engine.build import EngineOptions, EngineParts, build_engine
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.losses import Losses
from pts_scott.method.hyperparameters import Hyperparameters
from pts_scott.method.methods import METHODS, Method
from pts_scott.method.output import OutputSelector
from pts_scott.method.protocol import Counters, LoopReport
from pts_scott.method.scott import Algorithm
from pts_scott.training.optimizers import OPTIMIZERS


class Assembled(NamedTuple):
    """The parts of a run, ready for outer loops."""

    algorithm: Algorithm
    method: Method
    parts: EngineParts
    counters: Counters
    optimizer: torch.optim.Optimizer

    @property
    def parameters(self) -> list[torch.Tensor]:
        """A copy of the current parameters."""
        return [p.detach().clone() for p in self.parts.engine.gradients.parameters]

    def outer_loop(self, length: int) -> LoopReport:
        """Run one outer loop of at most ``length`` steps."""
        loop = self.algorithm.outer_loop(0.1, 1.0, lambda made: made < length, length)
        return self.parts.wrapper.finish(loop)


def assemble(
    network: nn.Module,
    windows: WindowIndex,
    method: str = "scott",
    optimizer: str = "sgd",
    device: str = "cpu",
    strata_device: str | None = None,
    clip_gradient: float | None = None,
    compiled: bool = False,
    **hyperparameters: Any,
) -> Assembled:
    """Put a method, an engine and an optimizer together on a device.

    Parameters
    ----------
    network, windows
        What is trained, and on which windows.
    method, optimizer
        By name.
    device, strata_device
        Where everything is, and where the strata are instead, if anywhere else.
    clip_gradient, compiled
        Largest norm of an update, and whether steps are compiled.
    **hyperparameters
        Fields of `Hyperparameters`; a mini-batch has four windows, and no early stop.
    """
    losses = Losses(network.to(device), windows.fields)
    numbers = {"batch_size": 4, "gamma": None, **hyperparameters}
    numbers = Hyperparameters(method=method, **numbers)
    strata = Stratifier.calendar("hour").stratify(windows).to(strata_device or device)
    windows = windows.to(device)
    generators = Generators.from_seed(0)
    kind = METHODS[method]
    chosen = kind(numbers, windows, None if kind.chooses_strata else strata, generators)
    gradients = Gradients(losses, compiled=compiled)
    made = OPTIMIZERS[optimizer](gradients.parameters, lr=0.1, weight_decay=1e-3)
    counters = Counters()
    parts = build_engine(
        chosen,
        gradients,
        lambda numbers: windows.gather(numbers, losses.fields),
        counters,
        EngineOptions(made, made.step, clip_gradient=clip_gradient),
    )
    output = OutputSelector("last", losses, generators.output)
    algorithm = Algorithm(
        chosen, parts.wrapper, parts.early_stop, output, counters, generators.length
    )
    return Assembled(algorithm, chosen, parts, counters, made)
