"""Wide and long data frames: what is read and what is rejected."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.loaded_series import assert_targets, hourly_frame

from pts_scott.data.offsets import parse_offset
from pts_scott.datasets.columns import Columns
from pts_scott.datasets.readers import read_file
from pts_scott.datasets.tables import series_from_frame
from pts_scott.errors import FileLayoutError


@pytest.mark.parametrize("index", ["datetime", "named", "period"])
def test_frame_with_a_time_index_is_read(index):
    frame = hourly_frame().set_index("timestamp")
    frame.index.name = "when" if index == "named" else None
    if index == "period":
        frame.index = frame.index.to_period(parse_offset("h"))
    read = series_from_frame(frame)
    assert read.item_ids == ["a", "b"]
    assert_targets(read, [frame["a"], frame["b"]])
    assert read.starts[0] == pd.Timestamp("2020-01-01")


def test_frame_without_times_begins_at_start():
    frame = pd.DataFrame(np.arange(8.0).reshape(4, 2))
    read = series_from_frame(frame, "2020-01-01", "D")
    assert_targets(read, frame.to_numpy().T)
    assert (read.item_ids, read.freq) == (["0", "1"], "D")


def test_frame_is_not_modified():
    frame = hourly_frame().set_index("timestamp")
    before = frame.copy()
    series_from_frame(frame)
    pd.testing.assert_frame_equal(frame, before)


def test_missing_values_at_both_ends_of_a_wide_column_are_trimmed():
    times = pd.date_range("2024-01-01", periods=5, freq="D")
    frame = pd.DataFrame(
        {"a": [np.nan, 1.0, np.nan, 2.0, np.nan], "b": np.arange(5.0)}, index=times
    )
    data = series_from_frame(frame)
    assert list(data.starts) == [times[1], times[0]]
    np.testing.assert_array_equal(data.targets[0], [1.0, np.nan, 2.0])
    np.testing.assert_array_equal(data.targets[1], np.arange(5.0))


def test_target_selects_one_column_of_a_wide_table():
    assert series_from_frame(hourly_frame(), columns=Columns(target="b")).item_ids == [
        "b"
    ]


def long_frame():
    first = hourly_frame(4, y=np.arange(4.0)).assign(unique_id="b")
    second = hourly_frame(6, "2020-01-01 03:00", y=np.arange(6.0) + 10).assign(
        unique_id="a"
    )
    return pd.concat([first, second]).rename(columns={"timestamp": "ds"})


@pytest.mark.parametrize("mixed", [False, True])
def test_series_of_a_long_table_have_their_own_starts_and_ends(mixed):
    frame = long_frame()
    if mixed:  # sorted by time, so that the series take turns
        frame = frame.sort_values("ds", kind="stable")
    read = series_from_frame(frame)
    assert read.item_ids == ["b", "a"]
    assert [start.hour for start in read.starts] == [0, 3]
    assert_targets(read, [np.arange(4), np.arange(6) + 10])


def test_columns_of_a_long_table_can_be_named(write):
    frame = long_frame().rename(columns={"ds": "t", "unique_id": "id", "y": "load"})
    frame["id"] = "client, " + frame["id"]  # which CSV puts into quotes
    path = write(frame.to_csv(index=False), "my.csv")
    read = read_file(path, columns=Columns("t", "id", "load"))
    assert read.item_ids == ["client, b", "client, a"]
    assert_targets(read, [np.arange(4), np.arange(6) + 10])


@pytest.mark.parametrize("long", [False, True])
def test_gaps_in_time_become_missing_values(long):
    frame = hourly_frame(8, y=np.arange(8.0))
    if long:
        frame["item_id"] = "s"
    read = series_from_frame(frame.drop([2, 3, 6]))
    assert parse_offset(read.freq) == parse_offset("h")
    assert_targets(read, [[0, 1, np.nan, np.nan, 4, 5, np.nan, 7]])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (Columns(timestamp="timestmp"), "timestamp='timestmp'.* 'timestamp'"),
        (Columns(item_id="sensor"), "item_id='sensor': .* no such column"),
        (Columns(target="c"), "target='c': .* Known names: 'a', 'b'"),
    ],
)
def test_unknown_column_error_suggests_known_ones(columns, words):
    with pytest.raises(FileLayoutError, match=words):
        series_from_frame(hourly_frame(), columns=columns)


def row(frame, number, **values):
    frame = frame.astype({name: object for name in values if name != "timestamp"})
    for name, value in values.items():
        frame.loc[number, name] = value
    return frame


def test_frame_without_rows_or_numbers_is_rejected():
    with pytest.raises(FileLayoutError, match="DataFrame is empty"):
        series_from_frame(pd.DataFrame())
    with pytest.raises(FileLayoutError, match="row 2 of the DataFrame has 'x'"):
        series_from_frame(row(hourly_frame(), 2, a="x"))
    with pytest.raises(FileLayoutError, match="'other' .* holds dates"):
        series_from_frame(hourly_frame().assign(other=hourly_frame()["timestamp"]))
    with pytest.raises(FileLayoutError, match="'a' more than once"):
        series_from_frame(hourly_frame().rename(columns={"b": "a"}))


def test_long_table_without_item_id_error_asks_for_it():
    with pytest.raises(FileLayoutError, match="long form needs item_id="):
        series_from_frame(
            pd.concat([hourly_frame(3), hourly_frame(3)]).sort_values("timestamp")
        )


def test_nullable_numbers_are_read():
    frame = hourly_frame().assign(a=pd.array([1, None, 3, 4, 5, 6], dtype="Int64"))
    assert_targets(
        series_from_frame(frame[["timestamp", "a"]]), [[1, np.nan, 3, 4, 5, 6]]
    )
