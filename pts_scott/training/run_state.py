"""The state of a run: everything to resume it that Lightning does not save."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple
from typing import Any

import torch

from pts_scott import __version__
from pts_scott._utils.rng import Generators, global_state
from pts_scott._utils.text import cause
from pts_scott.engine.buffers import set_buffers
from pts_scott.engine.losses import Losses
from pts_scott.engine.processes import Processes
from pts_scott.errors import DamagedCheckpointError, ScottError
from pts_scott.method.methods import Method
from pts_scott.method.output import OutputSelector
from pts_scott.method.protocol import Counters
from pts_scott.training.budget import Budget
from pts_scott.training.clock import Stopwatch
from pts_scott.training.fault_log import FaultLog
from pts_scott.training.history import History
from pts_scott.training.probes import Probes

KEY = "pts_scott"  # key of this package's part in Lightning's checkpoints
FORMAT = 5
#: The entries of that part and their types, except format and version.
STATE: dict[str, type | tuple[type, ...]] = {
    "fingerprint": dict,
    "between": bool,
    "finished": bool,
    "budget": list,
    "counters": dict,
    "seconds": float,
    "scheduler_loss": (float, type(None)),
    "train_loss": float,
    "faults": dict,
    "random": list,
    "buffers": dict,
    "generators": dict,
    "probes": dict,
    "method": dict,
    "engine": dict,
    "output": dict,
    "history": dict,
}


class RunState:
    """Counts, clock, history and everything else that a checkpoint holds of a run.

    Parameters
    ----------
    losses, is_stateful
        The network, and whether its buffers change in training.
    method, generators
        The method, which draws windows, and the streams of random numbers.
    output
        Which parameters training returns.
    faults, history
        The skipped steps, and one row per outer loop.
    budget
        When training ends.
    probes
        The measurements that adapt the sampler; None for none.
    """

    def __init__(
        self,
        losses: Losses,
        is_stateful: bool,
        method: Method,
        generators: Generators,
        output: OutputSelector,
        faults: FaultLog,
        history: History,
        budget: Budget,
        probes: Probes | None = None,
    ) -> None:
        self._probes = probes
        self._losses, self._is_stateful = losses, is_stateful
        self._method, self._generators = method, generators
        self._output, self._budget = output, budget
        self.faults, self.history = faults, history
        self.counters = Counters()
        self.clock = Stopwatch()
        #: Whether the run has finished, as recorded in its checkpoint.
        self.finished = False
        #: The loss for the scheduler's next decision, and that of the last loop.
        self.scheduler_loss: float | None = None
        self.train_loss = math.nan
        #: Read from a checkpoint, and used once training starts.
        self.random: dict[str, Any] | None = None
        self.engine: dict[str, Any] = {}

    def state_dict(
        self, processes: Processes, engine: dict[str, Any], device: torch.device
    ) -> dict[str, Any]:
        """Return the state as tensors and plain values."""
        buffers = self._losses.named_buffers() if self._is_stateful else ()
        return {
            "format": FORMAT,
            "version": __version__,
            "finished": self.finished,
            "budget": list(astuple(self._budget)),
            "counters": asdict(self.counters),
            "seconds": self.clock.seconds,
            "scheduler_loss": self.scheduler_loss,
            "train_loss": self.train_loss,
            "faults": self.faults.state_dict(),
            "random": processes.gather(global_state(device)),
            "buffers": {name: buffer.clone() for name, buffer in buffers},
            "generators": self._generators.state_dict(),
            "probes": {} if self._probes is None else self._probes.state_dict(),
            "method": self._method.state_dict(),
            "engine": engine,
            "output": self._output.state_dict(),
            "history": self.history.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], rank: int) -> None:
        """Continue from a saved state, as process ``rank``."""
        self.finished = state["finished"]
        for name, value in state["counters"].items():
            setattr(self.counters, name, value)
        self.scheduler_loss = state["scheduler_loss"]
        self.train_loss = state["train_loss"]
        self.faults.load_state_dict(state["faults"])
        self.clock = Stopwatch(state["seconds"])
        set_buffers(self._losses, state["buffers"])
        if self._probes is not None:  # which draw again the windows of their strata
            self._probes.load_state_dict(state["probes"])
        self._generators.load_state_dict(state["generators"])
        self._method.load_state_dict(state["method"])
        self.engine = state["engine"]
        self._output.load_state_dict(state["output"])
        self.history.load_state_dict(state["history"])
        random = state["random"]
        self.random = random[min(rank, len(random) - 1)]

    def has_used_up(self, state: dict[str, Any]) -> bool:
        """Return whether the run of a checkpoint has used up the current budget."""
        with intact_checkpoint():
            spent = state["counters"]["steps"], state["seconds"]
            count, cost = state["counters"]["gradients"], self._method.first_step_cost
            return not self._budget.allows(*spent, count, cost)

    def is_same_end(self, state: dict[str, Any]) -> bool:
        """Return whether the run of a checkpoint ended with the same budget."""
        return bool(state["finished"]) and state["budget"] == list(astuple(self._budget))


def check_shapes(network: torch.nn.Module, state: dict[str, Any]) -> None:
    """Raise if the shapes of a checkpoint's parameters differ from the network's."""
    for name, parameter in network.named_parameters():
        if state[name].shape != parameter.shape:
            raise ValueError(f"{name} has shape {tuple(state[name].shape)}")


@contextmanager
def intact_checkpoint() -> Iterator[None]:
    """Raise one type of error for any failure to read an altered checkpoint.

    Raises
    ------
    DamagedCheckpointError
    """
    try:
        yield
    except ScottError:
        raise
    except Exception as error:
        raise DamagedCheckpointError(
            f"the contents of the checkpoint are invalid ({cause(error)}); it was "
            "changed after it was written. Remove it to start again."
        ) from error
