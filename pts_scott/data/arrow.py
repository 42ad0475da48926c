"""Series in an Arrow file, mapped into memory instead of read.

For datasets that do not fit in memory: the whole file is one tensor of numbers, a window
is gathered from the rows of its series, and the operating system loads the pages that are
used.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gluonts.dataset.common import ProcessDataEntry

from pts_scott._utils.text import cause, one_line, quote, shorten
from pts_scott.data.given_features import FEATURES
from pts_scott.data.offsets import frequency_of, parse_offset
from pts_scott.data.series_store import SeriesStore
from pts_scott.data.timeline import Timeline
from pts_scott.data.validation import entries_of, read_field
from pts_scott.errors import (
    ArgumentError,
    DataError,
    EmptyDatasetError,
    FileLayoutError,
    ScottError,
    ScottWarning,
)

if TYPE_CHECKING:
    import pyarrow

MAGIC = b"ARROW1"  # of the random access format
STREAM = b"\xff\xff\xff\xff"  # begins each message of a stream
END_OF_STREAM = STREAM + bytes(4)  # a message of length zero


class ArrowDataset:
    """A GluonTS dataset in an Arrow file that is mapped into memory, not read.

    Entries have ``item_id``, ``start`` and ``target``; other columns are ignored.

    Parameters
    ----------
    path
        An uncompressed file, in Arrow's random access format, as GluonTS' ``ArrowWriter``
        writes it, or a stream, as Hugging Face's ``datasets`` does. It has columns
        ``target`` (lists of float32 or float64), ``start``, and ``item_id`` if series
        have names.
    freq
        Frequency of the series, as a pandas alias; None for that of a column ``freq``.

    Raises
    ------
    ArgumentError
        If pyarrow is not installed.
    DataError
        If the file cannot be mapped, with the reason and what to do.
    """

    def __init__(self, path: str | Path, freq: str | None = None) -> None:
        self.path = Path(path)
        if freq is not None:
            parse_offset(freq)
        # The buffer covers the file, and columns are views of it: the address of a column
        # gives its position in the file.
        self._buffer, self._schema, self._batches = map_batches(self.path)
        with explained(self.path):
            self._check_columns()
            self.freq = freq if freq is not None else self._own_freq()
        parse_offset(self.freq)

    def __reduce__(self) -> Any:
        return type(self), (self.path, self.freq)

    def _check_columns(self) -> None:
        check_columns(self.path, self._schema.names)
        self._type = self._value_type()
        if getattr(self._schema.field("start").type, "tz", None) is not None:
            raise DataError(
                f"{self.path.name} has starts with a time zone; write them without one, "
                "in the local time whose calendar the model should see."
            )
        for batch in self._batches:
            targets = batch.column("target")
            self._row(targets.values)
            if targets.null_count or targets.values.null_count:
                raise DataError(
                    f"{self.path.name} has nulls in its targets; write missing values as "
                    "NaN, or pass list(dataset) to read it into memory."
                )

    def _value_type(self) -> np.dtype[Any]:
        arrow = require_pyarrow()
        kind = self._schema.field("target").type
        lists = arrow.types.is_list(kind) or arrow.types.is_large_list(kind)
        if "target._np_shape" in self._schema.names or not lists:
            raise DataError(
                f"{self.path.name} has targets of type {kind} with more than one "
                "dimension or none; only univariate series can be mapped: pass "
                "list(dataset) to read it into memory."
            )
        if kind.value_type not in (arrow.float32(), arrow.float64()):
            raise DataError(
                f"{self.path.name} has targets of type {kind.value_type}; write them as "
                "float32 or float64."
            )
        return np.dtype(kind.value_type.to_pandas_dtype())

    def _own_freq(self) -> str:
        """Return the frequency that all series have in the file."""
        found: set[Any] = set()
        if "freq" in self._schema.names:
            for batch in self._batches:
                found.update(batch.column("freq").unique().to_pylist())
        if len(found) != 1 or None in found:
            shown = shorten(sorted(map(str, found))) if found else "none"
            raise DataError(
                f"{self.path.name} has no single frequency in a column 'freq' (it has "
                f"{shown}); pass freq=, e.g. freq='h'."
            )
        return str(found.pop())

    def __len__(self) -> int:
        """Return the number of series."""
        return sum(batch.num_rows for batch in self._batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterate over the entries, as GluonTS' predictors and evaluation expect them."""
        process = ProcessDataEntry(self.freq)
        position = 0
        for batch in self._batches:
            targets, ids = batch.column("target"), self._item_ids(batch, position)
            for row, start in enumerate(self._starts(batch)):
                target = targets[row].values.to_numpy(zero_copy_only=False)
                yield process({"item_id": ids[row], "start": start, "target": target})
            position += batch.num_rows

    def _starts(self, batch: pyarrow.RecordBatch) -> Iterator[Any]:
        """Iterate over the starts as GluonTS reads them; many series share one."""
        process = ProcessDataEntry(self.freq)
        seen: dict[Any, Any] = {}
        for start in batch.column("start").to_pandas():
            try:
                if start not in seen:
                    seen[start] = process({"start": start, "target": [0.0]})["start"]
            except Exception as error:  # pandas raises many types for invalid dates
                raise DataError(
                    f"{self.path.name} has a start {quote(start)}, which is not a date "
                    f"({cause(error)}); write it as 2024-01-31 or 2024-01-31 13:00."
                ) from error
            yield seen[start]

    def _item_ids(self, batch: pyarrow.RecordBatch, position: int) -> list[str]:
        if "item_id" not in batch.schema.names:
            return [str(position + row) for row in range(batch.num_rows)]
        names = batch.column("item_id").to_pylist()
        return [
            str(position + row if name is None else name)
            for row, name in enumerate(names)
        ]

    def series_store(self, freq: Any, dtype: torch.dtype) -> SeriesStore:
        """Return the series as views of the file, for the window index."""
        begins: list[np.ndarray] = []
        lengths: list[np.ndarray] = []
        starts: list[Any] = []
        item_ids: list[str] = []
        for batch in self._batches:
            targets = batch.column("target")
            offsets = targets.offsets.to_numpy()
            begins.append(self._row(targets.values) + offsets[:-1].astype(np.int64))
            lengths.append(np.diff(offsets).astype(np.int64))
            starts.extend(self._starts(batch))
            item_ids.extend(self._item_ids(batch, len(item_ids)))
        if not item_ids:
            raise EmptyDatasetError(f"{self.path.name} has no series.")
        steps = np.concatenate(lengths)
        values = torch.from_file(
            str(self.path),
            shared=False,
            size=self._buffer.size // self._type.itemsize,
            dtype=getattr(torch, self._type.name),
        )
        return SeriesStore(
            values,
            torch.from_numpy(np.concatenate(begins)),
            torch.from_numpy(steps),
            tuple(item_ids),
            Timeline.build(starts, steps.tolist(), freq, item_ids),
            missing=False,
            dtype=dtype,
            unread=tuple(name for name in FEATURES if name in self._schema.names),
        ).checked()

    def _row(self, values: pyarrow.Array) -> int:
        """Return the first row of a batch's values in the file as a tensor."""
        if len(values) == 0:  # a batch of empty series, or of none
            return 0
        place = values.buffers()[1].address - self._buffer.address
        if not 0 <= place < self._buffer.size:
            raise DataError(
                f"{self.path.name} is compressed, so it cannot be mapped; write it with "
                "compression=None, or pass list(dataset) to read it into memory."
            )
        if place % self._type.itemsize:
            raise DataError(
                f"{self.path.name} has targets that are not aligned, so it cannot be "
                "mapped; write it with pyarrow, or read it with pts_scott.load."
            )
        return int(place) // self._type.itemsize + int(values.offset)


