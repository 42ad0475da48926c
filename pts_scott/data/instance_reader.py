"""Reading prepared entries into the tensors that an instance index gathers from."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from pts_scott._utils.text import quote, shorten
from pts_scott.data.given_features import KEY, collected
from pts_scott.data.instance_index import FieldStore
from pts_scott.data.instance_layout import Layout, Sampling
from pts_scott.data.offsets import frequency_of
from pts_scott.data.series_store import GrowingArray, SeriesStore
from pts_scott.data.timeline import Timeline
from pts_scott.data.validation import Entry, name_of, no_series_error
from pts_scott.errors import DataError, EmptyDatasetError, ScottWarning


def read_instances(
    entries: Iterable[Entry],
    layout: Layout,
    sampling: Sampling,
    static: Sequence[str],
    keep: bool = False,
) -> tuple[SeriesStore, FieldStore, list[Entry]]:
    """Read prepared entries, once and in their order.

    Series that are too short for a window are left out, as in the libraries, and named
    in a warning.

    Parameters
    ----------
    entries
        Entries with ``start``, the layout's time series and the static fields.
    layout, sampling
        What a window needs.
    static
        Names of fields without a time dimension.
    keep
        Whether to return the entries as well.
    """
    need = sampling.first_split + sampling.steps_after_split(layout)
    columns = {name: _Column(shared=name != layout.target) for name in layout.time_fields}
    statics: dict[str, list[np.ndarray]] = {name: [] for name in static}
    starts, lengths, item_ids, short, features = [], [], [], [], []
    kept: list[Entry] = []
    for position, entry in enumerate(entries):
        item_id = name_of(entry, position)
        length = _array(entry, layout.target, item_id).shape[-1]
        if length < need:
            short.append(item_id)
            continue
        for name, column in columns.items():
            array = _array(entry, name, item_id)
            _check_steps(array, length, name, item_id)
            column.append(array, item_id, name)
        for name, rows in statics.items():
            rows.append(_array(entry, name, item_id))
        starts.append(entry["start"])
        lengths.append(length)
        item_ids.append(item_id)
        features.append(entry.get(KEY, {}))
        if keep:
            kept.append({k: v for k, v in entry.items() if k != KEY})
    if short:
        warnings.warn(
            f"{len(short)} of {len(short) + len(item_ids)} series are shorter than "
            f"{need} steps and are left out: {shorten(short)}.",
            ScottWarning,
            stacklevel=2,
        )
    if not item_ids:
        raise _too_short_error(need) if short else no_series_error()
    timeline = Timeline.build(starts, lengths, frequency_of(starts[0]), item_ids)
    values = {name: column.tensor() for name, column in columns.items()}
    begins = {name: torch.tensor(column.begins) for name, column in columns.items()}
    series = SeriesStore(
        values[layout.target],
        begins[layout.target],
        torch.tensor(lengths),
        tuple(item_ids),
        timeline,
        missing=False,
        dtype=values[layout.target].dtype,
        features=collected(features),
    ).checked()
    stacked = {name: _stack(name, rows, item_ids) for name, rows in statics.items()}
    return series, FieldStore(values, begins, stacked), kept


def _array(entry: Entry, name: str, item_id: str) -> np.ndarray:
    try:
        return np.asarray(entry[name])
    except KeyError:
        raise DataError(
            f"series {quote(item_id)} has no field {name!r}, which the model needs; "
            f"it has {', '.join(sorted(entry))}."
        ) from None


def _check_steps(values: np.ndarray, length: int, name: str, item_id: str) -> None:
    if values.ndim == 0 or values.shape[-1] < length:
        raise DataError(
            f"{name!r} of series {quote(item_id)} has shape {values.shape}, but the "
            f"target has {length} steps; a time series feature needs one value per step."
        )


def _too_short_error(need: int) -> EmptyDatasetError:
    return EmptyDatasetError(
        f"no series has the {need} steps of a window; use longer series, or shorten "
        "the prediction range."
    )


def _stack(name: str, rows: list[np.ndarray], item_ids: Sequence[str]) -> Tensor:
    for row, item_id in zip(rows, item_ids, strict=True):
        if row.shape != rows[0].shape:
            raise DataError(
                f"{name!r} of series {quote(item_id)} has shape {row.shape}, but that of "
                f"{quote(item_ids[0])} has {rows[0].shape}; all series need the same."
            )
    return torch.as_tensor(np.array(rows))


class _Column:
    """One time series field of all entries, with equal arrays stored once if shared."""

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
                "that of the previous series; all need the same dimensions."
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
