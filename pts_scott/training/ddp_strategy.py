"""Lightning's DDP strategy without the wrapper that reduces every backward pass.

An inner step has two passes and needs one all-reduce, of v. So the processes, their
environment and their launch are Lightning's, and the sum is `ProcessGroup`'s.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy


def is_distributed(strategy: Any) -> bool:
    """Return whether a user's ``strategy`` means several processes."""
    return strategy == "ddp" or type(strategy) is DDPStrategy


class SharedGradients(DDPStrategy):
    """``strategy="ddp"`` of a `ScottTrainer`."""

    @classmethod
    def like(cls, strategy: Any) -> SharedGradients:
        """Make one with the timeout and the process group backend of a given one."""
        if not isinstance(strategy, DDPStrategy):
            return cls()
        return cls(
            timeout=strategy._timeout,
            process_group_backend=strategy._process_group_backend,
        )

    def configure_ddp(self) -> None:
        """Begin with the parameters of the first process; wrap nothing."""
        assert self.model is not None
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)