def map_if_arrow(dataset: Any, freq: str) -> Any:
    """Return one of GluonTS' Arrow datasets as a mapped one, any other unchanged."""
    file = dataset
    processed = isinstance(getattr(dataset, "fn", None), ProcessDataEntry)
    if processed:
        file = dataset.iterable  # GluonTS' FileDataset: processed entries of a file
    kind = type(file)
    if kind.__module__ != "gluonts.dataset.arrow.file" or kind.__name__ not in (
        "ArrowFile",
        "ArrowStreamFile",
    ):
        return dataset
    if processed and not _has_frequency(dataset, freq):
        return dataset
    if getattr(file, "_start", 0) or getattr(file, "_take", None) is not None:  # a part
        return dataset
    try:
        return ArrowDataset(file.path, freq)
    except DataError:  # compressed, multivariate, …: read it as GluonTS does
        return dataset


def _has_frequency(dataset: Any, freq: str) -> bool:
    """Return whether the first entry has this frequency; if not, reading raises."""
    first = next(entries_of(dataset), None)
    return first is None or frequency_of(read_field(first, "start", "0")) == frequency_of(
        ProcessDataEntry(freq)({"start": "2000-01-01", "target": [0.0]})["start"]
    )


def map_batches(
    path: Path,
) -> tuple[pyarrow.Buffer, pyarrow.Schema, list[pyarrow.RecordBatch]]:
    """Map an Arrow file into memory, and check that it is complete.

    Returns
    -------
    The file, its schema, and its batches, which are views of the file unless they are
    compressed.

    Raises
    ------
    ArgumentError
        If pyarrow is not installed.
    DataError
        If there is no such file, or it is not a complete Arrow file.
    """
    arrow, streamed = require_pyarrow(), _is_stream(path)
    buffer = arrow.memory_map(str(path)).read_buffer()
    source = arrow.BufferReader(buffer)
    try:
        if streamed:
            reader = arrow.ipc.open_stream(source)
            batches = list(reader)
        else:
            reader = arrow.ipc.open_file(source)
            batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate(full=True)  # offsets could point outside the file
    except (arrow.ArrowException, OSError) as error:
        raise FileLayoutError(
            f"{path.name} is not a complete Arrow file ({one_line(error)}); fetch or "
            "write it again."
        ) from error
    if streamed:
        _warn_without_end(path)
    return buffer, reader.schema, batches


