"""Series from files, data frames and GluonTS datasets, checked where they enter.

Every problem is named by file, line and column. What comes back has one frequency,
and a value (or NaN) for each of its steps.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import warnings
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pandas.tseries.offsets import BusinessDay, Tick

from pts_scott._utils.arguments import nearest
from pts_scott._utils.text import one_line, quote, shorten
from pts_scott.data.offsets import frequency_of, moment_of, nanoseconds, parse_offset
from pts_scott.data.series_store import SeriesStore
from pts_scott.errors import (
    ArgumentError,
    DataError,
    DatasetNotFoundError,
    FileLayoutError,
    FrequencyError,
    InfiniteValuesError,
    MissingExtraError,
)

SUFFIXES = (".txt", ".txt.gz", ".csv", ".csv.gz", ".parquet")
TIMESTAMPS = ("timestamp", "date", "ds", "time")
ITEM_IDS = ("item_id", "unique_id")
TARGETS = ("target", "y", "value")
MAX_STEPS_A_ROW = 1000  # more steps than that for each row: the frequency is wrong
HEAD = 2**16  # bytes of a file by which it is taken for text
# A gzip file of more bytes that is also packed that much more densely than series are,
# is made to fill the memory.
UNPACKED, PACKED_TIMES = 2**31, 100


@dataclass(frozen=True)
class PlainSeries:
    """What was read: series of one frequency, not looked at any further."""

    freq: str
    item_ids: list[str]
    starts: list[pd.Timestamp]
    targets: list[np.ndarray]
    unread: list[str] = field(default_factory=list)  # columns that hold something else


@dataclass(frozen=True)
class Columns:
    """The columns that a user names, or None where they are to be found."""

    timestamp: str | None = None
    item_id: str | None = None
    target: str | None = None

    def refuse(self, what: str) -> None:
        """Refuse names of columns where there are none."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        if given:
            raise ArgumentError(
                f"{' and '.join(given)} name columns of a table, but {what}; leave "
                f"{'them' if len(given) > 1 else 'it'} out."
            )


@dataclass(frozen=True)
class _Source:
    """Where values come from, to name a place in a message."""

    name: str
    unit: str = "row"
    first: int = 0

    def place(self, row: int) -> str:
        return f"{self.unit} {row + self.first} of {self.name}"


def suffix_of(path: Path) -> str | None:
    """The ending that says how a file is read, if it is one of the known ones."""
    endings = [end for end in SUFFIXES if path.name.lower().endswith(end)]
    return endings[0] if endings else None


def read_file(
    path: Path, start: Any = None, freq: Any = None, columns: Columns | None = None
) -> PlainSeries:
    """Read a text, CSV or Parquet file.

    Parameters
    ----------
    path
        A file that ends in one of ``SUFFIXES``.
    start, freq
        First step and frequency. With ``start`` the file has neither header nor
        timestamps: one row a step, one column a series.
    columns
        Names of the columns of a table with a header.

    Raises
    ------
    DatasetNotFoundError, FileLayoutError, FrequencyError, InfiniteValuesError
    """
    columns = columns or Columns()
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
    if suffix == ".parquet":
        return read_frame(_read_parquet(path), start, freq, columns, name=path.name)
    if suffix.startswith(".txt") and (start is None or freq is None):
        raise ArgumentError(
            f"{path.name} has no timestamps, so it needs start and freq, e.g. "
            "start='2015-01-01', freq='h'."
        )
    if start is not None:
        columns.refuse("a file read with start= has no header")
        step_frequency(freq, moment_of(start))
    data = _read_bytes(path)
    if start is not None:
        return _read_matrix(data, path.name, start, freq)
    frame = _read_table(data, path.name)
    return _from_table(frame, freq, columns, _Source(path.name, "line", 2))


