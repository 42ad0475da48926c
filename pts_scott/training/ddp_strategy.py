"""Lightning's DDP strategy without the wrapper that reduces every backward pass.

An inner step has two passes and needs one all-reduce, of v. So the processes, their
environment and their launch are Lightning's, and the sum is `ProcessGroup`'s.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from pts_scott.engine.processes import broadcast
from pts_scott.errors import ArgumentError

#: torch's hooks that compress gradients before they are sent, and the type they use.
COMPRESSION: dict[Any, torch.dtype] = {
    default_hooks.bf16_compress_hook: torch.bfloat16,
    default_hooks.fp16_compress_hook: torch.float16,
}


def is_distributed(strategy: Any) -> bool:
    """Return whether a user's ``strategy`` means several processes."""
    return strategy == "ddp" or type(strategy) is DDPStrategy


class SharedGradients(DDPStrategy):
    """``strategy="ddp"`` of a `ScottTrainer`."""

    #: Type in which directions are sent between processes; None for their own.
    reduced_dtype: torch.dtype | None = None

    @classmethod
    def like(cls, strategy: Any) -> SharedGradients:
        """Make one with the timeout, backend and compression of a given one.

        Raises
        ------
        ArgumentError
            If it has a communication hook other than torch's compression hooks.
        """
        if not isinstance(strategy, DDPStrategy):
            return cls()
        hook = strategy._ddp_comm_hook
        if hook is not None and hook not in COMPRESSION:
            name = getattr(hook, "__name__", hook)
            raise ArgumentError(
                f"DDPStrategy(ddp_comm_hook={name}): gradients are reduced by "
                "ScottTrainer itself, which knows bf16_compress_hook and "
                "fp16_compress_hook; leave it out, or use one of these."
            )
        made = cls(
            timeout=strategy._timeout,
            process_group_backend=strategy._process_group_backend,
        )
        made.reduced_dtype = None if hook is None else COMPRESSION[hook]
        return made

    def configure_ddp(self) -> None:
        """Begin with the parameters of the first process; wrap nothing."""
        assert self.model is not None
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        for tensor in tensors:
            broadcast(tensor.detach())
