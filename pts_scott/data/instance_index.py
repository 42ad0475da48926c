"""Instances: windows with all fields that a library's own model needs.

The libraries cut training examples out of prepared entries: with time features, ages,
static and dynamic features, observed values. Here the prepared entries are tensors that
store shared values once, and what an instance splitter does for one window at a time is
a gather for a whole batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pts_scott.data.instance_layout import (
    BatchTransform,
    Layout,
    Sampling,
    required_fields,
)
from pts_scott.data.series_store import SeriesStore
from pts_scott.data.validation import Entry
from pts_scott.data.window_index import Batch, WindowIndex, mask_like


@dataclass(frozen=True)
class FieldStore:
    """The prepared entries of a dataset, field by field.

    Parameters
    ----------
    values
        Time series, of shape (rows,) or (rows, dimensions), one after the other. Values
        that several series share, such as time features, are stored once.
    begins
        For each time series field, the first row of each series.
    static
        Other fields, of shape (series, …).
    """

    values: dict[str, Tensor] = field(default_factory=dict)
    begins: dict[str, Tensor] = field(default_factory=dict)
    static: dict[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> FieldStore:
        """Return the same fields on another device."""
        return FieldStore(
            *(
                {name: tensor.to(device) for name, tensor in part.items()}
                for part in (self.values, self.begins, self.static)
            )
        )


class InstanceIndex(WindowIndex):
    """The windows of prepared series, with all fields of a library's instances.

    Parameters
    ----------
    series
        Targets and timeline of the series.
    store
        All fields that instances are made of.
    layout
        Which parts of the fields belong to an instance.
    sampling
        Which windows there are. Windows without a step before the split are excluded:
        with nothing to scale them by, models use the other windows of the batch.
    transforms
        Transformations of the instances.
    fields
        Fields of a batch; None for all.
    """

    def __init__(
        self,
        series: SeriesStore,
        store: FieldStore,
        layout: Layout,
        sampling: Sampling,
        transforms: Sequence[BatchTransform] = (),
        fields: Sequence[str] | None = None,
    ) -> None:
        self.series = series
        self.store = store
        self.layout = layout
        self.sampling = sampling
        self.transforms = tuple(transforms)
        self.context_length = layout.past_length
        self.prediction_length = layout.future_length
        self.stride, self.lead_time = 1, layout.lead_time
        self.first = sampling.first_split + layout.lead_time
        # The context ends at the split, ``lead_time`` steps before the forecast start.
        padded = sampling.first_split < layout.past_length
        self.context = "padded" if padded else "full"
        self._pieces = layout.pieces() | {name: ("static", name) for name in store.static}
        self._fields = tuple(fields) if fields is not None else tuple(self._pieces)
        room = series.lengths - self.first - self._steps_after_start()
        self._set_windows(room + 1, torch.full_like(room, self.first))

    def _steps_after_start(self) -> int:
        """Return how many steps a window needs from its forecast start on."""
        return self.sampling.steps_after_split(self.layout) - self.layout.lead_time

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields in a batch."""
        return self._fields

    def _set_constants(self) -> None:
        layout, device = self.layout, self.series.values.device
        past = torch.arange(-layout.past_length, 0) - layout.lead_time
        self._past_steps = past.to(device)
        self._future_steps = torch.arange(layout.future_length).to(device)

    def to(self, device: torch.device | str) -> InstanceIndex:
        moved = super().to(device)
        assert isinstance(moved, InstanceIndex)
        moved.store = self.store.to(device)
        return moved

    def last(self) -> InstanceIndex:
        last = copy.copy(self)
        lengths = self.series.lengths
        last._set_windows(torch.ones_like(lengths), lengths - self._steps_after_start())
        return last

    def from_starts(self, firsts: Tensor, stride: int) -> InstanceIndex:
        """Return the windows from a forecast start of each series on.

        Parameters
        ----------
        firsts
            The first forecast start of each series, as a step of it.
        stride
            Steps between the forecast starts of neighbouring windows.
        """
        fewer = copy.copy(self)
        fewer.stride = stride
        firsts = firsts.clamp(min=self.first)
        room = self.series.lengths - firsts - self._steps_after_start()
        counts = room.div(stride, rounding_mode="floor") + 1
        fewer._set_windows(counts.clamp(min=0), firsts)
        return fewer

    def contexts(self, windows: Tensor) -> Tensor:
        series, starts = self.locate(windows)
        steps = starts[:, None] + self._past_steps
        rows = self.series.begins[series][:, None] + steps.clamp(min=0)
        values = self.series.values[rows].nan_to_num(nan=0.0)
        return values.masked_fill(mask_like(steps < 0, values), 0)

    def gather(self, windows: Tensor, fields: Sequence[str] | None = None) -> Batch:
        """Return the instances of some windows, as the library's splitter makes them.

        Parameters
        ----------
        windows
            Numbers of the windows, of shape (M,).
        fields
            Names to return; None for all.
        """
        names = tuple(fields) if fields is not None else self._fields
        required = required_fields(names, self.transforms)
        cutter = _Cutter(self, windows)
        batch = {name: cutter.cut(*self._pieces[name]) for name in sorted(required)}
        for transform in self.transforms:
            batch = transform(batch)
        return {name: batch[name] for name in names}


