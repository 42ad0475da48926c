"""Series from text, CSV and Parquet files, with errors that name file and line."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pts_scott._utils.text import one_line
from pts_scott.data.offsets import moment_of
from pts_scott.datasets.cells import check_finite, numeric_rows
from pts_scott.datasets.columns import Columns, check_unique
from pts_scott.datasets.frequency import timestamp_frequency
from pts_scott.datasets.raw_series import RawSeries, Source
from pts_scott.datasets.tables import regular_series, series_from_frame, series_from_table
from pts_scott.errors import (
    ArgumentError,
    DatasetNotFoundError,
    FileLayoutError,
    MissingExtraError,
)

SUFFIXES = (".txt", ".txt.gz", ".csv", ".csv.gz", ".parquet")
PROBE_BYTES = 2**16  # searched for a zero byte, which text does not have
# A gzip file above both limits, far denser than series are, is a decompression bomb.
UNPACKED_BYTES, PACKING_RATIO = 2**31, 100


def suffix_of(path: Path) -> str | None:
    """Return the one of ``SUFFIXES`` that a file ends in, if any."""
    suffixes = [suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)]
    return suffixes[0] if suffixes else None


def read_file(
    path: Path, start: Any = None, freq: Any = None, columns: Columns | None = None
) -> RawSeries:
    """Read a text, CSV or Parquet file.

    Parameters
    ----------
    path
        A file that ends in one of ``SUFFIXES``.
    start, freq
        First step and frequency. With ``start`` the file has neither header nor
        timestamps: one row per step, one column per series.
    columns
        Names of the columns of a table with a header.

    Raises
    ------
    DatasetNotFoundError, FileLayoutError, FrequencyError, InfiniteValuesError
    """
    columns = columns or Columns()
    suffix = _checked_suffix(path)
    if suffix == ".parquet":
        return series_from_frame(_read_parquet(path), start, freq, columns, path.name)
    if suffix.startswith(".txt") and (start is None or freq is None):
        raise ArgumentError(
            f"{path.name} has no timestamps, so it needs start and freq, e.g. "
            "start='2015-01-01', freq='h'."
        )
    if start is None:
        frame = _parse_table(_read_text(path), path.name)
        return series_from_table(frame, freq, columns, Source(path.name, "line", 2))
    columns.reject("a file read with start= has no header")
    timestamp_frequency(freq, moment_of(start))  # raises before a large file is read
    values = _parse_matrix(_read_text(path), Source(path.name, "line", 1))
    return regular_series(values, _numbered_names(len(values)), start, freq)


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV file with a header, or a Parquet file, as it is.

    Raises
    ------
    DatasetNotFoundError, FileLayoutError
    """
    if _checked_suffix(path) == ".parquet":
        return _read_parquet(path)
    return _parse_table(_read_text(path), path.name)


def _checked_suffix(path: Path) -> str:
    """Return the suffix of a data file; raise if it is none."""
    suffix = suffix_of(path)
    if path.is_dir():
        raise FileLayoutError(f"{str(path)!r} is a folder; name one file in it.")
    if not path.is_file():
        raise DatasetNotFoundError(f"there is no file {str(path)!r}.")
    if suffix is None:
        raise FileLayoutError(
            f"{path.name} ends in none of {', '.join(SUFFIXES)}; rename it, or read it "
            "with pandas and pass the DataFrame."
        )
    return suffix


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "Parquet files need pyarrow: pip install 'pts-scott[arrow]'."
        ) from error
    try:
        return pd.read_parquet(path, engine="pyarrow")
    except Exception as error:  # pandas also fails in many ways on bad metadata
        raise FileLayoutError(
            f"{path.name} is not a Parquet file: {one_line(error)}."
        ) from error


def _read_text(path: Path) -> bytes:
    """Return the unpacked bytes of a text file, without byte order mark."""
    packed = path.name.lower().endswith(".gz")
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            zero = file.read(PROBE_BYTES).find(b"\0")
            if zero >= 0:
                raise _not_utf8(path.name, f"byte {zero} is zero")
            file.seek(0)
            limit = max(UNPACKED_BYTES, PACKING_RATIO * path.stat().st_size)
            data = file.read(limit + 1 if packed else -1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FileLayoutError(
            f"{path.name} is named .gz, but is not a complete gzip file ({error}); fetch "
            "it again, or remove .gz from its name."
        ) from None
    except OSError as error:
        raise FileLayoutError(
            f"{str(path)!r} cannot be read: {error.strerror}."
        ) from None
    if packed and len(data) > limit:
        raise FileLayoutError(
            f"{path.name} has more than {limit:,} bytes unpacked, {PACKING_RATIO} times "
            "its size, which is more than series need; unpack it if it is correct."
        )
    data = data.removeprefix(b"\xef\xbb\xbf").rstrip()
    if not data:
        raise FileLayoutError(f"{path.name} is empty.")
    return data


def _parse_matrix(data: bytes, source: Source) -> np.ndarray:
    """Parse the LSTNet layout: no header, one line per step, one column per series."""
    _check_lines(data, source.name)
    try:
        values = pd.read_csv(io.BytesIO(data), header=None, dtype=np.float64).to_numpy().T
    except ValueError:  # there is text: parse again to find where
        _decode(data, source.name)
        frame = pd.read_csv(io.BytesIO(data), header=None, dtype=str)
        frame.columns = frame.columns.map(str)
        return numeric_rows(frame, list(frame.columns), source)
    check_finite(values, _numbered_names(len(values)), source)
    return values


def _numbered_names(number: int) -> list[str]:
    return [str(column) for column in range(number)]


def _parse_table(data: bytes, name: str) -> pd.DataFrame:
    """Parse a CSV file with a header."""
    _check_lines(data, name)
    line, _, rest = data.partition(b"\n")
    header = next(csv.reader([_decode(line, name).strip()]))
    check_unique([column for column in header if column], name)
    if not rest.strip():
        raise FileLayoutError(f"{name} has a header, but no rows.")
    try:
        return pd.read_csv(io.BytesIO(data), low_memory=False)
    except ValueError as error:
        _decode(data, name)
        raise FileLayoutError(f"{name} is not a CSV file: {error}") from None


def _check_lines(data: bytes, name: str) -> None:
    """Raise unless all lines have equally many values; pandas would pad short ones."""
    expected = None
    for line, fields in _count_fields(data, name):
        if fields == 0:
            raise FileLayoutError(
                f"line {line} of {name} is empty; remove it, or write nan where a value "
                "is missing."
            )
        expected = expected or fields
        if fields != expected:
            raise FileLayoutError(
                f"line {line} of {name} has {fields} values, but the first line has "
                f"{expected}; write a missing value as an empty field: 1.0,,2.0."
            )


def _count_fields(data: bytes, name: str) -> Iterable[tuple[int, int]]:
    """Yield the number of each line and how many fields it has."""
    if b'"' not in data:
        for line, text in enumerate(io.BytesIO(data), start=1):
            yield line, text.count(b",") + 1 if text.strip() else 0
        return
    reader = csv.reader(io.StringIO(_decode(data, name)))
    try:
        for fields in reader:
            yield reader.line_num, len(fields)
    except csv.Error as error:
        raise FileLayoutError(
            f"line {reader.line_num} of {name} cannot be read as CSV: {error}; check for "
            "an unclosed quote."
        ) from None


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(name, f"byte {error.start}") from None


def _not_utf8(name: str, where: str) -> FileLayoutError:
    return FileLayoutError(f"{name} is not text in UTF-8 ({where}); save it as UTF-8.")
