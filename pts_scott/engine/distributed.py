"""Several processes that train one network: who computes what, and its sum.

Every process draws the same windows, from generators of one seed, and computes the
gradients of its own share of them. One reduction adds the shares up, so that all take the
same step, and as many processes as one likes take the step that one would have taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pts_scott.engine.gradients import Tensors, Update
from pts_scott.errors import ProcessError


class Processes:
    """One process, alone."""

    rank = 0
    size = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that speaks and writes for all."""
        return self.rank == 0

    def own(self, windows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The share of some windows that falls to this process, with their weights."""
        return windows, weights

    def total(self, update: Update) -> Update:
        """The sum of what all processes have computed."""
        return update

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """The sum of each number over all processes."""
        return list(numbers)

    def gathered(self, value: Any) -> list[Any]:
        """The value of every process."""
        return [value]


class ProcessGroup(Processes):
    """The processes of torch's process group.

    Parameters
    ----------
    dtype
        Of what is summed up: the finest of the parameters' types.
    device
        Where they lie.
    signals
        What processes tell each other with each update: seconds of training, and whether
        somebody asked to stop.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        signals: Callable[[], tuple[float, bool]],
    ) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._dtype, self._device, self._signals = dtype, device, signals
        #: Seconds of training of the first process, as of the last update.
        self.seconds = 0.0
        #: Whether any process was asked to stop, as of the last update.
        self.interrupted = False

    def own(self, windows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        share = slice(self.rank, None, self.size)
        return windows[share].contiguous(), weights[share].contiguous()

    def total(self, update: Update) -> Update:
        seconds, interrupted = self._signals()
        told = [seconds if self.first else 0.0, float(interrupted)]
        signals = torch.tensor(told, dtype=self._dtype, device=self._device)
        pieces = [*update.direction, update.loss, signals]
        flat = torch.cat([x.detach().reshape(-1).to(self._dtype) for x in pieces])
        self._reduce(flat)
        *direction, loss, signals = flat.split([x.numel() for x in pieces])
        self.seconds = float(signals[0])
        self.interrupted = bool(signals[1] > 0)
        shaped = (
            x.reshape(d.shape).to(d.dtype)
            for x, d in zip(direction, update.direction, strict=True)
        )
        return Update(tuple(shaped), loss.reshape(()))

    def sums(self, numbers: Sequence[float]) -> list[float]:
        tensor = torch.tensor(list(numbers), dtype=torch.float64, device=self._device)
        self._reduce(tensor)
        return tensor.tolist()  # type: ignore[no-any-return]

    def gathered(self, value: Any) -> list[Any]:
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def _reduce(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor)


# What torch says, in the words of gloo, NCCL and the store in which processes meet, when
# another one is gone or does not answer.
LOST = re.compile(
    r"gloo|nccl|connection (was )?(reset|closed|refused)|tcpstore|socket|broken pipe"
    r"|time(d )?out",
    re.IGNORECASE,
)


@contextmanager
def told_apart() -> Iterator[None]:
    """A block in which the loss of another process is told apart from other errors.

    Processes wait for each other in many places, Lightning's own among them.

    Raises
    ------
    ProcessError
        In place of what torch says.
    """
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or LOST.search(str(error))):
            raise
        raise ProcessError(
            f"process {_rank()} has lost another one, which has died or cannot be "
            "reached; training ends. Start it again with resume=True to go on from the "
            "last checkpoint."
        ) from error


def _rank() -> str:
    if not dist.is_initialized():
        return "of this script"
    return f"{dist.get_rank()} of {dist.get_world_size()}"


def nothing(parameters: Tensors) -> Update:
    """The share of a process that has no window."""
    like = parameters[0]
    return Update(
        tuple(torch.zeros_like(p, requires_grad=False) for p in parameters),
        torch.zeros((), dtype=like.dtype, device=like.device),
    )