class _Cutter:
    """Cuts the pieces of one batch out of the fields."""

    def __init__(self, index: InstanceIndex, windows: Tensor) -> None:
        self._store, self._layout = index.store, index.layout
        self._series, starts = index.locate(windows)
        self._past = starts[:, None] + index._past_steps
        self._future = starts[:, None] + index._future_steps
        self._padded = index.context == "padded"

    def cut(self, part: str, name: str) -> Tensor:
        """Return one part of one field for all windows of the batch."""
        if part == "static":
            return self._store.static[name][self._series]
        if part == "pad":
            like = self._layout.pad_dtype or self._store.values[name].dtype
            return (self._past < 0).to(like)
        if part == "past":
            values = self._past_values(name)
        elif part == "future":
            values = self._values(name, self._future)
        else:
            future = self._values(name, self._future)
            values = torch.cat([self._past_values(name), future], dim=1)
        if values.ndim == 3 and not self._layout.time_first:
            values = values.transpose(1, 2)
        return values

    def _values(self, name: str, steps: Tensor) -> Tensor:
        begins = self._store.begins[name][self._series]
        return self._store.values[name][begins[:, None] + steps]

    def _past_values(self, name: str) -> Tensor:
        if not self._padded:
            return self._values(name, self._past)
        values = self._values(name, self._past.clamp(min=0))
        pad = mask_like(self._past < 0, values)
        return values.masked_fill(pad, self._layout.dummy_value)


class PipelineIndex(InstanceIndex):
    """Windows whose instances the library's own pipeline creates one by one.

    For splitters that are not supported natively: correct, but as slow as the library.

    Parameters
    ----------
    series, layout, sampling, fields
        As for `InstanceIndex`; only the lengths and lead time of the layout are used.
    entries
        The prepared entries.
    make_instance
        Function from an entry and the step of its split to the instance.
    """

    compiles = False

    def __init__(
        self,
        series: SeriesStore,
        layout: Layout,
        sampling: Sampling,
        fields: Sequence[str] | None,
        entries: Sequence[Entry],
        make_instance: Callable[[Entry, int], Entry],
    ) -> None:
        super().__init__(series, FieldStore(), layout, sampling, fields=fields)
        self._entries = entries
        self._make_instance = make_instance
        if fields is None:
            self._fields = _numeric_fields(self._instance(0, self.first))

    def _instance(self, series: int, start: int) -> Entry:
        split = start - self.layout.lead_time
        return self._make_instance(self._entries[series], split)

    def gather(self, windows: Tensor, fields: Sequence[str] | None = None) -> Batch:
        names = tuple(fields) if fields is not None else self._fields
        places = zip(*(x.tolist() for x in self.locate(windows)), strict=True)
        instances = [self._instance(series, start) for series, start in places]
        return {
            name: torch.as_tensor(np.array([x[name] for x in instances])).to(self.device)
            for name in names
        }


def _numeric_fields(instance: Entry) -> tuple[str, ...]:
    arrays = {name: np.asarray(value) for name, value in instance.items()}
    return tuple(name for name, values in arrays.items() if values.dtype.kind in "fiub")