def read_frame(
    frame: pd.DataFrame,
    start: Any = None,
    freq: Any = None,
    columns: Columns | None = None,
    name: str = "the DataFrame",
) -> PlainSeries:
    """Read a data frame: wide or long with timestamps, or one row a step from ``start``.

    Raises
    ------
    FileLayoutError, FrequencyError, InfiniteValuesError
    """
    columns, source = columns or Columns(), _Source(name)
    frame = frame.set_axis([str(column) for column in frame.columns], axis=1)
    _check_header(list(frame.columns), name)
    if frame.empty:
        raise FileLayoutError(f"{name} is empty: it has no rows or no columns.")
    if start is not None:
        columns.refuse("with start= every column is a series")
        names = list(frame.columns)
        return _regular(_matrix(frame, names, source), names, start, freq)
    index = frame.index
    if isinstance(index, pd.MultiIndex):
        frame = frame.reset_index()
    elif isinstance(index, pd.DatetimeIndex | pd.PeriodIndex):
        moments = index.to_timestamp() if isinstance(index, pd.PeriodIndex) else index
        label = str(index.name or TIMESTAMPS[0])
        if columns.timestamp in (None, label) and label not in frame.columns:
            frame = frame.reset_index(drop=True)
            frame.insert(0, label, moments)
            columns = Columns(label, columns.item_id, columns.target)
    return _from_table(frame, freq, columns, source)


def read_entries(dataset: Iterable[Mapping[str, Any]], freq: Any = None) -> PlainSeries:
    """Read a GluonTS dataset, or any entries with ``start`` and ``target``.

    Raises
    ------
    DataError, EmptyDatasetError, FrequencyError, InfiniteValuesError
    """
    if freq is None and isinstance(dataset, Iterable):
        dataset = list(dataset)
        first = dataset[0] if dataset else {}
        start = first.get("start") if isinstance(first, Mapping) else None
        carried = frequency_of(start)
        freq = None if carried is None else carried.freqstr
    # Series without a value are constant ones, of which the user decides.
    store = SeriesStore.from_dataset(dataset, freq, torch.float64, warns=False)
    if store.dimensions is not None:
        raise DataError(
            f"the series have {store.dimensions} dimensions; split them into univariate "
            "series, one entry each."
        )
    empty = [store.item_ids[row] for row in np.flatnonzero(store.lengths == 0)]
    if empty:
        raise DataError(f"series {shorten(empty)} have no values; leave them out.")
    doubled = _doubled(store.item_ids)
    if doubled:
        raise DataError(
            f"series {shorten(doubled)} are in the dataset more than once; rolling test "
            "splits repeat a series: keep the longest entry of each, or rename them."
        )
    values = store.values.numpy()
    starts = [store.timeline.moments[origin] for origin in store.timeline.origins]
    ends = zip(store.begins.tolist(), store.lengths.tolist())
    return PlainSeries(
        step_frequency(freq, starts[0]),
        list(store.item_ids),
        starts,
        [values[begin : begin + length] for begin, length in ends],
    )


def step_frequency(freq: Any, start: pd.Timestamp) -> str:
    """The frequency by which the beginnings of the steps move.

    Months that are dated by their first day are 'M' for pandas' periods, but the first
    days themselves move by 'MS'; and so for weeks, quarters and years.
    """
    offset = parse_offset(freq)
    name = freq if isinstance(freq, str) else offset.freqstr
    if isinstance(offset, Tick | BusinessDay) or offset.is_on_offset(start):
        return name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            periods = pd.period_range(start, periods=10, freq=offset)
        except (ValueError, AttributeError):
            return name
        begins = periods.start_time
        return pd.infer_freq(begins) or name if begins[0] == start else name


