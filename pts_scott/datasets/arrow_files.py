"""Series from Arrow files, such as those of Hugging Face's ``datasets`` and GIFT-Eval.

They are read into memory; `ArrowDataset` maps a file instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pts_scott._utils.text import one_line, shorten
from pts_scott.data.arrow import is_stream, require_pyarrow
from pts_scott.datasets.entries import series_from_entries
from pts_scott.datasets.raw_series import RawSeries
from pts_scott.errors import FileLayoutError

if TYPE_CHECKING:
    import pyarrow

SUFFIXES = (".arrow", ".feather")
READ = ("item_id", "start", "freq", "target")


def arrow_files(path: Path) -> list[Path]:
    """Return the Arrow files that a path means: a file, or those of a saved dataset."""
    if path.is_dir():
        return sorted(path.glob("*.arrow"))
    return [path] if path.name.lower().endswith(SUFFIXES) else []


def read_arrow(files: list[Path], freq: Any = None) -> RawSeries:
    """Read Arrow files, streams or not, as one dataset.

    Parameters
    ----------
    files
        Files with columns ``start`` and ``target``, and ``item_id`` if series have
        names. The dimensions of a multivariate target become series of their own, named
        as GIFT-Eval does: ``item_dim0``.
    freq
        Frequency of the series; None for that of a column ``freq``.

    Raises
    ------
    FileLayoutError, DataError, FrequencyError
    """
    tables = [_read_table(file) for file in files]
    entries = [
        entry
        for file, table in zip(files, tables)
        for entry in _entries(table, file.name)
    ]
    raw = series_from_entries(entries, freq)
    unread = [name for name in tables[0].column_names if name not in READ]
    if unread:
        raw.remarks.append(f"Columns that were not read: {shorten(unread)}.")
    return raw


def _read_table(path: Path) -> pyarrow.Table:
    arrow = require_pyarrow()
    streamed = is_stream(path)
    try:
        with arrow.memory_map(str(path)) as source:
            make = arrow.ipc.open_stream if streamed else arrow.ipc.open_file
            table = make(source).read_all()
        table.validate(full=True)
    except (arrow.ArrowException, OSError) as error:
        raise FileLayoutError(
            f"{path.name} is not a complete Arrow file ({one_line(error)}); fetch or "
            "write it again."
        ) from error
    missing = [name for name in ("start", "target") if name not in table.column_names]
    if missing:
        raise FileLayoutError(
            f"{path.name} has no column {missing[0]!r}; it has "
            f"{shorten(table.column_names)}."
        )
    return table


def _entries(table: pyarrow.Table, name: str) -> Iterator[dict[str, Any]]:
    """Iterate over univariate entries."""
    columns = [column for column in READ if column in table.column_names]
    for row, entry in enumerate(table.select(columns).to_pandas().to_dict("records")):
        target = np.asarray(entry.pop("target"))
        if target.dtype != object:
            yield {**entry, "target": target}
            continue
        if target.ndim == 0:
            raise FileLayoutError(f"row {row} of {name} has no target; remove it.")
        base = entry.get("item_id", row)
        for dimension, values in enumerate(target):
            yield {**entry, "item_id": f"{base}_dim{dimension}", "target": values}
