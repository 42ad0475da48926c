"""Frequencies: how steps are spaced, and which step each timestamp belongs to."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
from gluonts.dataset.common import ListDataset
from pandas.tseries.offsets import BusinessDay, Tick

from pts_scott._utils.text import shorten
from pts_scott.data.offsets import nanoseconds, parse_offset
from pts_scott.datasets.raw_series import Source
from pts_scott.errors import FileLayoutError, FrequencyError

MAX_STEPS_PER_ROW = 1000  # a frequency that yields more is wrong


def timestamp_frequency(freq: Any, start: pd.Timestamp) -> str:
    """Return the frequency of the timestamps at which steps begin.

    Months dated by their first day have the frequency 'M' as pandas periods, but their
    first days are spaced by 'MS'. The same holds for weeks, quarters and years.
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


def gluonts_frequency(freq: str) -> str:
    """Return the frequency as datasets of the installed GluonTS expect it.

    From 0.10 on they convert starts to periods, whose frequencies have other names:
    'MS' becomes 'M'.
    """
    sample = ListDataset([{"start": "1970-01-01", "target": [0.0]}], freq="D")
    if not isinstance(next(iter(sample))["start"], pd.Period):
        return freq
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            steps = pd.date_range("1970-01-01", periods=1, freq=parse_offset(freq))
            return str(steps.to_period().freq.freqstr)
        except (ValueError, AttributeError):  # not a period: GluonTS raises its own error
            return freq


def infer_frequency(times: pd.DatetimeIndex, source: Source) -> str:
    """Infer the frequency of timestamps, from their most common distance across gaps.

    Raises
    ------
    FrequencyError
        If there are fewer than three timestamps, or no single distance is most common.
    """
    freq = pd.infer_freq(times) if len(times) > 2 else None
    if freq is not None:
        return str(freq)
    if len(times) > 2:
        distances, counts = np.unique(np.diff(nanoseconds(times)), return_counts=True)
        usual = pd.Timedelta(int(distances[counts.argmax()]), "ns")
        candidates = ["B"] if usual == pd.Timedelta(1, "D") else []
        if usual >= pd.Timedelta(28, "D"):
            candidates = ["MS", "M"]  # months differ in length
        for freq in candidates:
            if all(map(parse_offset(freq).is_on_offset, times)):
                return freq
        if (counts == counts.max()).sum() == 1:
            return str(parse_offset(usual).freqstr)
    raise FrequencyError(
        f"the frequency of {source.name} cannot be inferred from its {len(times)} "
        f"timestamps ({shorten([str(time) for time in times], 3)}); pass it, e.g. "
        "freq='h'."
    )


def check_distinct(
    times: pd.DatetimeIndex, rows: np.ndarray, codes: np.ndarray | None, source: Source
) -> None:
    """Raise if a timestamp occurs twice in a series.

    Parameters
    ----------
    times
        Sorted timestamps, series after series.
    rows
        The row from which each timestamp was read.
    codes
        The series of each timestamp; None if there is only one.
    source
        Where they were read.
    """
    twice = np.diff(nanoseconds(times)) == 0
    if codes is not None:
        twice &= codes[1:] == codes[:-1]
    if twice.any():
        position = int(twice.argmax()) + 1
        raise FileLayoutError(
            f"{source.place(int(rows[position]))} has {times[position]}, which the "
            "series has already; keep one row per timestamp (a table of several series "
            "in long form needs item_id=)."
        )


def step_positions(
    times: pd.DatetimeIndex, rows: np.ndarray, freq: str, source: Source
) -> np.ndarray:
    """Return the step of each timestamp, counted from the first.

    Raises
    ------
    FileLayoutError
        If a timestamp lies between two steps.
    FrequencyError
        If there are far more steps than timestamps.
    """
    offset, first = parse_offset(freq), times[0]
    if isinstance(offset, Tick):
        distance = nanoseconds(times) - nanoseconds(times[:1])
        steps, misfit = distance // offset.nanos, distance % offset.nanos != 0
    else:
        later = pd.date_range(first + offset, times[-1], freq=offset)
        steps = pd.DatetimeIndex([first]).append(later).get_indexer(times)
        misfit = steps < 0
    if misfit.any():
        position = int(misfit.argmax())
        raise FileLayoutError(
            f"{source.place(int(rows[position]))} has {times[position]}, which is not a "
            f"whole number of steps of freq={freq!r} after {first}; pass the frequency "
            "of the data as freq=, or correct the timestamp."
        )
    if steps[-1] >= MAX_STEPS_PER_ROW * len(steps):
        raise FrequencyError(
            f"freq={freq!r} turns the {len(steps)} rows of {source.name} from {first} to "
            f"{times[-1]} into {steps[-1] + 1:,} steps; pass the frequency of the data."
        )
    return steps