def _read_bytes(path: Path) -> bytes:
    packed = path.name.lower().endswith(".gz")
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            zero = file.read(HEAD).find(b"\0")
            if zero >= 0:
                raise FileLayoutError(
                    f"{path.name} is not text in UTF-8 (byte {zero} is zero); save it as "
                    "UTF-8."
                )
            file.seek(0)
            limit = max(UNPACKED, PACKED_TIMES * path.stat().st_size)
            data = file.read(limit + 1 if packed else -1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FileLayoutError(
            f"{path.name} is named .gz, but is not a whole gzip file ({error}); fetch it "
            "again, or take .gz off its name."
        ) from None
    except OSError as error:
        raise FileLayoutError(
            f"{str(path)!r} cannot be read: {error.strerror}."
        ) from None
    if packed and len(data) > limit:
        raise FileLayoutError(
            f"{path.name} has more than {limit:,} bytes unpacked, {PACKED_TIMES} times "
            "its size, which series do not have; unpack it if it is right."
        )
    data = data.removeprefix(b"\xef\xbb\xbf").rstrip()
    if not data:
        raise FileLayoutError(f"{path.name} is empty.")
    return data


def _check_lines(data: bytes, name: str) -> None:
    """Every line has as many values as the first; pandas would fill up short ones."""
    expected = None
    for line, fields in _fields_of_lines(data, name):
        if fields == 0:
            raise FileLayoutError(
                f"line {line} of {name} is empty; take it out, or write nan where a "
                "value is missing."
            )
        expected = expected or fields
        if fields != expected:
            raise FileLayoutError(
                f"line {line} of {name} has {fields} values, but the first line has "
                f"{expected}; write a missing value as an empty field: 1.0,,2.0."
            )


def _fields_of_lines(data: bytes, name: str) -> Iterable[tuple[int, int]]:
    """Number of each line, and how many fields it has."""
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
            f"line {reader.line_num} of {name} cannot be read as CSV: {error}; look for "
            "a quote that is not closed."
        ) from None


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FileLayoutError(
            f"{name} is not text in UTF-8 (byte {error.start}); save it as UTF-8."
        ) from None


def _read_matrix(data: bytes, name: str, start: Any, freq: Any) -> PlainSeries:
    """The layout of the LSTNet files: no header, one row a step, one column a series."""
    _check_lines(data, name)
    source = _Source(name, "line", 1)
    try:
        values = pd.read_csv(io.BytesIO(data), header=None, dtype=np.float64).to_numpy().T
    except ValueError:  # text: read again to say where
        _decode(data, name)
        frame = pd.read_csv(io.BytesIO(data), header=None, dtype=str)
        frame.columns = frame.columns.map(str)
        values = _matrix(frame, list(frame.columns), source)
    names = [str(column) for column in range(len(values))]
    return _regular(_finite(values, names, source), names, start, freq)


def _regular(values: np.ndarray, names: list[str], start: Any, freq: Any) -> PlainSeries:
    """Series that all begin at ``start``, and have a value for every step."""
    first = moment_of(start)
    return PlainSeries(
        step_frequency(freq, first), names, [first] * len(names), list(values)
    )


def _read_table(data: bytes, name: str) -> pd.DataFrame:
    """A CSV file with a header."""
    _check_lines(data, name)
    line, _, rest = data.partition(b"\n")
    header = next(csv.reader([_decode(line, name).strip()]))
    _check_header([column for column in header if column], name)
    if not rest.strip():
        raise FileLayoutError(f"{name} has a header, but no rows.")
    try:
        return pd.read_csv(io.BytesIO(data), low_memory=False)
    except ValueError as error:
        _decode(data, name)
        raise FileLayoutError(f"{name} is not a CSV file: {error}") from None


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "Parquet files need pyarrow: pip install 'pts-scott[arrow]'."
        ) from error
    try:
        return pd.read_parquet(path, engine="pyarrow")
    except Exception as error:  # of its metadata, too, on which pandas relies
        raise FileLayoutError(
            f"{path.name} is not a Parquet file: {one_line(error)}."
        ) from error


def _check_header(names: list[str], source: str) -> None:
    doubled = _doubled(names)
    if doubled:
        raise FileLayoutError(
            f"{source} has columns {shorten(doubled)} more than once; rename them."
        )


