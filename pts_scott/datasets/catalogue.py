"""Datasets by name and from one's own files, what is in them, and splits by time.

Examples
--------
>>> data = load("exchange_rate", folder="data")
>>> print(data.report())
>>> parts = data.split(context_length=72, prediction_length=24)
>>> predictor = estimator.train(parts.train.dataset())
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pts_scott._utils.arguments import nearest, one_of, whole_number
from pts_scott._utils.text import one_line, quote, shorten
from pts_scott.data.offsets import moment_of
from pts_scott.datasets.series_data import SeriesData
from pts_scott.datasets.series_files import (
    Columns,
    PlainSeries,
    read_entries,
    read_file,
    read_frame,
    suffix_of,
)
from pts_scott.datasets.synthetic import FREQ, START, synthetic_series
from pts_scott.errors import (
    ArgumentError,
    ConstantSeriesError,
    DatasetNotFoundError,
    EmptyDatasetError,
    FileLayoutError,
    ScottWarning,
)

FOLDER = "PTS_SCOTT_DATA"  # the environment variable that names the folder of the files
CONSTANT = ("error", "drop", "keep")


@dataclass(frozen=True)
class Known:
    """A dataset that is known by name: one row of the table ``KNOWN``."""

    name: str
    series: int
    steps: int
    freq: str
    start: str
    description: str
    download: bool = False

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}.txt.gz"

    @property
    def layout(self) -> str:
        """What its file has to look like."""
        return (
            f"{self.steps} rows × {self.series} columns, comma separated, one row a "
            "step, one column a series, no header"
        )

    def find(self, folder: Path | None) -> Path | None:
        """Its file in the folder, packed or not."""
        if folder is None:
            return None
        paths = (folder / self.file, folder / f"{self.name}.txt")
        return next((path for path in paths if path.is_file()), None)


_TABLE = (
    Known("exchange_rate", 8, 7588, "B", "1990-01-01", "exchange rates", True),
    Known("traffic", 862, 17544, "h", "2015-01-01", "road occupancy, 0 to 1", True),
    Known("electricity", 321, 26304, "h", "2012-01-01", "clients' consumption", True),
    Known("traffic-21x17544", 21, 17544, "h", "2015-01-01", "sensors 0-19 and 861"),
    Known("electricity-321x840", 321, 840, "h", "2014-11-27", "its last 840 hours"),
    Known("electricity-12x8760", 12, 8760, "h", "2014-01-01", "12 clients, mean kW"),
    Known("electricity-2x26304", 2, 26304, "h", "2012-01-01", "clients 0 and 320"),
)
KNOWN = {known.name: known for known in _TABLE}
SYNTHETIC = "synthetic"


def load(
    name: str | Path | pd.DataFrame | Iterable[Mapping[str, Any]],
    *,
    start: Any = None,
    freq: Any = None,
    timestamp: str | None = None,
    item_id: str | None = None,
    target: str | None = None,
    constant: str = "error",
    seed: int = 0,
    folder: str | Path | None = None,
) -> SeriesData:
    """Load series by name, from a file, or from memory.

    Parameters
    ----------
    name
        A name of the table ``KNOWN``, or "synthetic"; a file in ``.txt``, ``.csv`` (both
        also ``.gz``) or ``.parquet``; a DataFrame; or a GluonTS dataset.
    start, freq
        First step and frequency. Without ``start`` a table has timestamps, from which
        ``freq`` is inferred if it is not given; with it the file has neither header nor
        timestamps, but one row a step and one column a series.
    timestamp
        Column of the timestamps: by default "timestamp", "date", "ds" or "time", or else
        the first.
    item_id
        Column that names the series of a table in long form: by default "item_id" or
        "unique_id"; if there is none, every other column with a name is a series.
    target
        Column of the values in long form: by default "target", "y" or "value". In wide
        form, the only column to read.
    constant
        What becomes of series with one value only: "error", "drop" or "keep".
    seed
        Of the noise of "synthetic".
    folder
        Where the files of known datasets lie: by default what the environment variable
        PTS_SCOTT_DATA names.

    Raises
    ------
    DatasetNotFoundError, FileLayoutError, ConstantSeriesError, FrequencyError, DataError
    """
    one_of("constant", constant, CONSTANT)
    columns = Columns(timestamp, item_id, target)
    if isinstance(name, str) and (name == SYNTHETIC or name in KNOWN):
        columns.refuse(f"{name} is known by name")
        if start is not None or freq is not None:
            raise ArgumentError(f"{name} has its own start and freq; leave them out.")
        data = _synthetic(seed) if name == SYNTHETIC else _known(KNOWN[name], folder)
    elif isinstance(name, str | Path):
        path = _path(name)
        plain = read_file(path, start, freq, columns)
        data = _named(path.name.removesuffix(suffix_of(path) or ""), plain)
    elif isinstance(name, pd.DataFrame):
        data = _named("data", read_frame(name, start, freq, columns))
    else:
        columns.refuse("a dataset has entries, not columns")
        if start is not None:
            raise ArgumentError("the entries of a dataset have a start; leave it out.")
        data = _named("data", read_entries(name, freq))
    return _without_constant(data, constant)


def available(folder: str | Path | None = None) -> pd.DataFrame:
    """The datasets that are known by name, where they were found, or how to get them."""
    place = _folder(folder)
    rows: list[tuple[Any, ...]] = []
    for known in KNOWN.values():
        path = known.find(place)
        get = f"put {known.file} into ${FOLDER}"
        if known.download:
            get += ", or let GluonTS download it"
        found = ("", get) if path is None else (str(path), "")
        shape = known.series, known.steps
        rows.append((known.name, *shape, known.freq, known.start, *found))
    shape = synthetic_series().shape
    rows.append((SYNTHETIC, *shape, FREQ, START, "", "made when it is loaded"))
    names = ["name", "series", "steps", "freq", "start", "where", "get"]
    table = pd.DataFrame(rows, columns=names)
    what = [*(known.description for known in KNOWN.values()), "the paper's four series"]
    table.insert(5, "description", what)
    return table


def _named(name: str, plain: PlainSeries, note: str = "") -> SeriesData:
    if plain.unread:
        unread = f"Columns that were not read: {shorten(plain.unread)}."
        warnings.warn(
            f"{unread} {name} is read as one target per series; pass other features to "
            "an estimator in a GluonTS dataset.",
            ScottWarning,
            stacklevel=3,
        )
        note = f"{note} {unread}".strip()
    return SeriesData(
        name,
        plain.freq,
        tuple(plain.item_ids),
        tuple(plain.starts),
        tuple(plain.targets),
        note=note,
    )


def _synthetic(seed: int) -> SeriesData:
    values = synthetic_series(seed=whole_number("seed", seed, minimum=0))
    names = [f"TS{number}" for number in range(1, len(values) + 1)]
    starts = [pd.Timestamp(START)] * len(values)
    return _named(SYNTHETIC, PlainSeries(FREQ, names, starts, list(values)))


def _path(name: str | Path) -> Path:
    """A path, unless it is more likely a misspelt name."""
    try:
        path = Path(name).expanduser()
        there = path.exists()
    except (OSError, RuntimeError) as error:  # too long; no such user
        raise DatasetNotFoundError(f"{quote(str(name))}: {one_line(error)}.") from None
    if isinstance(name, Path) or there or suffix_of(path) or len(path.parts) > 1:
        return path
    raise DatasetNotFoundError(
        f"there is no dataset {quote(name)}, and no file of that name. "
        f"{nearest(str(name), [*KNOWN, SYNTHETIC])}"
    )


def _folder(folder: str | Path | None) -> Path | None:
    named = folder if folder is not None else os.environ.get(FOLDER)
    return Path(named).expanduser() if named else None


def _known(known: Known, folder: str | Path | None) -> SeriesData:
    place = _folder(folder)
    path = known.find(place)
    if path is None:
        return _download(known, place)
    plain = read_file(path, known.start, known.freq)
    shape = len(plain.targets), len(plain.targets[0])
    if shape != (known.series, known.steps):
        raise FileLayoutError(
            f"{path} has {shape[1]} rows × {shape[0]} columns, but {known.name} has "
            f"{known.layout}; fetch the file again, or give a part of it a name of its "
            f"own and load it by its path, with start={known.start!r} and "
            f"freq={known.freq!r}."
        )
    return _named(known.name, plain)


def _download(known: Known, folder: Path | None) -> SeriesData:
    """The dataset as GluonTS' repository has it."""
    if not known.download:
        raise _not_found(known, folder, "It is a part of a dataset and has no download.")
    try:
        from gluonts.dataset.repository import datasets as repository

        # What a download that failed has left behind is not taken for the data.
        whole = (repository.default_dataset_path / known.name / "test").exists()
        longest: dict[str, Mapping[str, Any]] = {}
        with warnings.catch_warnings():  # of pandas, about GluonTS' business days
            warnings.simplefilter("ignore", FutureWarning)
            parts = repository.get_dataset(known.name, regenerate=not whole)
            for entry in parts.test:  # one for each rolling window
                kept = longest.setdefault(str(entry["item_id"]), entry)
                if len(entry["target"]) > len(kept["target"]):
                    longest[str(entry["item_id"])] = entry
        targets = [np.asarray(e["target"], dtype=np.float64) for e in longest.values()]
        starts = [moment_of(entry["start"]) for entry in longest.values()]
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise _not_found(
            known, folder, f"Its download by GluonTS failed ({reason})."
        ) from error
    shape = len(targets), max(map(len, targets), default=0)
    plain = PlainSeries(known.freq, list(longest), starts, targets)
    if shape == (known.series, known.steps):
        return _named(known.name, plain)
    # What is not the whole dataset does not bear its name.
    return _named(
        f"{known.name}-{shape[0]}x{shape[1]}",
        plain,
        f"GluonTS' copy of {known.name} ends after {shape[1]} of {known.steps} steps; "
        f"for all of them put {known.file} into the folder that {FOLDER} names.",
    )