def _is_stream(path: Path) -> bool:
    """Return whether an Arrow file is a stream, and not in the random access format.

    Raises
    ------
    DataError
        If it is neither.
    """
    if path.is_dir():
        raise DataError(f"{str(path)!r} is a folder; name one file in it.")
    if not path.is_file():
        raise DataError(f"there is no file {str(path)!r}.")
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
    if begin != MAGIC and not begin.startswith(STREAM):
        raise DataError(
            f"{path.name} is not an Arrow file; write one with "
            "gluonts.dataset.arrow.ArrowWriter, or read it into memory as a list."
        )
    return begin != MAGIC


def _warn_without_end(path: Path) -> None:
    """Warn about a stream that was read, but has no end."""
    with path.open("rb") as file:
        file.seek(-len(END_OF_STREAM), os.SEEK_END)
        ends = file.read() == END_OF_STREAM
    if not ends:
        warnings.warn(
            f"{path.name} is an Arrow stream without an end: it may have been cut off, "
            "and have lost series.",
            ScottWarning,
            stacklevel=4,
        )


def check_columns(path: Path, names: Sequence[str]) -> None:
    """Raise unless a file has the columns of series, once each.

    Raises
    ------
    FileLayoutError
    """
    for name in ("target", "start", "item_id", "freq"):
        if names.count(name) > 1:
            raise FileLayoutError(
                f"{path.name} has more than one column {name!r}; remove one."
            )
    for name in ("target", "start"):
        if name not in names:
            raise FileLayoutError(
                f"{path.name} has no column {name!r}; it has {', '.join(names)}."
            )


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Name the file in errors of pyarrow and pandas about its contents."""
    try:
        yield
    except ScottError:
        raise
    except Exception as error:  # hostile files make them raise anything
        raise DataError(
            f"{path.name} cannot be read: {cause(error)}. It needs columns 'start' and "
            "'target', and 'item_id' if series have names."
        ) from error


def require_pyarrow() -> Any:
    """Return pyarrow; raise if it is not installed, and say how to install it."""
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise ArgumentError(
            "Arrow files need pyarrow: pip install 'pts-scott[arrow]'."
        ) from error
    return pyarrow