def _doubled(names: Iterable[str]) -> list[str]:
    index = pd.Index(list(names))
    return list(index[index.duplicated()].unique())


def _from_table(
    frame: pd.DataFrame, freq: Any, columns: Columns, source: _Source
) -> PlainSeries:
    """The series of a table with timestamps, in long or in wide form."""
    known = list(frame.columns)
    time = _column("timestamp", columns.timestamp, TIMESTAMPS, known, source) or known[0]
    item = _column("item_id", columns.item_id, ITEM_IDS, known, source)
    _check_plain(frame[[time] if item is None else [time, item]], source)
    times = _moments(frame[time], source)
    if item is None:
        wide = _from_wide(frame, times, time, freq, columns.target, source)
        return replace(wide, unread=_others(known, [time, *wide.item_ids]))
    target = _column("target", columns.target, TARGETS, known, source)
    if target is None:
        raise FileLayoutError(
            f"{source.name} has a column {item!r}, but none of {', '.join(TARGETS)}; "
            f"name the column of the values with target=. It has {shorten(known)}."
        )
    long = _from_long(frame, times, item, target, freq, source)
    return replace(long, unread=_others(known, [time, item, target]))


def _others(known: list[str], read: list[str]) -> list[str]:
    """The columns that were not read; one without a name is the index of a CSV file."""
    return [c for c in known if c not in read and not c.startswith("Unnamed: ")]


def _check_plain(frame: pd.DataFrame, source: _Source) -> None:
    """Refuse lists, dicts, bytes and other objects where text or dates are expected."""
    for name, column in frame.items():
        if column.dtype != object or pd.api.types.infer_dtype(column) == "string":
            continue
        for row, value in enumerate(column):
            if isinstance(value, bytes) or not pd.api.types.is_scalar(value):
                raise FileLayoutError(
                    f"{source.place(row)} has {quote(value)} in column {name!r}; "
                    "expected text, numbers or dates."
                )


def _column(
    argument: str,
    given: str | None,
    defaults: tuple[str, ...],
    known: list[str],
    source: _Source,
) -> str | None:
    """The column that is given or, of the usual names, the first that is there."""
    if given is None:
        plain = {name.lower(): name for name in reversed(known)}
        return next((plain[name] for name in defaults if name in plain), None)
    if given not in known:
        raise FileLayoutError(
            f"{argument}={given!r}: {source.name} has no such column. "
            f"{nearest(given, known)}"
        )
    return given


def _from_wide(
    frame: pd.DataFrame,
    times: pd.DatetimeIndex,
    time: str,
    freq: Any,
    target: str | None,
    source: _Source,
) -> PlainSeries:
    """Every column but that of the timestamps is a series."""
    named = [name for name in frame.columns if not name.startswith("Unnamed: ")]
    names = [name for name in named if name != time]
    if target is not None:
        names = [_column("target", target, (), names, source) or target]
    if not names:
        raise FileLayoutError(
            f"{source.name} has timestamps, but no column with values beside {time!r}."
        )
    rows = np.arange(len(times))
    _check_order(times, rows, None, source)
    values = _matrix(frame, names, source)
    freq = _infer(times, source) if freq is None else step_frequency(freq, times[0])
    steps = _positions(times, rows, freq, source)
    if steps[-1] + 1 > len(steps):
        given, values = values, np.full((len(names), steps[-1] + 1), np.nan)
        values[:, steps] = given
    moments = pd.date_range(times[0], periods=values.shape[1], freq=parse_offset(freq))
    spans = [_observed_span(row) for row in values]
    return PlainSeries(
        freq,
        names,
        [moments[begin] for begin, _ in spans],
        [row[begin:end] for row, (begin, end) in zip(values, spans, strict=True)],
    )


def _observed_span(values: np.ndarray) -> tuple[int, int]:
    """Where a series begins and ends: what is missing before and after is not of it."""
    if not np.isnan(values[[0, -1]]).any():
        return 0, len(values)
    (observed,) = np.nonzero(~np.isnan(values))
    return (observed[0], observed[-1] + 1) if len(observed) else (0, len(values))


