"""Several processes that train one network: ranks, reductions, and lost processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pts_scott._utils.text import one_line
from pts_scott.engine.gradients import Update
from pts_scott.errors import ProcessError

BUCKET = 2**24  # bytes of one all-reduce


class Processes:
    """A single process."""

    rank = 0
    size = 1

    @property
    def is_first(self) -> bool:
        """Whether this process issues warnings and writes files for all."""
        return self.rank == 0

    def shard(self, windows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return this process's share of some windows, with their weights."""
        return windows, weights

    def reduce(self, update: Update) -> Update:
        """Return the sum of the updates of all processes."""
        return update

    def share_buffers(self, module: nn.Module) -> None:
        """Give all processes the buffers of the first."""

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Return the sum of each number over all processes."""
        return list(numbers)

    def gather(self, value: Any) -> list[Any]:
        """Return the value of every process."""
        return [value]

    def apart(self) -> AbstractContextManager[None]:
        """Let each process work on its shard alone, without reductions."""
        return nullcontext()

    def exact(self) -> AbstractContextManager[None]:
        """Send directions in full precision, for checks."""
        return nullcontext()


class ProcessGroup(Processes):
    """The processes of torch's process group.

    Every process draws the same windows, from generators with one seed, and computes the
    gradients of its own shard. One all-reduce adds them up, so that all processes take
    the step that one alone would have taken.

    Parameters
    ----------
    dtype
        Type of the sum: the finest of the parameters' types.
    device
        Where the parameters are.
    signals
        Returns the values that processes exchange with each update: seconds of training,
        and whether a stop was requested.
    seconds
        Seconds of training so far.
    reduced_dtype
        Type in which directions are sent; None for that of the sum.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        signals: Callable[[], tuple[float, bool]],
        seconds: float = 0.0,
        reduced_dtype: torch.dtype | None = None,
    ) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._dtype, self._device, self._signals = dtype, device, signals
        self._reduced_dtype = reduced_dtype or dtype
        self._is_apart = False
        #: Seconds of training of the first process, as of the last update.
        self.seconds = seconds
        #: Whether any process was asked to stop, as of the last update.
        self.interrupted = False

    def shard(self, windows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        share = slice(self.rank, None, self.size)
        return windows[share].contiguous(), weights[share].contiguous()

    def reduce(self, update: Update) -> Update:
        if self._is_apart:
            return update
        seconds, interrupted = self._signals()
        values = [seconds if self.is_first else 0.0, float(interrupted)]
        signals = torch.tensor(values, dtype=self._dtype, device=self._device)
        numbers = [update.loss, signals]
        if self._reduced_dtype == self._dtype:
            *direction, loss, signals = self._sums([*update.direction, *numbers])
        else:  # numbers are few, and a budget needs all their digits
            direction = self._sums(update.direction, self._reduced_dtype)
            loss, signals = self._sums(numbers)
        self.seconds = float(signals[0])
        self.interrupted = bool(signals[1] > 0)
        return Update(tuple(direction), loss.reshape(()))

    def _sums(
        self, tensors: Sequence[Tensor], dtype: torch.dtype | None = None
    ) -> list[Tensor]:
        """Return the sums of tensors over all processes, in buckets of a limited size.

        While one bucket is sent, the next one is filled.
        """
        dtype = dtype or self._dtype
        started = []
        for bucket in _buckets(tensors, dtype.itemsize):
            flat = torch.cat([x.detach().reshape(-1).to(dtype) for x in bucket])
            started.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
        sums: list[Tensor] = []
        for bucket, flat, work in started:
            assert work is not None
            work.wait()
            parts = flat.split([x.numel() for x in bucket])
            pairs = zip(parts, bucket, strict=True)
            sums += [part.reshape(x.shape).to(x.dtype) for part, x in pairs]
        return sums

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Send directions in full precision, for checks."""
        given, self._reduced_dtype = self._reduced_dtype, self._dtype
        try:
            yield
        finally:
            self._reduced_dtype = given

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Let each process work on its shard alone, without reductions."""
        self._is_apart = True
        try:
            yield
        finally:
            self._is_apart = False

    def share_buffers(self, module: nn.Module) -> None:
        for buffer in module.buffers():
            broadcast(buffer.detach())

    def sums(self, numbers: Sequence[float]) -> list[float]:
        tensor = torch.tensor(list(numbers), dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor)
        return tensor.tolist()  # type: ignore[no-any-return]

    def gather(self, value: Any) -> list[Any]:
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values


def broadcast(tensor: Tensor) -> None:
    """Give all processes the values that a tensor has in the first.

    gloo walks through memory and ignores gaps.
    """
    values = tensor.contiguous()
    dist.broadcast(values, src=0)
    if values is not tensor:
        tensor.copy_(values)


def _buckets(tensors: Sequence[Tensor], item_size: int) -> list[list[Tensor]]:
    """Group tensors, in their order, into buckets of about `BUCKET` bytes."""
    buckets: list[list[Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        if size and size + tensor.numel() * item_size > BUCKET:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.numel() * item_size
    return buckets


# Error messages of torch (from gloo, NCCL and its store) when another process has died or
# does not respond.
LOST = re.compile(
    r"gloo|nccl|connection (was )?(reset|closed|refused)|tcpstore|socket|broken pipe"
    r"|time(d )?out",
    re.IGNORECASE,
)


@contextmanager
def raise_on_lost_process() -> Iterator[None]:
    """Raise a ``ProcessError`` if another process was lost.

    Processes wait for each other in many places, including Lightning's own code.

    Raises
    ------
    ProcessError
        In place of torch's error.
    """
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or LOST.search(str(error))):
            raise
        raise ProcessError(
            f"process {_rank()} lost another process, which died or cannot be reached "
            f"({_reason(error)}); training ends. Start it again with resume=True to "
            "resume from the last checkpoint."
        ) from error


def _reason(error: RuntimeError) -> str:
    """Return torch's reason, often with an address, without its source and its advice."""
    text = re.sub(r"\[\S+\.cc:\d+\] ", "", one_line(error))
    return text.partition(". ")[0]


def _rank() -> str:
    if not dist.is_initialized():
        return "of this script"
    return f"{dist.get_rank()} of {dist.get_world_size()}"
