"""The distributed engine: each process computes the gradients of its shard of windows."""

from __future__ import annotations

from collections.abc import Callable

from pts_scott.engine.base import Gather
from pts_scott.engine.eager import EagerEngine
from pts_scott.engine.gradients import Gradients, Update
from pts_scott.engine.processes import Processes
from pts_scott.method.protocol import Counters, Sample, Tensors


class DistributedEngine(EagerEngine):
    """An eager engine that shards the windows and all-reduces the gradients.

    Parameters
    ----------
    gradients, gather, counters, step, uses_snapshot, clip_gradient
        See `EagerEngine`.
    processes
        The processes that share the work.
    """

    def __init__(
        self,
        gradients: Gradients,
        gather: Gather,
        counters: Counters,
        step: Callable[[], object],
        processes: Processes,
        *,
        uses_snapshot: bool,
        clip_gradient: float | None = None,
    ) -> None:
        super().__init__(
            gradients,
            gather,
            counters,
            step,
            uses_snapshot=uses_snapshot,
            clip_gradient=clip_gradient,
        )
        self.processes = processes

    def _uniform(self, sample: Sample) -> Update:
        return self._weighted(self._with_equal_weights(sample))

    def _weighted(self, sample: Sample) -> Update:
        assert sample.weights is not None
        share = Sample(*self.processes.shard(sample.windows, sample.weights))
        return self.processes.reduce(super()._weighted(share))

    def _control_variate(
        self, sample: Sample, anchor: Tensors, coefficient: float
    ) -> Update:
        if sample.weights is None:
            sample = self._with_equal_weights(sample)
        assert sample.weights is not None
        windows, weights = self.processes.shard(sample.windows, sample.weights)
        share = self._zero_update()
        if len(windows):  # the first process always has a window, and adds the anchor
            share = self.gradients.control_variate_share(
                self.gather(windows),
                weights,
                self.snapshot,
                anchor if self.processes.is_first else None,
                coefficient,
            )
        return self.processes.reduce(share)

    def _with_equal_weights(self, sample: Sample) -> Sample:
        like, size = self.gradients.parameters[0].detach(), len(sample.windows)
        return Sample(sample.windows, like.new_full((size,), 1 / size))