def _from_long(
    frame: pd.DataFrame,
    times: pd.DatetimeIndex,
    item: str,
    target: str,
    freq: Any,
    source: _Source,
) -> PlainSeries:
    """Every row is a value of the series that it names."""
    codes, names = pd.factorize(frame[item])
    if (codes < 0).any():
        raise FileLayoutError(
            f"{source.place(int(codes.argmin()))} has no {item!r}; every row needs the "
            "name of its series."
        )
    order = np.argsort(codes, kind="stable")
    sizes = np.bincount(codes)
    edges = np.concatenate([[0], sizes.cumsum()])
    _check_order(times[order], order, codes[order], source)
    values = _matrix(frame, [target], source)[0][order]
    times = times[order]
    if freq is None:
        longest = int(sizes.argmax())
        freq = _infer(times[edges[longest] : edges[longest + 1]], source)
    else:
        freq = step_frequency(freq, times[0])
    starts, targets = [], []
    for begin, end in itertools.pairwise(edges.tolist()):
        steps = _positions(times[begin:end], order[begin:end], freq, source)
        filled = np.full(steps[-1] + 1, np.nan)
        filled[steps] = values[begin:end]
        starts.append(times[begin])
        targets.append(filled)
    return PlainSeries(freq, [str(name) for name in names], starts, targets)


def _matrix(frame: pd.DataFrame, names: list[str], source: _Source) -> np.ndarray:
    """The named columns as rows of floats."""
    values = np.empty((len(names), len(frame)))
    for row, name in enumerate(names):
        values[row] = _numbers(frame[name], name, source)
    return _finite(values, names, source)


def _numbers(column: pd.Series, name: str, source: _Source) -> np.ndarray:
    if column.dtype.kind in "biuf":
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    if column.dtype.kind in "mM":
        raise FileLayoutError(
            f"column {name!r} of {source.name} holds dates, not numbers."
        )
    _check_plain(column.to_frame(name), source)
    numbers = pd.to_numeric(column, errors="coerce")
    text = (numbers.isna() & column.notna()).to_numpy()
    if text.any():
        row = int(text.argmax())
        top = source.unit == "line" and row + source.first == 1
        header = " A file read with start= has no header." if top else ""
        raise FileLayoutError(
            f"{source.place(row)} has {quote(column.iloc[row])} in column {name!r}, "
            "which is not a number; values are written 1.5, separated by commas, and "
            f"left empty where missing.{header}"
        )
    return numbers.to_numpy(dtype=np.float64, na_value=np.nan)


def _finite(values: np.ndarray, names: list[str], source: _Source) -> np.ndarray:
    for name, row in zip(names, values):
        infinite = np.isinf(row)
        if infinite.any():
            raise InfiniteValuesError(
                f"{source.place(int(infinite.argmax()))} is infinite in column {name!r}; "
                "replace the value, or leave it empty."
            )
    return values


def _moments(column: pd.Series, source: _Source) -> pd.DatetimeIndex:
    """A column of timestamps; text has the year first, so that it means one day only."""
    remedy = (
        f"column {column.name!r} is read as the timestamps, which are written 2024-01-31 "
        "or 2024-01-31 13:00"
    )
    if column.dtype.kind in "biuf":
        raise FileLayoutError(
            f"{source.place(0)} has the number {column.iloc[0]}, but {remedy}; name "
            "another column with timestamp=, or give start= and freq= for values without "
            "header and timestamps."
        )
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    dates = column.dtype.kind == "M" or isinstance(column.dtype, pd.DatetimeTZDtype)
    moments = column if dates else _parse(column)
    if moments.dtype.kind != "M" or isinstance(moments.dtype, pd.DatetimeTZDtype):
        raise FileLayoutError(
            f"{source.place(0)} has {str(column.iloc[0])!r} with a time zone, but "
            f"{remedy}; convert them to UTC and drop it: "
            "times.dt.tz_convert('UTC').dt.tz_localize(None)."
        )
    bad = moments.isna().to_numpy()
    if bad.any():
        row = int(bad.argmax())
        raise FileLayoutError(
            f"{source.place(row)} has {column.iloc[row]!r}, but {remedy}."
        )
    return pd.DatetimeIndex(moments)


