"""Loading series: by name, from a file, a data frame or a GluonTS dataset.

Examples
--------
>>> data = load("exchange_rate", folder="data")
>>> print(data.report())
>>> parts = data.split(context_length=72, prediction_length=24)
>>> predictor = estimator.train(parts.train.dataset())
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pts_scott._utils.arguments import nearest, one_of, whole_number
from pts_scott._utils.text import one_line, quote, shorten
from pts_scott.datasets.arrow_files import arrow_files, read_arrow
from pts_scott.datasets.columns import Columns
from pts_scott.datasets.downloads import download
from pts_scott.datasets.entries import series_from_entries
from pts_scott.datasets.features import Features, with_static
from pts_scott.datasets.known import FOLDER_VARIABLE, KNOWN, KnownDataset, data_folder
from pts_scott.datasets.raw_series import RawSeries
from pts_scott.datasets.readers import read_file, suffix_of
from pts_scott.datasets.series_data import SeriesData
from pts_scott.datasets.synthetic import FREQ, START, synthetic_series
from pts_scott.datasets.tables import series_from_frame
from pts_scott.errors import (
    ArgumentError,
    ConstantSeriesError,
    DatasetNotFoundError,
    EmptyDatasetError,
    FileLayoutError,
    ScottWarning,
)

CONSTANT = ("error", "drop", "keep")
SYNTHETIC = "synthetic"


def load(
    name: str | Path | pd.DataFrame | pd.Series | Iterable[Mapping[str, Any]],
    *,
    start: Any = None,
    freq: Any = None,
    timestamp: str | None = None,
    item_id: str | None = None,
    target: str | None = None,
    known: Sequence[str] = (),
    past: Sequence[str] = (),
    static: pd.DataFrame | None = None,
    constant: str = "error",
    seed: int = 0,
    folder: str | Path | None = None,
) -> SeriesData:
    """Load series by name, from a file, or from memory.

    Parameters
    ----------
    name
        A name that ``available`` lists; a file in ``.txt``, ``.csv`` (both also ``.gz``),
        ``.parquet`` or ``.arrow``, or the folder of a dataset that Hugging Face's
        ``datasets`` saved; a DataFrame or Series with timestamps, e.g. one of AutoGluon
        or Nixtla; or a GluonTS dataset. Rows may be in any order.
    start, freq
        First step and frequency. Without ``start`` a table has timestamps, from which
        ``freq`` is inferred unless given; with it the file has neither header nor
        timestamps, but one row per step and one column per series.
    timestamp
        Column of the timestamps: by default "timestamp", "date", "ds" or "time", or else
        the only one with dates, or the first.
    item_id
        Column that names the series of a table in long form: by default "item_id" or
        "unique_id"; if there is none, every other column with a name is a series.
    target
        Column of the values in long form: by default "target", "y" or "value". In wide
        form, the only column to read.
    known
        Columns with features of each step that are known in advance, such as a price or
        a holiday. Rows without a target at the end of a series have those of the steps
        to forecast.
    past
        Columns with features that are known only when the step has passed.
    static
        Features of each series: a DataFrame with their names in a column of the same name
        as in the table, or "item_id" or "unique_id", or in the index. By default that of
        AutoGluon's data frames.
    constant
        What to do with series of a single value: "error", "drop" or "keep".
    seed
        Of the noise of "synthetic".
    folder
        Folder of the files of known datasets: by default the one that the environment
        variable PTS_SCOTT_DATA names.

    Returns
    -------
    SeriesData
        The series, with ``report()``, ``split()`` and ``dataset()``. Estimators and
        `forecast_frame` take it as it is.

    Raises
    ------
    DatasetNotFoundError
        If there is no dataset or file of this name.
    FileLayoutError
        If columns cannot be told apart, or do not hold what they should.
    FrequencyError
        If the timestamps have no common frequency.
    ConstantSeriesError
        If a series has only one value, and ``constant`` is "error".
    DataError
        If the data cannot be used for another reason.

    Examples
    --------
    >>> frame = pd.DataFrame({
    ...     "unique_id": ["north"] * 3 + ["south"] * 3,
    ...     "ds": [*pd.date_range("2024-01-01", periods=3)] * 2,
    ...     "y": [1.0, 2.0, 3.0, 5.0, 4.0, 6.0],
    ... })
    >>> load(frame)
    SeriesData('data', freq='D', 2 series of 3 steps)
    """
    one_of("constant", constant, CONSTANT)
    columns = Columns(
        timestamp, item_id, target, _names("known", known), _names("past", past)
    )
    if isinstance(name, str) and (name == SYNTHETIC or name in KNOWN):
        columns.reject(f"{name} is known by name")
        if start is not None or freq is not None:
            raise ArgumentError(f"{name} has its own start and freq; omit them.")
        data = _synthetic(seed) if name == SYNTHETIC else _known(KNOWN[name], folder)
    elif isinstance(name, str | Path):
        path = _path(name)
        if files := arrow_files(path):
            columns.reject("Arrow files have series, not columns")
            if start is not None:
                raise ArgumentError(f"the series in {path.name} have a start; omit it.")
            data = _from_table(path.stem, read_arrow(files, freq), columns)
        else:
            raw = read_file(path, start, freq, columns)
            short = path.name.removesuffix(suffix_of(path) or "")
            data = _from_table(short, raw, columns)
    elif isinstance(name, pd.DataFrame | pd.Series):
        frame = name
        if isinstance(name, pd.Series):
            frame = name.to_frame("target" if name.name is None else name.name)
        data = _from_table(
            "data", series_from_frame(frame, start, freq, columns), columns
        )
    else:
        columns.reject("a dataset has entries, not columns")
        if start is not None:
            raise ArgumentError("the entries of a dataset have a start; omit start=.")
        data = SeriesData.from_raw("data", series_from_entries(name, freq))
    if static is None:
        static = getattr(name, "static_features", None)  # of AutoGluon's data frames
    if static is not None:
        both = with_static(data.features or Features(), static, data.item_ids, item_id)
        data = replace(data, features=both)
    return _without_constant(data, constant)


def as_dataset(data: Any, freq: Any = None, horizon: int = 0) -> Any:
    """Return what an estimator or a predictor takes: a GluonTS dataset.

    Parameters
    ----------
    data
        A DataFrame or Series, read as `load` reads it; what `load` returned; or a
        dataset, which is returned as it is.
    freq
        Frequency of the series of a DataFrame; inferred by default.
    horizon
        Steps after the targets for which features have to be known.
    """
    if isinstance(data, pd.DataFrame | pd.Series):
        try:
            data = load(data, freq=freq, constant="keep")
        except FileLayoutError as error:
            raise FileLayoutError(
                f"{error} Pass such arguments to pts_scott.load; estimators take what it "
                "returns."
            ) from error
    return data.dataset(horizon) if isinstance(data, SeriesData) else data


def _names(argument: str, given: Any) -> tuple[str, ...]:
    """Return column names given as a sequence of them."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ArgumentError(
            f"{argument}={given!r}: expected a list of columns, e.g. ['price']."
        )
    return tuple(str(name) for name in given)


