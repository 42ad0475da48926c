"""Series from files, frames and entries: what is read, and what is refused, and how."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pandas as pd
import pytest
from gluonts.dataset.common import ListDataset
from helpers.series import wave_entries

from pts_scott.data.offsets import parse_offset
from pts_scott.datasets.series_files import Columns, read_entries, read_file, read_frame
from pts_scott.errors import (
    ArgumentError,
    DataError,
    DatasetNotFoundError,
    FileLayoutError,
    FrequencyError,
    InfiniteValuesError,
    MissingExtraError,
    MixedFrequencyError,
)

START = {"start": "2020-01-01", "freq": "h"}


@pytest.fixture
def write(tmp_path):
    """Write a text into a file of that name, packed if the name says so."""

    def write(text, name="my.txt"):
        path = tmp_path / name
        data = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def hourly(rows=6, start="2020-01-01", **columns):
    times = pd.date_range(start, periods=rows, freq=parse_offset("h"))
    columns = columns or {"a": np.arange(rows) + 0.5, "b": np.arange(rows) * 2.0}
    return pd.DataFrame({"timestamp": times, **columns})


def same(read, targets):
    assert len(read.targets) == len(targets)
    for given, expected in zip(read.targets, targets):
        assert given.dtype == np.float64
        np.testing.assert_array_equal(given, expected)


# Text without header: one row a step, one column a series.


@pytest.mark.parametrize("name", ["my.txt", "my.txt.gz", "my.csv", "my.csv.gz"])
def test_a_text_file_has_one_row_a_step_and_one_column_a_series(write, name):
    read = read_file(write("1,2.5\n3,4e-1\n5,0\n", name), **START)
    same(read, [[1, 3, 5], [2.5, 0.4, 0]])
    assert read.item_ids == ["0", "1"]
    assert read.starts == [pd.Timestamp("2020-01-01")] * 2
    assert read.freq == "h"


def test_empty_fields_and_nan_are_missing_values(write):
    read = read_file(write("1.0,,2.0\nnan,3,NA\n"), **START)
    same(read, [[1, np.nan], [np.nan, 3], [2, np.nan]])


def test_line_ends_of_other_systems_and_a_byte_order_mark_are_read(write):
    same(read_file(write(b"\xef\xbb\xbf1,2\r\n3,4\r\n\r\n"), **START), [[1, 3], [2, 4]])


def test_the_values_are_those_of_the_text(write):
    rows = np.random.default_rng(0).standard_normal((50, 7)).round(6)
    text = "\n".join(",".join(map(str, row)) for row in rows)
    same(read_file(write(text), **START), rows.T)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("1,2,3\n4,5\n", FileLayoutError, "line 2 of my.txt has 2 values.* first .* 3"),
        ("1,2,3\n4,5,6,7\n", FileLayoutError, "line 2 of my.txt has 4 values"),
        ("1,2\n\n4,5\n", FileLayoutError, "line 2 of my.txt is empty"),
        ("1,2\n3,abc\n", FileLayoutError, "line 2 of my.txt has 'abc' in column '1'"),
        ("a,b\n3,4\n", FileLayoutError, "line 1 .* 'a' .* no header"),
        ("1;2\n3;4\n", FileLayoutError, "'1;2' .* separated by commas"),
        ("1,2\n3,inf\n", InfiniteValuesError, "line 2 of my.txt .* column '1'"),
        ("1,2\n-1e999,4\n", FileLayoutError, "line 2 of my.txt has '-1e999'"),
        ("", FileLayoutError, "my.txt is empty"),
        (" \n\n", FileLayoutError, "my.txt is empty"),
        (b"1,2\n\xff\xfe,4\n", FileLayoutError, "UTF-8"),
    ],
)
def test_a_bad_text_file_is_refused_by_line_and_column(write, text, error, words):
    with pytest.raises(error, match=words):
        read_file(write(text), **START)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, ArgumentError, "my.txt has no timestamps, so it needs start and freq"),
        ({"start": "2020-01-01"}, ArgumentError, "start and freq"),
        ({"start": "someday", "freq": "h"}, DataError, "'someday' is not a date"),
        ({"start": "2020-01-01", "freq": "hourly"}, FrequencyError, "'hourly'"),
        ({"start": "2020-01-01T00:00Z", "freq": "h"}, DataError, "time zone"),
        ({**START, "columns": Columns("date")}, ArgumentError, "timestamp name columns"),
    ],
)
def test_start_and_frequency_of_a_text_file_are_checked(write, arguments, error, words):
    with pytest.raises(error, match=words):
        read_file(write("1,2\n3,4\n"), **arguments)


def test_a_csv_file_with_start_needs_a_frequency(write):
    with pytest.raises(FrequencyError, match="freq is missing"):
        read_file(write("1,2\n3,4\n", "my.csv"), start="2020-01-01")


def test_files_that_are_not_there_or_not_readable_are_named(write, tmp_path):
    with pytest.raises(DatasetNotFoundError, match="no file .*none.csv"):
        read_file(tmp_path / "none.csv")
    with pytest.raises(FileLayoutError, match="is a folder"):
        read_file(tmp_path)
    with pytest.raises(FileLayoutError, match=r"my.xlsx ends in none of \.txt"):
        read_file(write("1", "my.xlsx"))


@pytest.mark.parametrize("cut", [0, 25])
def test_a_file_that_is_not_gzip_though_named_so_is_refused(tmp_path, cut):
    path = tmp_path / "my.txt.gz"
    path.write_bytes(gzip.compress(b"1,2\n3,4\n" * 9)[:cut] or b"1,2\n3,4\n")
    with pytest.raises(FileLayoutError, match="named .gz, but is not a whole gzip"):
        read_file(path, **START)


# Tables with timestamps.


@pytest.mark.parametrize("name", ["my.csv", "my.csv.gz", "my.parquet", None])
def test_every_other_column_of_a_wide_table_is_a_series(tmp_path, name):
    frame = hourly()
    if name is None:
        read = read_frame(frame)
    elif name.endswith("parquet"):
        pytest.importorskip("pyarrow")
        frame.to_parquet(tmp_path / name)
        read = read_file(tmp_path / name)
    else:
        frame.to_csv(tmp_path / name, index=False)
        read = read_file(tmp_path / name)
    same(read, [frame["a"], frame["b"]])
    assert read.item_ids == ["a", "b"]
    assert read.starts == [pd.Timestamp("2020-01-01")] * 2
    assert parse_offset(read.freq) == parse_offset("h")


@pytest.mark.parametrize("index", ["datetime", "named", "period"])
def test_a_frame_with_an_index_of_times_is_understood(index):
    frame = hourly().set_index("timestamp")
    frame.index.name = "when" if index == "named" else None
    if index == "period":
        frame.index = frame.index.to_period(parse_offset("h"))
    read = read_frame(frame)
    assert read.item_ids == ["a", "b"]
    same(read, [frame["a"], frame["b"]])
    assert read.starts[0] == pd.Timestamp("2020-01-01")


def test_a_frame_without_times_starts_where_it_is_told():
    frame = pd.DataFrame(np.arange(8.0).reshape(4, 2))
    read = read_frame(frame, "2020-01-01", "D")
    same(read, frame.to_numpy().T)
    assert (read.item_ids, read.freq) == (["0", "1"], "D")


def test_the_frame_is_left_as_it_was():
    frame = hourly().set_index("timestamp")
    before = frame.copy()
    read_frame(frame)
    pd.testing.assert_frame_equal(frame, before)


def test_a_column_of_row_numbers_without_a_name_is_no_series(tmp_path):
    hourly().to_csv(tmp_path / "my.csv")
    assert read_file(tmp_path / "my.csv").item_ids == ["a", "b"]


def test_a_series_of_a_wide_table_begins_and_ends_with_its_values():
    times = pd.date_range("2024-01-01", periods=5, freq="D")
    frame = pd.DataFrame(
        {"a": [np.nan, 1.0, np.nan, 2.0, np.nan], "b": np.arange(5.0)}, index=times
    )
    data = read_frame(frame)
    assert list(data.starts) == [times[1], times[0]]
    np.testing.assert_array_equal(data.targets[0], [1.0, np.nan, 2.0])
    np.testing.assert_array_equal(data.targets[1], np.arange(5.0))


def test_one_column_of_a_wide_table_can_be_picked():
    assert read_frame(hourly(), columns=Columns(target="b")).item_ids == ["b"]


def test_the_first_column_is_the_timestamps_if_none_is_named_so(write):
    text = "When,a\n2020-01-01,1\n2020-01-02,2\n2020-01-03,4\n"
    read = read_file(write(text, "my.csv"))
    assert (read.item_ids, read.freq) == (["a"], "D")


def long_frame():
    first = hourly(4, y=np.arange(4.0)).assign(unique_id="b")
    second = hourly(6, "2020-01-01 03:00", y=np.arange(6.0) + 10).assign(unique_id="a")
    return pd.concat([first, second]).rename(columns={"timestamp": "ds"})


@pytest.mark.parametrize("mixed", [False, True])
def test_series_of_a_long_table_have_starts_and_ends_of_their_own(mixed):
    frame = long_frame()
    if mixed:  # sorted by time, so that the series take turns
        frame = frame.sort_values("ds", kind="stable")
    read = read_frame(frame)
    assert read.item_ids == ["b", "a"]
    assert [start.hour for start in read.starts] == [0, 3]
    same(read, [np.arange(4), np.arange(6) + 10])


def test_columns_of_a_long_table_can_be_named(write):
    frame = long_frame().rename(columns={"ds": "t", "unique_id": "id", "y": "load"})
    frame["id"] = "client, " + frame["id"]  # which CSV puts into quotes
    path = write(frame.to_csv(index=False), "my.csv")
    read = read_file(path, columns=Columns("t", "id", "load"))
    assert read.item_ids == ["client, b", "client, a"]
    same(read, [np.arange(4), np.arange(6) + 10])


@pytest.mark.parametrize("long", [False, True])
def test_gaps_in_time_become_missing_values(long):
    frame = hourly(8, y=np.arange(8.0))
    if long:
        frame["item_id"] = "s"
    read = read_frame(frame.drop([2, 3, 6]))
    assert parse_offset(read.freq) == parse_offset("h")
    same(read, [[0, 1, np.nan, np.nan, 4, 5, np.nan, 7]])


@pytest.mark.parametrize("freq", ["h", "15min", "D", "B", "W-WED", "MS", "M", "QS", "2h"])
def test_the_frequency_is_inferred(freq):
    offset = parse_offset(freq)
    times = pd.date_range("2020-01-01", periods=30, freq=offset)
    read = read_frame(pd.DataFrame({"date": times, "a": np.arange(30.0)}))
    assert len(read.targets[0]) == 30
    steps = pd.date_range(times[0], periods=30, freq=parse_offset(read.freq))
    assert list(steps) == list(times)


@pytest.mark.parametrize("freq", ["h", "B", "MS", "M"])
def test_the_frequency_is_inferred_across_gaps(freq):
    times = pd.date_range("2020-01-01", periods=30, freq=parse_offset(freq))
    frame = pd.DataFrame({"date": times, "a": np.arange(30.0)})
    read = read_frame(frame.drop([5, 17]))
    assert parse_offset(read.freq) == parse_offset(freq)
    expected = np.arange(30.0)
    expected[[5, 17]] = np.nan
    same(read, [expected])


@pytest.mark.parametrize(
    ("freq", "moves"),
    [("M", "MS"), ("Q", "QS"), ("Y", "YS"), ("W-SUN", "W-MON")],
)
def test_steps_dated_by_their_first_day_move_from_first_day_to_first_day(freq, moves):
    start = {"W-SUN": "2024-01-01"}.get(freq, "2020-01-01")
    read = read_frame(pd.DataFrame({"a": np.arange(5.0)}), start, freq)
    expected = pd.date_range(start, periods=5, freq=parse_offset(moves))
    steps = pd.date_range(start, periods=5, freq=parse_offset(read.freq))
    assert list(steps) == list(expected)


def row(frame, number, **values):
    frame = frame.astype({name: object for name in values if name != "timestamp"})
    for name, value in values.items():
        frame.loc[number, name] = value
    return frame


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        (
            "date,a\n2020-01-01,1\n2020-01-02,2\n2020-01-02,3\n",
            FileLayoutError,
            "line 4 of my.csv has 2020-01-02.* already; keep one row",
        ),
        (
            "date,a\n2020-01-01,1\n2020-01-03,2\n2020-01-02,3\n",
            FileLayoutError,
            "line 4 .* 2020-01-02 .* after 2020-01-03.*; sort the rows",
        ),
        ("date,a\n2020-01-01,1\n,2\n", FileLayoutError, "line 3 .* nan, but .* 'date'"),
        ("date,a\n2020-01-01,1\nsoon,2\n", FileLayoutError, "line 3 .* 'soon'"),
        ("date,a\n01/02/2020,1\n02/02/2020,2\n", FileLayoutError, "written 2024-01-31"),
        ("date,a\n2020-01-01,1\n02/01/2020,2\n", FileLayoutError, "line 3 .*02/01/2020"),
        ("date,a\n2020-01-01T00:00Z,1\n", FileLayoutError, "time zone, .*tz_convert"),
        ("1.5,2\n3,4\n", FileLayoutError, "number 3, .* give start= and freq="),
        ("date,a\n2020-01-01,1\n2020-01-02\n", FileLayoutError, "line 3 .* 1 values"),
        ("date,a\n2020-01-01,1\n2020-01-02,x\n", FileLayoutError, "line 3 .* 'x' .* 'a'"),
        ("date,a\n2020-01-01,inf\n", InfiniteValuesError, "line 2 .* column 'a'"),
        ("date,a\n", FileLayoutError, "header, but no rows"),
        ("date\n2020-01-01\n", FileLayoutError, "no column with values beside 'date'"),
        ("date,a,a\n2020-01-01,1,2\n", FileLayoutError, "'a' more than once"),
        (
            "date,a\n2020-01-01,1\n2020-01-02,2\n",
            FrequencyError,
            "2 timestamps.*freq='h'",
        ),
        (
            "date,a\n2020-01-01,1\n2020-01-02,2\n2020-01-05,3\n2020-01-20,3\n",
            FrequencyError,
            "cannot be told",
        ),
        ("date,item_id,a\n2020-01-01,x,1\n", FileLayoutError, "none of target, y, value"),
        (
            "date,item_id,y\n2020-01-01,x,1\n2020-01-02,,1\n",
            FileLayoutError,
            "line 3 .* no 'item_id'",
        ),
        (
            "date,item_id,y\n2020-01-01,x,1\n2020-01-01,z,1\n2020-01-01,x,2\n",
            FileLayoutError,
            "line 4 .* already",
        ),
    ],
)
def test_a_bad_table_is_refused_by_line_and_column(write, text, error, words):
    with pytest.raises(error, match=words):
        read_file(write(text, "my.csv"))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (Columns(timestamp="timestmp"), "timestamp='timestmp'.* 'timestamp'"),
        (Columns(item_id="sensor"), "item_id='sensor': .* no such column"),
        (Columns(target="c"), "target='c': .* Known names: 'a', 'b'"),
    ],
)
def test_a_column_that_does_not_exist_is_refused_with_the_nearest(columns, words):
    with pytest.raises(FileLayoutError, match=words):
        read_frame(hourly(), columns=columns)


def test_timestamps_that_do_not_fit_the_frequency_are_named():
    frame = hourly(5)
    frame.loc[3, "timestamp"] += pd.Timedelta("10min")
    with pytest.raises(FileLayoutError, match="row 3 .* 03:10:00, .* freq='h' after"):
        read_frame(frame, freq="h")
    with pytest.raises(FileLayoutError, match="row 1 .* freq='D'"):
        read_frame(hourly(5), freq="D")
    with pytest.raises(FileLayoutError, match="row 1 .* freq='MS'"):
        read_frame(hourly(5), freq="MS")


def test_a_frequency_that_is_far_too_fine_is_refused_before_it_fills_the_memory():
    with pytest.raises(FrequencyError, match="makes 14,400,001 steps of the 5 rows"):
        read_frame(hourly(5), freq="ms" if parse_offset("ms").nanos == 10**6 else "L")


def test_frames_without_numbers_or_rows_are_refused():
    with pytest.raises(FileLayoutError, match="DataFrame is empty"):
        read_frame(pd.DataFrame())
    with pytest.raises(FileLayoutError, match="row 2 of the DataFrame has 'x'"):
        read_frame(row(hourly(), 2, a="x"))
    with pytest.raises(FileLayoutError, match="'other' .* holds dates"):
        read_frame(hourly().assign(other=hourly()["timestamp"]))
    with pytest.raises(FileLayoutError, match="'a' more than once"):
        read_frame(hourly().rename(columns={"b": "a"}))


def test_a_table_of_several_series_without_their_names_says_what_is_lacking():
    with pytest.raises(FileLayoutError, match="long form needs item_id="):
        read_frame(pd.concat([hourly(3), hourly(3)]).sort_values("timestamp"))


def test_nullable_numbers_are_read():
    frame = hourly().assign(a=pd.array([1, None, 3, 4, 5, 6], dtype="Int64"))
    same(read_frame(frame[["timestamp", "a"]]), [[1, np.nan, 3, 4, 5, 6]])


def test_parquet_without_pyarrow_says_what_to_install(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pts-scott\[arrow\]"):
        read_file(write("PAR1", "my.parquet"))


def test_a_file_that_is_not_parquet_is_refused(write):
    pytest.importorskip("pyarrow")
    with pytest.raises(FileLayoutError, match="my.parquet is not a Parquet file"):
        read_file(write("date,a\n", "my.parquet"))


# Entries of a GluonTS dataset.


@pytest.mark.parametrize("freq", ["h", None])
def test_a_gluonts_dataset_is_read_as_it_is(freq):
    entries = wave_entries()
    read = read_entries(ListDataset(wave_entries(), freq="h"), freq)
    assert read.item_ids == ["s0", "s1", "s2"]
    assert read.starts == [entry["start"] for entry in entries]
    assert parse_offset(read.freq) == parse_offset("h")
    for given, entry in zip(read.targets, entries):
        np.testing.assert_allclose(given, entry["target"], rtol=1e-6)


def test_months_as_periods_keep_their_first_days():
    start = pd.Period("2020-01", "M")
    read = read_entries([{"start": start, "target": np.arange(4.0)}])
    assert (read.starts, read.freq) == ([pd.Timestamp("2020-01-01")], "MS")


@pytest.mark.parametrize(
    ("entries", "freq", "error", "words"),
    [
        (wave_entries(), None, FrequencyError, "freq is missing"),
        (wave_entries() * 2, "h", DataError, "'s0', 's1', 's2' .* more than once"),
        ([{"start": "2020", "target": np.ones((2, 5))}], "D", DataError, "2 dimensions"),
        ([{"start": "2020", "target": []}], "D", DataError, "'0' have no values"),
        ([{"start": "2020", "target": [np.inf]}], "D", InfiniteValuesError, "infinite"),
        ([], "D", DataError, "no series"),
        ([3], "D", DataError, "of type int"),
        (
            [{"start": pd.Period("2020", "D"), "target": [1.0]}],
            "h",
            MixedFrequencyError,
            "'D'",
        ),
    ],
)
def test_bad_entries_are_refused(entries, freq, error, words):
    with pytest.raises(error, match=words):
        read_entries(entries, freq)


def test_what_is_no_dataset_is_said_to_be_none():
    with pytest.raises(DataError, match="int is not a dataset"):
        read_entries(5)
