"""Instances: windows with every field that a library's own model asks for.

The libraries cut their training examples out of entries that were prepared before: with
time features, ages, static and dynamic features, observed values. Here the prepared
entries lie in tensors, each piece of a series once, and what an instance splitter does
for one window at a time is a gather for a whole batch.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pts_scott.data.timeline import Timeline, frequency_of
from pts_scott.data.validation import Entry, name_of
from pts_scott.data.windows import Batch, GrowingArray, SeriesStore, WindowIndex
from pts_scott.errors import (
    DataError,
    EmptyDatasetError,
    ScottWarning,
    quote,
    shorten,
)


@dataclass(frozen=True)
class Layout:
    """What an instance splitter cuts out of an entry, and under which names.

    Parameters
    ----------
    past_length, future_length
        Steps before the split, and from the forecast start on.
    lead_time
        Steps between the split and the forecast start.
    target
        Name of the target.
    split
        Time series that become ``past_…`` and ``future_…``, the target among them.
    joined
        Time series of which past and future stay one piece, under their own name.
    past_only
        Time series of which the past is kept, under their own name.
    pad
        Name of the mark of padded steps.
    pad_dtype
        Its type; None for the target's.
    dummy_value
        What stands before the begin of a series.
    time_first
        Whether a piece is (steps, dimensions) or (dimensions, steps).
    """

    past_length: int
    future_length: int
    lead_time: int = 0
    target: str = "target"
    split: tuple[str, ...] = ("target",)
    joined: tuple[str, ...] = ()
    past_only: tuple[str, ...] = ()
    pad: str = "past_is_pad"
    pad_dtype: torch.dtype | None = None
    dummy_value: float = 0.0
    time_first: bool = True

    @property
    def time_fields(self) -> tuple[str, ...]:
        """Names of the entry's time series, each once."""
        return tuple(dict.fromkeys((*self.split, *self.joined, *self.past_only)))

    def pieces(self) -> dict[str, tuple[str, str]]:
        """For each name in an instance: which part of which time series it is."""
        found = {name: ("both", name) for name in self.joined}
        found |= {name: ("past", name) for name in self.past_only}
        for name in self.split:
            found[f"past_{name}"] = ("past", name)
            found[f"future_{name}"] = ("future", name)
        return found | {self.pad: ("pad", self.target)}


class Step(Protocol):
    """Something that a pipeline does to instances, done to a whole batch."""

    def needs(self, names: set[str]) -> set[str]:
        """Fields that must be there before, so that ``names`` are there after."""
        ...

    def __call__(self, batch: Batch) -> Batch:
        """The batch after the step."""
        ...


@dataclass(frozen=True)
class Sampling:
    """Which windows of a series a library's sampler may draw.

    Parameters
    ----------
    min_past, min_future
        Steps of the series before and after the split.
    last
        Whether it is always the last window.
    """

    min_past: int = 0
    min_future: int = 0
    last: bool = False


