"""Buffers of a network: saved, compared and restored around a pass."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Buffers:
    """A copy of a module's buffers, to be restored.

    A module may write into a buffer, or replace it with another tensor.
    """

    def __init__(self, module: nn.Module) -> None:
        self._held = [
            (part, name, buffer, buffer.clone())
            for part in module.modules()
            for name, buffer in part._buffers.items()
            if buffer is not None
        ]

    def changed(self) -> bool:
        """Return whether a buffer was modified or replaced."""
        return any(
            not _equal(part._buffers.get(name), value)
            for part, name, _, value in self._held
        )

    def restore(self) -> None:
        """Restore the saved tensors and their values."""
        with torch.no_grad():
            for part, name, buffer, value in self._held:
                part._buffers[name] = buffer
                if not _equal(buffer, value):
                    buffer.copy_(value)


def _equal(left: Tensor | None, right: Tensor) -> bool:
    if left is None or left.shape != right.shape or left.layout != right.layout:
        return False
    if left.layout == torch.strided:
        return torch.equal(left, right)
    if left.layout == torch.sparse_coo:
        left, right = left.coalesce(), right.coalesce()
        parts = ((left.indices(), right.indices()), (left.values(), right.values()))
        return all(torch.equal(x, y) for x, y in parts)
    return torch.equal(left.to_dense(), right.to_dense())


def set_buffers(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Set the buffers of a module by name.

    A buffer whose shape has changed, or that does not exist yet, is registered again.
    """
    own = dict(module.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        for name, value in values.items():
            if name in own and own[name].shape == value.shape:
                own[name].copy_(value)
                continue
            place, _, last = name.rpartition(".")
            device = next(module.parameters()).device
            module.get_submodule(place).register_buffer(last, value.clone().to(device))
