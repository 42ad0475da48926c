"""Windows by the library's own transformations, to compare gathered instances with."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gluonts.transform import Chain

from pts_scott.data.instances import FieldStore, InstanceIndex


class SplitAt:
    """A sampler that splits each series at one given step."""

    def __init__(self, split):
        self.split = split

    def __call__(self, target):
        return np.array([self.split])


def library_batch(chain: Chain, data: list[dict], splits: list[tuple[int, int]]):
    """Return a batch of windows by the library's own transformations."""
    rows = []
    for series, split in splits:
        parts = [copy.copy(part) for part in chain.transformations]
        for part in parts:
            if hasattr(part, "instance_sampler"):
                part.instance_sampler = SplitAt(split)
        (row,) = Chain(parts)([dict(data[series])], is_train=True)
        rows.append(row)
    return {name: torch.as_tensor(np.array([r[name] for r in rows])) for name in rows[0]}


def splits_of(windows: InstanceIndex) -> list[tuple[int, int]]:
    """Return series and split of each window, as an instance splitter has them."""
    series, starts = windows.locate(torch.arange(len(windows)))
    lead = windows.layout.lead_time
    return [(int(i), int(s) - lead) for i, s in zip(series, starts)]


def in_double_precision(windows: Any) -> Any:
    """Return the same windows in double precision."""

    def to_double(tensors):
        return {k: t.double() if t.is_floating_point() else t for k, t in tensors.items()}

    other = copy.copy(windows)
    store = windows.store
    other.store = FieldStore(
        to_double(store.values), store.begins, to_double(store.static)
    )
    values = windows.series.values.double()
    other.series = replace(windows.series, values=values, dtype=torch.float64)
    return other