def available(folder: str | Path | None = None) -> pd.DataFrame:
    """List the datasets known by name, where they were found, or how to get them.

    Parameters
    ----------
    folder
        Folder of their files: by default the one that the environment variable
        PTS_SCOTT_DATA names.

    Returns
    -------
    pd.DataFrame
        One row per dataset: name, series, steps, freq, start, description, where, get.
    """
    place = data_folder(folder)
    rows = []
    for known in KNOWN.values():
        path = known.find(place)
        get = f"put {known.file} into ${FOLDER_VARIABLE}"
        if known.download:
            get += ", or let GluonTS download it"
        rows.append(
            {
                "name": known.name,
                "series": known.series,
                "steps": known.steps,
                "freq": known.freq,
                "start": known.start,
                "description": known.description,
                "where": "" if path is None else str(path),
                "get": get if path is None else "",
            }
        )
    series, steps = synthetic_series().shape
    rows.append(
        {
            "name": SYNTHETIC,
            "series": series,
            "steps": steps,
            "freq": FREQ,
            "start": START,
            "description": "the paper's four series",
            "where": "",
            "get": "generated when loaded",
        }
    )
    return pd.DataFrame(rows)


def _synthetic(seed: int) -> SeriesData:
    values = synthetic_series(seed=whole_number("seed", seed, minimum=0))
    names = [f"TS{number}" for number in range(1, len(values) + 1)]
    starts = [pd.Timestamp(START)] * len(values)
    return SeriesData.from_raw(SYNTHETIC, RawSeries(FREQ, names, starts, list(values)))


