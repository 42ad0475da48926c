"""Series from data frames: wide or long with timestamps, or one row per step."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from pts_scott._utils.text import shorten
from pts_scott.data.offsets import moment_of, parse_offset
from pts_scott.datasets.cells import (
    numeric_rows,
    reject_objects,
    time_zone_error,
    timestamps,
)
from pts_scott.datasets.columns import (
    ITEM_IDS,
    TARGETS,
    TIMESTAMPS,
    Columns,
    check_unique,
    find_column,
    find_timestamps,
    has_name,
)
from pts_scott.datasets.features import check_complete, check_features
from pts_scott.datasets.frequency import (
    check_distinct,
    infer_frequency,
    step_positions,
    timestamp_frequency,
)
from pts_scott.datasets.raw_series import RawSeries, Source
from pts_scott.errors import FileLayoutError


def series_from_frame(
    frame: pd.DataFrame,
    start: Any = None,
    freq: Any = None,
    columns: Columns | None = None,
    name: str = "the DataFrame",
) -> RawSeries:
    """Read a data frame.

    Parameters
    ----------
    frame
        In wide or long form, with timestamps in a column or in the index; with
        ``start``, one row per step and one column per series.
    start, freq
        First step and frequency.
    columns
        Names of the columns.
    name
        Of the frame, for error messages.

    Raises
    ------
    FileLayoutError, FrequencyError, InfiniteValuesError
    """
    columns, source = columns or Columns(), Source(name)
    frame = frame.set_axis([str(column) for column in frame.columns], axis=1)
    check_unique(list(frame.columns), name)
    if frame.empty:
        raise FileLayoutError(f"{name} is empty: it has no rows or no columns.")
    if start is not None:
        columns.reject("with start= every column is a series")
        names = list(frame.columns)
        return regular_series(numeric_rows(frame, names, source), names, start, freq)
    index = frame.index
    if isinstance(index, pd.MultiIndex):
        frame = frame.reset_index()
    elif isinstance(index, pd.DatetimeIndex | pd.PeriodIndex):
        if getattr(index, "tz", None) is not None:
            remedy = "frame.index = pd.to_datetime(frame.index, utc=True)"
            raise time_zone_error(index[0], source, f"{remedy}.tz_localize(None)")
        moments = index.to_timestamp() if isinstance(index, pd.PeriodIndex) else index
        label = str(index.name or TIMESTAMPS[0])
        if columns.timestamp in (None, label) and label not in frame.columns:
            frame = frame.reset_index(drop=True)
            frame.insert(0, label, moments)
            columns = replace(columns, timestamp=label)
    return series_from_table(frame, freq, columns, source)


def regular_series(
    values: np.ndarray, names: list[str], start: Any, freq: Any
) -> RawSeries:
    """Return series that all begin at ``start``; each row of ``values`` is one."""
    first = moment_of(start)
    return RawSeries(
        timestamp_frequency(freq, first), names, [first] * len(names), list(values)
    )


def series_from_table(
    frame: pd.DataFrame, freq: Any, columns: Columns, source: Source
) -> RawSeries:
    """Read a table with a column of timestamps, in long or wide form."""
    known, table = list(frame.columns), source.name
    time = find_timestamps(columns.timestamp, frame, table)
    item = find_column("item_id", columns.item_id, ITEM_IDS, known, table)
    reject_objects(frame[[time] if item is None else [time, item]], source)
    times = timestamps(frame[time], source)
    features = [*columns.known, *columns.past]
    target = columns.target
    if item is not None or features:
        target = find_column("target", target, TARGETS, known, table)
        if target is None:
            has = "features" if item is None else f"a column {item!r}"
            raise FileLayoutError(
                f"{table} has {has}, but none of {', '.join(TARGETS)}; name the column "
                f"of the values with target=. It has {shorten(known)}."
            )
        read = [name for name in (time, item, target) if name is not None]
        check_features(features, read, known, table)
        series = _long_series(frame, times, item, target, freq, columns, source)
        read += features
    else:
        series = _wide_series(frame, times, time, freq, target, source)
        read = [time, *series.item_ids]
    unread = [name for name in known if name not in read and has_name(name)]
    return replace(series, unread=unread)


def _wide_series(
    frame: pd.DataFrame,
    times: pd.DatetimeIndex,
    time: str,
    freq: Any,
    target: str | None,
    source: Source,
) -> RawSeries:
    """Read every column except the timestamps, or only ``target``, as a series."""
    names = [name for name in frame.columns if has_name(name) and name != time]
    if target is not None:
        names = [find_column("target", target, (), names, source.name) or target]
    if not names:
        raise FileLayoutError(
            f"{source.name} has timestamps, but no column with values besides {time!r}."
        )
    _check_no_names(frame, names, source)
    values = numeric_rows(frame, names, source)
    rows = np.argsort(times, kind="stable")
    moved = not (np.diff(rows) > 0).all()
    times, values = times[rows], values[:, rows]
    check_distinct(times, rows, None, source)
    if freq is None:
        freq = infer_frequency(times, source)
    else:
        freq = timestamp_frequency(freq, times[0])
    steps = step_positions(times, rows, freq, source)
    if steps[-1] + 1 > len(steps):
        given, values = values, np.full((len(names), steps[-1] + 1), np.nan)
        values[:, steps] = given
    moments = pd.date_range(times[0], periods=values.shape[1], freq=parse_offset(freq))
    spans = [_observed_span(row) for row in values]
    return RawSeries(
        freq,
        names,
        [moments[begin] for begin, _ in spans],
        [row[begin:end] for row, (begin, end) in zip(values, spans, strict=True)],
        remarks=[_sorted_remark(source)] if moved else [],
    )


def _check_no_names(frame: pd.DataFrame, names: list[str], source: Source) -> None:
    """Raise if a column seems to hold the names of series: a table in long form."""
    text = [
        name
        for name in names
        if pd.api.types.infer_dtype(frame[name], skipna=True) in ("string", "categorical")
        and pd.to_numeric(frame[name].astype(object), errors="coerce").isna().all()
        and frame[name].notna().any()
    ]
    others = [name for name in names if name not in text]
    if text and others:
        raise FileLayoutError(
            f"column {text[0]!r} of {source.name} holds text. If it names the series, "
            f"pass item_id={text[0]!r} and target={others[0]!r}, or whichever column has "
            "the values; otherwise drop it."
        )


def _sorted_remark(source: Source) -> str:
    return f"The rows of {source.name} were not in order of time, and were sorted."


def _observed_span(values: np.ndarray) -> tuple[int, int]:
    """Return begin and end of a series without missing values before and after it."""
    if not np.isnan(values[[0, -1]]).any():
        return 0, len(values)
    (observed,) = np.nonzero(~np.isnan(values))
    return (observed[0], observed[-1] + 1) if len(observed) else (0, len(values))


def _long_series(
    frame: pd.DataFrame,
    times: pd.DatetimeIndex,
    item: str | None,
    target: str,
    freq: Any,
    columns: Columns,
    source: Source,
) -> RawSeries:
    """Read every row as one value of the series that it names, with its features."""
    if item is None:  # a single series with features
        codes, names = np.zeros(len(frame), dtype=np.int64), pd.Index([target])
    else:
        codes, names = pd.factorize(frame[item])
    if (codes < 0).any():
        raise FileLayoutError(
            f"{source.place(int(codes.argmin()))} has no {item!r}; every row needs the "
            "name of its series."
        )
    order = np.lexsort((times, codes))
    moved = not np.array_equal(order, np.argsort(codes, kind="stable"))
    sizes = np.bincount(codes)
    edges = np.concatenate([[0], sizes.cumsum()])
    check_distinct(times[order], order, codes[order], source)
    features = [*columns.known, *columns.past]
    values = numeric_rows(frame, [target, *features], source)[:, order]
    times = times[order]
    if freq is None:
        longest = int(sizes.argmax())
        freq = infer_frequency(times[edges[longest] : edges[longest + 1]], source)
    else:
        freq = timestamp_frequency(freq, times[0])
    series = RawSeries(freq, [str(name) for name in names], [], [])
    shortened = []
    for begin, end in itertools.pairwise(edges.tolist()):
        steps = step_positions(times[begin:end], order[begin:end], freq, source)
        filled = np.full((len(values), steps[-1] + 1), np.nan)
        filled[:, steps] = values[:, begin:end]
        if _add_steps(series, times[begin], filled, columns):
            shortened.append(series.item_ids[len(series.targets) - 1])
    remarks = [_sorted_remark(source)] if moved else []
    if shortened:
        remarks.append(
            f"Rows without a target at the ends of series {shorten(shortened)} were left "
            "out."
        )
    return replace(series, remarks=remarks)


def _add_steps(
    series: RawSeries, start: pd.Timestamp, values: np.ndarray, columns: Columns
) -> bool:
    """Add the target and the features of one series: the rows of ``values``.

    It begins with its first target and ends with its last, as in a wide frame. If
    features are known in advance, rows after the last target are those to forecast.

    Returns
    -------
    Whether rows were left out.
    """
    item_id = series.item_ids[len(series.targets)]
    begin, end = _observed_span(values[0])
    known, past = np.split(values[1:, begin:], [len(columns.known)])
    past = past[:, : end - begin]

    def moment(step: int) -> pd.Timestamp:
        periods, offset = begin + step + 1, parse_offset(series.freq)
        return pd.date_range(start, periods=periods, freq=offset)[-1]

    check_complete(known, columns.known, item_id, moment)
    check_complete(past, columns.past, item_id, moment)
    series.starts.append(moment(0) if begin else start)
    series.targets.append(values[0, begin:end])
    if columns.known:
        series.known.append(known)
    if columns.past:
        series.past.append(past)
    return begin > 0 or (end < values.shape[1] and not columns.known)
