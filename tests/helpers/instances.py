"""Instances as GluonTS' own transformations make them, to compare batches with."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gluonts.transform import Chain, InstanceSampler, InstanceSplitter

from pts_scott.data.instance_index import FieldStore, InstanceIndex


class EveryWindow(InstanceSampler):
    """All forecast starts of a series, as GluonTS' samplers return them."""

    stride: int = 1

    def __call__(self, ts: np.ndarray) -> np.ndarray:
        first, last = self._get_bounds(ts)
        return np.arange(first, last + 1, self.stride)


def splitter(context_length: int, prediction_length: int, stride=1, context="full"):
    return InstanceSplitter(
        target_field="target",
        is_pad_field="is_pad",
        start_field="start",
        forecast_start_field="forecast_start",
        instance_sampler=EveryWindow(
            min_past=context_length if context == "full" else 1,
            min_future=prediction_length,
            stride=stride,
        ),
        past_length=context_length,
        future_length=prediction_length,
        time_series_fields=["observed_values"],
    )


class SplitAt:
    """A sampler that always splits at the same step."""

    def __init__(self, split):
        self.split = split

    def __call__(self, target):
        return np.array([self.split])


def library_batch(chain: Chain, data: list[dict], splits: list[tuple[int, int]]):
    """Return the same windows by the library's own transformations."""
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
    """Return the series and the step of the split of each window."""
    series, starts = windows.locate(torch.arange(len(windows)))
    lead = windows.layout.lead_time
    return [(int(i), int(s) - lead) for i, s in zip(series, starts)]


def in_double_precision(windows: Any) -> Any:
    """Return the same windows in double precision."""

    def double(tensors):
        return {k: t.double() if t.is_floating_point() else t for k, t in tensors.items()}

    other = copy.copy(windows)
    store = windows.store
    other.store = FieldStore(double(store.values), store.begins, double(store.static))
    values = windows.series.values.double()
    other.series = replace(windows.series, values=values, dtype=torch.float64)
    return other