def _known(known: KnownDataset, folder: str | Path | None) -> SeriesData:
    """Load a known dataset from its file, or download it."""
    place = data_folder(folder)
    path = known.find(place)
    if path is None:
        return download(known, place)
    raw = read_file(path, known.start, known.freq)
    series, steps = len(raw.targets), len(raw.targets[0])
    if (series, steps) != (known.series, known.steps):
        raise FileLayoutError(
            f"{path} has {steps} rows × {series} columns, but {known.name} has "
            f"{known.layout}; fetch the file again, or rename it if it is a part of the "
            f"dataset and load it by its path, with start={known.start!r} and "
            f"freq={known.freq!r}."
        )
    return SeriesData.from_raw(known.name, raw)


def _path(name: str | Path) -> Path:
    """Return a path, unless it is more likely a misspelt dataset name."""
    try:
        path = Path(name).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError) as error:  # too long; no such user
        raise DatasetNotFoundError(f"{quote(str(name))}: {one_line(error)}.") from None
    if isinstance(name, Path) or exists or suffix_of(path) or len(path.parts) > 1:
        return path
    raise DatasetNotFoundError(
        f"there is no dataset {quote(name)}, and no file of that name. "
        f"{nearest(str(name), [*KNOWN, SYNTHETIC])}"
    )


def _from_table(name: str, raw: RawSeries, columns: Columns) -> SeriesData:
    """Name the series of a table, and warn about what was not read, or sorted."""
    notes = list(raw.remarks)
    if raw.unread:
        notes.append(
            f"Columns that were not read: {shorten(raw.unread)}; name those that are "
            "features with known= or past=."
        )
    for note in notes:
        warnings.warn(note, ScottWarning, stacklevel=3)
    features = None
    if columns.known or columns.past:
        features = Features(
            columns.known, columns.past, known=tuple(raw.known), past=tuple(raw.past)
        )
    return SeriesData.from_raw(name, raw, " ".join(notes), features)


def _without_constant(data: SeriesData, constant: str) -> SeriesData:
    """Raise on constant series, drop them, or keep them."""
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
            f"{len(found)} of {len(data)} series of {data.name} have only one value, so "
            f"there is nothing to learn: {shorten(shown)}. Drop them with "
            "constant='drop', or keep them with constant='keep'."
        )
    if len(found) == len(data):
        raise EmptyDatasetError(f"all series of {data.name} are constant: none is left.")
    kept = sorted(set(range(len(data))) - set(found))
    return replace(data.pick(kept), dropped=tuple(data.item_ids[row] for row in found))


def _is_constant(target: np.ndarray) -> bool:
    return not (target.size and np.fmin.reduce(target) < np.fmax.reduce(target))


def _value(target: np.ndarray) -> str:
    value = np.fmax.reduce(target) if target.size else math.nan
    return "missing" if np.isnan(value) else f"{value:g}"