@dataclass(frozen=True)
class FieldStore:
    """The prepared entries of a dataset, field by field.

    Parameters
    ----------
    values
        Time series, of shape (rows,) or (rows, dimensions), one behind the other. A
        stretch that several series share, as time features are, is stored once.
    begins
        For each of them, the row at which each series begins.
    static
        Other fields, of shape (series, …).
    """

    values: dict[str, Tensor] = field(default_factory=dict)
    begins: dict[str, Tensor] = field(default_factory=dict)
    static: dict[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> FieldStore:
        """The same fields on another device."""
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
        What belongs to an instance.
    sampling
        Which windows there are. A window without any step before its split is left out:
        with nothing to scale it by, models borrow from the windows beside it.
    steps
        What is done to the instances afterwards.
    fields
        Names that batches have; None for all.
    """

    def __init__(
        self,
        series: SeriesStore,
        store: FieldStore,
        layout: Layout,
        sampling: Sampling,
        steps: Sequence[Step] = (),
        fields: Sequence[str] | None = None,
    ) -> None:
        self.series = series
        self.store = store
        self.layout = layout
        self.sampling = sampling
        self.steps = tuple(steps)
        self.context_length = layout.past_length
        self.prediction_length = layout.future_length
        self.stride = 1
        self.first = first_split(sampling) + layout.lead_time
        # The context ends at the split, ``lead_time`` steps before the forecast start.
        padded = first_split(sampling) < layout.past_length
        self.context = "padded" if padded else "full"
        self._pieces = layout.pieces() | {name: ("static", name) for name in store.static}
        self._fields = tuple(fields) if fields is not None else tuple(self._pieces)
        lengths = series.lengths
        room = lengths - self.first - (steps_after(layout, sampling) - layout.lead_time)
        self._finish(room + 1, torch.full_like(room, self.first))

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields in a batch."""
        return self._fields

    def _place(self) -> None:
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
        layout, lengths = self.layout, self.series.lengths
        after = steps_after(layout, self.sampling) - layout.lead_time
        last._finish(torch.ones_like(lengths), lengths - after)
        return last

    def contexts(self, windows: Tensor) -> Tensor:
        series, starts = self.locate(windows)
        steps = starts[:, None] + self._past_steps
        rows = self.series.begins[series][:, None] + steps.clamp(min=0)
        values = self.series.values[rows].nan_to_num(nan=0.0)
        pad = steps < 0
        return values.masked_fill(pad if values.ndim == 2 else pad[..., None], 0)

    def gather(self, windows: Tensor, fields: Sequence[str] | None = None) -> Batch:
        """The instances of some windows, as the library's splitter would make them.

        Parameters
        ----------
        windows
            Numbers of the windows, of shape (M,).
        fields
            Names to return; None for all.
        """
        names = tuple(fields) if fields is not None else self._fields
        needed = set(names)
        for step in reversed(self.steps):
            needed = step.needs(needed)
        cut = _Cut(self, windows)
        batch = {name: cut.piece(*self._pieces[name]) for name in sorted(needed)}
        for step in self.steps:
            batch = step(batch)
        return {name: batch[name] for name in names}


class _Cut:
    """Where the pieces of one batch lie."""

    def __init__(self, index: InstanceIndex, windows: Tensor) -> None:
        self._store, self._layout = index.store, index.layout
        self._series, starts = index.locate(windows)
        self._past = starts[:, None] + index._past_steps
        self._future = starts[:, None] + index._future_steps
        self._padded = index.context == "padded"

    def piece(self, part: str, name: str) -> Tensor:
        """One field of the batch."""
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
        pad = self._past < 0
        mask = pad if values.ndim == 2 else pad[..., None]
        return values.masked_fill(mask, self._layout.dummy_value)


class PipelineIndex(InstanceIndex):
    """Windows whose instances the library's own pipeline makes, one by one.

    For splitters that are not known here: right, and as slow as the library is.

    Parameters
    ----------
    series, layout, sampling, fields
        As for `InstanceIndex`; of the layout, lengths and lead time are used.
    entries
        The prepared entries.
    instance
        From an entry and the step of its split to the instance.
    """

    compiles = False

    def __init__(
        self,
        series: SeriesStore,
        layout: Layout,
        sampling: Sampling,
        fields: Sequence[str] | None,
        entries: Sequence[Entry],
        instance: Callable[[Entry, int], Entry],
    ) -> None:
        super().__init__(series, FieldStore(), layout, sampling, fields=fields)
        self._entries = entries
        self._instance = instance
        if fields is None:
            self._fields = tuple(self._tensors(self._made(0, self.first)))

    def _made(self, series: int, start: int) -> Entry:
        split = start - self.layout.lead_time
        return self._instance(self._entries[series], split)

    def _tensors(self, instance: Entry) -> dict[str, np.ndarray]:
        arrays = {name: np.asarray(value) for name, value in instance.items()}
        return {name: a for name, a in arrays.items() if a.dtype.kind in "fiub"}

    def gather(self, windows: Tensor, fields: Sequence[str] | None = None) -> Batch:
        names = tuple(fields) if fields is not None else self._fields
        places = zip(*(x.tolist() for x in self.locate(windows)), strict=True)
        instances = [self._made(series, start) for series, start in places]
        return {
            name: torch.as_tensor(np.array([x[name] for x in instances])).to(self.device)
            for name in names
        }


def first_split(sampling: Sampling) -> int:
    """The first step of a series at which it may be split."""
    return max(sampling.min_past, 1)


def steps_after(layout: Layout, sampling: Sampling) -> int:
    """Steps of a series that a window needs from its split on."""
    return max(sampling.min_future, layout.lead_time + layout.future_length)


def read_entries(
    entries: Iterable[Entry],
    layout: Layout,
    sampling: Sampling,
    static: Sequence[str],
    keep: bool = False,
) -> tuple[SeriesStore, FieldStore, list[Entry]]:
    """Read prepared entries, once and in their order.

    Series that are too short for a window are left out, as the libraries do, and named
    in a warning.

    Parameters
    ----------
    entries
        With ``start``, the layout's time series and the static fields.
    layout, sampling
        What a window needs.
    static
        Names of fields without time.
    keep
        Return the entries, too.
    """
    need = first_split(sampling) + steps_after(layout, sampling)
    columns = {name: _Column(shared=name != layout.target) for name in layout.time_fields}
    statics: dict[str, list[np.ndarray]] = {name: [] for name in static}
    starts, lengths, item_ids, short, kept = [], [], [], [], []
    for position, entry in enumerate(entries):
        item_id = name_of(entry, position)
        target = _array(entry, layout.target, item_id)
        if target.shape[-1] < need:
            short.append(item_id)
            continue
        for name, column in columns.items():
            array = _array(entry, name, item_id)
            if array.ndim == 0 or array.shape[-1] < target.shape[-1]:
                raise DataError(
                    f"{name!r} of series {quote(item_id)} has shape {array.shape}, and "
                    f"the target {target.shape[-1]} steps; a time series feature needs a "
                    "value for each of them."
                )
            column.append(array, item_id, name)
        for name, rows in statics.items():
            rows.append(_array(entry, name, item_id))
        starts.append(entry["start"])
        lengths.append(target.shape[-1])
        item_ids.append(item_id)
        if keep:
            kept.append(entry)
    if short:
        warnings.warn(
            f"{len(short)} of {len(short) + len(item_ids)} series are shorter than "
            f"{need} steps and are left out: {shorten(short)}.",
            ScottWarning,
            stacklevel=2,
        )
    if not item_ids:
        raise EmptyDatasetError(
            f"no series has the {need} steps of a window; take longer series, or shorten "
            "the prediction range."
            if short
            else "the dataset has no series; a generator that was read before is empty: "
            "pass a list or a GluonTS dataset."
        )
    timeline = Timeline.build(starts, lengths, frequency_of(starts[0]), item_ids)
    values = {name: column.tensor() for name, column in columns.items()}
    begins = {name: torch.tensor(column.begins) for name, column in columns.items()}
    series = SeriesStore(
        values[layout.target],
        begins[layout.target],
        torch.tensor(lengths),
        tuple(item_ids),
        timeline,
        False,
        values[layout.target].dtype,
    ).checked()
    stacked = {name: _stack(name, rows, item_ids) for name, rows in statics.items()}
    return series, FieldStore(values, begins, stacked), kept


def _stack(name: str, rows: list[np.ndarray], item_ids: Sequence[str]) -> Tensor:
    for row, item_id in zip(rows, item_ids, strict=True):
        if row.shape != rows[0].shape:
            raise DataError(
                f"{name!r} of series {quote(item_id)} has shape {row.shape}, and that of "
                f"{quote(item_ids[0])} {rows[0].shape}; all need the same."
            )
    return torch.as_tensor(np.array(rows))


class _Column:
    """One time series field of all entries."""

    def __init__(self, shared: bool) -> None:
        self._values: GrowingArray | None = None
        self._seen: dict[bytes, int] | None = {} if shared else None
        self._rows = 0
        self.begins: list[int] = []

    def append(self, array: np.ndarray, item_id: str, name: str) -> None:
        rows = np.ascontiguousarray(array if array.ndim == 1 else array.T)
        if self._values is None:
            self._values = GrowingArray(torch.as_tensor(rows[:0]).dtype)
        if self._values.shape not in (None, rows.shape[1:]) or rows.ndim > 2:
            raise DataError(
                f"{name!r} of series {quote(item_id)} has shape {array.shape}, unlike "
                "that of the series before; all need the same dimensions."
            )
        self._values.widen(rows.dtype)
        if self._seen is not None:
            key = hashlib.blake2b(rows.data, digest_size=16).digest()
            key += len(rows).to_bytes(8, "little") + rows.dtype.char.encode()
            begin = self._seen.setdefault(key, self._rows)
            if begin != self._rows:
                self.begins.append(begin)
                return
        self.begins.append(self._rows)
        self._values.append(rows)
        self._rows += len(rows)

    def tensor(self) -> Tensor:
        assert self._values is not None
        return self._values.tensor()


def _array(entry: Entry, name: str, item_id: str) -> np.ndarray:
    try:
        return np.asarray(entry[name])
    except KeyError:
        raise DataError(
            f"series {quote(item_id)} has no field {name!r}, which the model asks for; "
            f"it has {', '.join(sorted(entry))}."
        ) from None
