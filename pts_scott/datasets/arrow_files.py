"""Series from Arrow files, such as those of Hugging Face's ``datasets`` and GIFT-Eval.

They are read into memory; `ArrowDataset` maps a file instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pts_scott._utils.text import shorten
from pts_scott.data.arrow import (
    check_columns,
    explained,
    map_batches,
    require_pyarrow,
)
from pts_scott.data.validation import name_of
from pts_scott.datasets.entries import series_from_entries
from pts_scott.datasets.raw_series import RawSeries
from pts_scott.errors import FileLayoutError

if TYPE_CHECKING:
    import pyarrow

SUFFIXES = (".arrow", ".feather")
#: GluonTS' ArrowWriter stores the shape of a multivariate target beside its values.
SHAPE = "target._np_shape"
READ = ("item_id", "start", "freq", "target", SHAPE)


def arrow_files(path: Path) -> list[Path]:
    """Return the Arrow files that a path means: a file, or those of a saved dataset.

    Raises
    ------
    FileLayoutError
        If the path is a folder of several datasets.
    """
    if not path.is_dir():
        return [path] if path.name.lower().endswith(SUFFIXES) else []
    if (path / "dataset_dict.json").exists():
        parts = sorted(str(state.parent) for state in path.glob("*/state.json"))
        raise FileLayoutError(
            f"{str(path)!r} holds several datasets; name one of them: {shorten(parts)}."
        )
    try:  # beside the data there may be caches, which only this file tells apart
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        return [path / Path(part["filename"]).name for part in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        files = sorted(path.glob("*.arrow"))
        return [file for file in files if not file.name.startswith("cache-")]


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
    entries: list[dict[str, Any]] = []
    unread: list[str] = []
    rows = 0
    for file in files:
        table = _read_table(file)
        with explained(file):
            entries += _entries(table, file.name, rows)
            unread += [name for name in table.column_names if name not in READ]
        rows += table.num_rows
    raw = series_from_entries(entries, freq)
    if unread:
        names = shorten(list(dict.fromkeys(unread)))
        raw.remarks.append(f"Columns that were not read: {names}.")
    return raw


def _read_table(path: Path) -> pyarrow.Table:
    _, schema, batches = map_batches(path)
    with explained(path):
        check_columns(path, schema.names)
    return require_pyarrow().Table.from_batches(batches, schema=schema)


def _entries(table: pyarrow.Table, name: str, before: int) -> Iterator[dict[str, Any]]:
    """Iterate over univariate entries; ``before`` is the number of earlier series."""
    columns = [column for column in READ if column in table.column_names]
    for row, entry in enumerate(table.select(columns).to_pandas().to_dict("records")):
        target, shape = np.asarray(entry.pop("target")), entry.pop(SHAPE, None)
        if target.ndim == 0 or (target.dtype == object and not len(target)):
            raise FileLayoutError(f"row {row} of {name} has no target; remove it.")
        if shape is not None:
            target = target.reshape(np.asarray(shape, dtype=int))
        if target.dtype != object and target.ndim == 1:
            yield {**entry, "target": target}
            continue
        item_id = name_of(entry, before + row)
        for dimension, values in enumerate(target):
            yield {**entry, "item_id": f"{item_id}_dim{dimension}", "target": values}