def _not_found(known: Known, folder: Path | None, reason: str) -> DatasetNotFoundError:
    if folder is None:
        where = f"no folder is named: set the environment variable {FOLDER}"
        remedy = f"Put {known.file} into a folder and set {FOLDER} to it"
    else:
        where = f"there is no {known.file} in {str(folder)!r}"
        remedy = f"Put {known.file} there, or set {FOLDER} to the folder that has it"
    return DatasetNotFoundError(
        f"dataset {known.name!r} was not found; {where}. {reason} {remedy} "
        f"({known.layout})."
    )


def _without_constant(data: SeriesData, constant: str) -> SeriesData:
    if not data.targets:
        raise EmptyDatasetError(f"{data.name} has no series.")
    if constant == "keep":
        return data
    found = [row for row, target in enumerate(data.targets) if _is_constant(target)]
    if not found:
        return data
    if constant == "error":
        shown = [f"{data.item_ids[row]} = {_value(data.targets[row])}" for row in found]
        raise ConstantSeriesError(
            f"{len(found)} of {len(data)} series of {data.name} have one value only, so "
            f"there is nothing to learn: {shorten(shown)}. Leave them out with "
            "constant='drop', or keep them with constant='keep'."
        )
    if len(found) == len(data):
        raise EmptyDatasetError(f"all series of {data.name} are constant: none is left.")
    gone = set(found)
    kept = [row for row in range(len(data)) if row not in gone]
    return replace(data.pick(kept), dropped=tuple(data.item_ids[row] for row in found))


def _is_constant(target: np.ndarray) -> bool:
    return not (target.size and np.fmin.reduce(target) < np.fmax.reduce(target))


def _value(target: np.ndarray) -> str:
    value = np.fmax.reduce(target) if target.size else math.nan
    return "missing" if np.isnan(value) else f"{value:g}"
