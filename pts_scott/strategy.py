"""Lightning's DDP strategy without the wrapper that reduces every backward pass.

An inner step has two passes and needs one reduction, of v. So the processes, their
environment and their launch are Lightning's, and the sum is `ProcessGroup`'s.
"""

from __future__ import annotations

import itertools

import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy


class SharedGradients(DDPStrategy):
    """``strategy="ddp"`` of a `ScottTrainer`."""

    def configure_ddp(self) -> None:
        """Begin with the parameters of the first process; wrap nothing."""
        assert self.model is not None
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)
