"""Series as ``load`` returns them, for tests of reports, splits and real data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pts_scott import datasets
from pts_scott.data.offsets import parse_offset
from pts_scott.datasets.known import KNOWN
from pts_scott.datasets.raw_series import RawSeries
from pts_scott.datasets.series_data import SeriesData


def load_real(name: str, **arguments: Any) -> SeriesData:
    """Load a dataset from the data folder, or skip the test."""
    folder = os.environ.get("PTS_SCOTT_DATA")
    if not folder or KNOWN[name].find(Path(folder)) is None:
        pytest.skip(f"PTS_SCOTT_DATA does not name a folder with {KNOWN[name].file}")
    return datasets.load(name, **arguments)


def load_targets(
    *targets: Any, freq: str = "h", starts: Any = "2020-01-01"
) -> SeriesData:
    """Load series s0, s1, … with these values."""
    starts = [starts] * len(targets) if isinstance(starts, str) else starts
    entries = [
        {"item_id": f"s{number}", "start": pd.Timestamp(start), "target": target}
        for number, (start, target) in enumerate(zip(starts, targets))
    ]
    return datasets.load(entries, freq=freq)


def ramp(length: int = 200) -> np.ndarray:
    return np.arange(1.0, length + 1)


def moments(data: SeriesData, row: int = 0) -> list[pd.Timestamp]:
    """Return the moments of one series, without its timeline."""
    offset = parse_offset(data.freq)
    later = [data.starts[row] + k * offset for k in range(1, len(data.targets[row]))]
    return [data.starts[row], *later]


def assert_targets(read: RawSeries, targets: Any) -> None:
    assert len(read.targets) == len(targets)
    for given, expected in zip(read.targets, targets):
        assert given.dtype == np.float64
        np.testing.assert_array_equal(given, expected)


def hourly_frame(rows: int = 6, start: str = "2020-01-01", **columns: Any) -> Any:
    """Return a wide table with an hourly timestamp column and two series."""
    times = pd.date_range(start, periods=rows, freq=parse_offset("h"))
    columns = columns or {"a": np.arange(rows) + 0.5, "b": np.arange(rows) * 2.0}
    return pd.DataFrame({"timestamp": times, **columns})
