"""Cells of a table as numbers and timestamps, with errors that name row and column."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd

from pts_scott._utils.text import quote
from pts_scott.datasets.raw_series import Source
from pts_scott.errors import FileLayoutError, InfiniteValuesError


def reject_objects(frame: pd.DataFrame, source: Source) -> None:
    """Raise on lists, dicts, bytes and other objects that are not text or dates."""
    for name, column in frame.items():
        if column.dtype != object or pd.api.types.infer_dtype(column) == "string":
            continue
        for row, value in enumerate(column):
            if isinstance(value, bytes) or not pd.api.types.is_scalar(value):
                raise FileLayoutError(
                    f"{source.place(row)} has {quote(value)} in column {name!r}; "
                    "expected text, numbers or dates."
                )


def numeric_rows(frame: pd.DataFrame, names: list[str], source: Source) -> np.ndarray:
    """Return the named columns as rows of finite floats, NaN where a value is missing."""
    values = np.empty((len(names), len(frame)))
    for row, name in enumerate(names):
        values[row] = _numbers(frame[name], name, source)
    check_finite(values, names, source)
    return values


def check_finite(values: np.ndarray, names: list[str], source: Source) -> None:
    """Raise if a value is infinite; rows of ``values`` are the named columns."""
    for name, row in zip(names, values):
        infinite = np.isinf(row)
        if infinite.any():
            raise InfiniteValuesError(
                f"{source.place(int(infinite.argmax()))} is infinite in column {name!r}; "
                "replace the value, or leave it empty."
            )


def _numbers(column: pd.Series, name: str, source: Source) -> np.ndarray:
    if column.dtype.kind in "biuf":
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    if column.dtype.kind in "mM":
        raise FileLayoutError(
            f"column {name!r} of {source.name} holds dates, not numbers."
        )
    reject_objects(column.to_frame(name), source)
    numbers = pd.to_numeric(column, errors="coerce")
    text = (numbers.isna() & column.notna()).to_numpy()
    if text.any():
        row = int(text.argmax())
        top = source.unit == "line" and row + source.first == 1
        header = " A file read with start= must not have a header." if top else ""
        raise FileLayoutError(
            f"{source.place(row)} has {quote(column.iloc[row])} in column {name!r}, "
            "which is not a number; write values as 1.5, separated by commas, and leave "
            f"missing ones empty.{header}"
        )
    return numbers.to_numpy(dtype=np.float64, na_value=np.nan)


def timestamps(column: pd.Series, source: Source) -> pd.DatetimeIndex:
    """Return a column as timestamps; text must have the year first to be unambiguous.

    Raises
    ------
    FileLayoutError
        If a cell is a number, has a time zone, or is not a date.
    """
    expected = (
        f"column {column.name!r} is read as the timestamps, which are written 2024-01-31 "
        "or 2024-01-31 13:00"
    )
    if column.dtype.kind in "biuf":
        raise FileLayoutError(
            f"{source.place(0)} has the number {column.iloc[0]}, but {expected}; name "
            "another column with timestamp=, or pass start= and freq= for values without "
            "header and timestamps."
        )
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    dates = column.dtype.kind == "M" or isinstance(column.dtype, pd.DatetimeTZDtype)
    moments = column if dates else _parse_dates(column)
    if moments.dtype.kind != "M" or isinstance(moments.dtype, pd.DatetimeTZDtype):
        place = f"frame[{column.name!r}]"
        raise time_zone_error(
            column.iloc[0],
            source,
            f"{place} = pd.to_datetime({place}, utc=True).dt.tz_localize(None)",
        )
    bad = moments.isna().to_numpy()
    if bad.any():
        row = int(bad.argmax())
        raise FileLayoutError(
            f"{source.place(row)} has {column.iloc[row]!r}, but {expected}."
        )
    return pd.DatetimeIndex(moments)


def time_zone_error(first: object, source: Source, remedy: str) -> FileLayoutError:
    """Return the error for timestamps with a time zone.

    Parameters
    ----------
    first
        The first of them.
    source
        Where they were read.
    remedy
        Code that removes it.
    """
    return FileLayoutError(
        f"{source.place(0)} has {str(first)!r} with a time zone, but series have none: "
        f"their steps would not be equally long. Convert them to UTC: {remedy}."
    )


def _parse_dates(column: pd.Series) -> pd.Series:
    """Parse text as dates, each distinct text once; NaT unless the year comes first."""
    codes, distinct = pd.factorize(column)
    texts = pd.Series(distinct, dtype=object)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # text that cannot be parsed becomes NaT
        moments = pd.to_datetime(texts, errors="coerce")
    moments = moments.where(texts.astype(str).str.match(r"\d{4}\D?\d"))
    return moments.reindex(codes)  # missing text has code -1, which yields NaT