def _parse(column: pd.Series) -> pd.Series:
    """Text as dates, each parsed once; NaT where it is none that has the year first."""
    codes, distinct = pd.factorize(column)
    texts = pd.Series(distinct, dtype=object)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is not understood is NaT
        moments = pd.to_datetime(texts, errors="coerce")
    moments = moments.where(texts.astype(str).str.match(r"\d{4}\D?\d"))
    return moments.reindex(codes)  # where the text is missing there is no such row


def _check_order(
    times: pd.DatetimeIndex, rows: np.ndarray, codes: np.ndarray | None, source: _Source
) -> None:
    """Moments of a series go forward; ``rows`` says where each was read."""
    steps = np.diff(nanoseconds(times))
    wrong = steps <= 0
    if codes is not None:
        wrong &= codes[1:] == codes[:-1]
    if not wrong.any():
        return
    place = int(wrong.argmax()) + 1
    here = f"{source.place(int(rows[place]))} has {times[place]}"
    if steps[place - 1] == 0:
        raise FileLayoutError(
            f"{here}, which the series has already; keep one row for each timestamp (a "
            "table of several series in long form needs item_id=)."
        )
    raise FileLayoutError(
        f"{here} after {times[place - 1]}; sort the rows by time before loading them."
    )


def _infer(times: pd.DatetimeIndex, source: _Source) -> str:
    """The frequency of the timestamps, by their most common distance if some lack."""
    freq = pd.infer_freq(times) if len(times) > 2 else None
    if freq is not None:
        return str(freq)
    if len(times) > 2:
        steps, counts = np.unique(np.diff(nanoseconds(times)), return_counts=True)
        usual = pd.Timedelta(int(steps[counts.argmax()]), "ns")
        named = ["B"] if usual == pd.Timedelta(1, "D") else []
        if usual >= pd.Timedelta(28, "D"):
            named = ["MS", "M"]  # months differ in length
        for freq in named:
            if all(map(parse_offset(freq).is_on_offset, times)):
                return freq
        if (counts == counts.max()).sum() == 1:
            return str(parse_offset(usual).freqstr)
    raise FrequencyError(
        f"the frequency of {source.name} cannot be told from its {len(times)} timestamps "
        f"({shorten([str(time) for time in times], 3)}); give it, e.g. freq='h'."
    )


def _positions(
    times: pd.DatetimeIndex, rows: np.ndarray, freq: str, source: _Source
) -> np.ndarray:
    """The step of each moment, counted from the first."""
    offset, first = parse_offset(freq), times[0]
    if isinstance(offset, Tick):
        distance = nanoseconds(times) - nanoseconds(times[:1])
        steps, misfit = distance // offset.nanos, distance % offset.nanos != 0
    else:
        later = pd.date_range(first + offset, times[-1], freq=offset)
        steps = pd.DatetimeIndex([first]).append(later).get_indexer(times)
        misfit = steps < 0
    if misfit.any():
        place = int(misfit.argmax())
        raise FileLayoutError(
            f"{source.place(int(rows[place]))} has {times[place]}, which is no whole "
            f"number of steps of freq={freq!r} after {first}; give the frequency of the "
            "data with freq=, or correct the timestamp."
        )
    if steps[-1] >= MAX_STEPS_A_ROW * len(steps):
        raise FrequencyError(
            f"freq={freq!r} makes {steps[-1] + 1:,} steps of the {len(steps)} rows from "
            f"{first} to {times[-1]} of {source.name}; give the frequency of the data."
        )
    return steps
