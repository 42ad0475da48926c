"""GluonTS' transformations of instances that are supported on whole batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from gluonts.transform import RenameFields, Transformation
from torch import Tensor

from pts_scott.data.instance_layout import BatchTransform
from pts_scott.data.window_index import Batch


def batch_transform(transformation: Transformation) -> BatchTransform | None:
    """Return the same transformation for whole batches; None if it is not supported."""
    if type(transformation) is RenameFields:
        return _Rename(dict(transformation.mapping))
    if type(transformation).__name__ == "QuantizeMeanScaled":
        return _Quantize(transformation)
    return None


@dataclass(frozen=True)
class _Rename:
    """GluonTS' RenameFields."""

    mapping: dict[str, str]

    def needs(self, names: set[str]) -> set[str]:
        old = {new: name for name, new in self.mapping.items()}
        return {old.get(name, name) for name in names}

    def __call__(self, batch: Batch) -> Batch:
        return {self.mapping.get(name, name): value for name, value in batch.items()}


class _Quantize:
    """GluonTS' QuantizeMeanScaled, which quantizes WaveNet's target."""

    def __init__(self, transformation: Any) -> None:
        self._edges = torch.as_tensor(transformation.bin_edges)
        self._placed: dict[torch.device, Tensor] = {}
        self._past = transformation.past_target_field
        self._future = transformation.future_target_field
        self._observed = transformation.past_observed_values_field
        self._scale = transformation.scale_field

    def needs(self, names: set[str]) -> set[str]:
        return (names - {self._scale}) | {self._past, self._future, self._observed}

    def __call__(self, batch: Batch) -> Batch:
        past, observed = batch[self._past], batch[self._observed]
        mean = (past.abs() * observed).sum(1) / observed.sum(1)
        scale = torch.where(mean > 0, mean, 1.0)[:, None]
        return batch | {
            self._past: self._bins(past / scale),
            self._future: self._bins(batch[self._future] / scale),
            self._scale: scale,
        }

    def _bins(self, values: Tensor) -> Tensor:
        # Like numpy.digitize, which compares in the precision of the edges.
        edges = self._edges_on(values.device)
        return torch.bucketize(values.to(edges.dtype), edges, right=True)

    def _edges_on(self, device: torch.device) -> Tensor:
        """Return the edges on a device, copied there once: a copy waits for it."""
        if device.type == "cpu":
            return self._edges
        if device not in self._placed:
            single = device.type == "mps"  # it has no double precision
            self._placed[device] = (self._edges.float() if single else self._edges).to(
                device
            )
        return self._placed[device]
