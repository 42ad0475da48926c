"""Text, CSV and Parquet files: what is read and what is rejected."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pandas as pd
import pytest
from helpers.loaded_series import assert_targets, hourly_frame

from pts_scott.data.offsets import parse_offset
from pts_scott.datasets.columns import Columns
from pts_scott.datasets.readers import read_file
from pts_scott.datasets.tables import series_from_frame
from pts_scott.errors import (
    ArgumentError,
    DataError,
    DatasetNotFoundError,
    FileLayoutError,
    FrequencyError,
    InfiniteValuesError,
    MissingExtraError,
)

START = {"start": "2020-01-01", "freq": "h"}


@pytest.mark.parametrize("name", ["my.txt", "my.txt.gz", "my.csv", "my.csv.gz"])
def test_text_file_has_one_row_per_step_and_one_column_per_series(write, name):
    read = read_file(write("1,2.5\n3,4e-1\n5,0\n", name), **START)
    assert_targets(read, [[1, 3, 5], [2.5, 0.4, 0]])
    assert read.item_ids == ["0", "1"]
    assert read.starts == [pd.Timestamp("2020-01-01")] * 2
    assert read.freq == "h"


def test_empty_fields_and_nan_are_missing_values(write):
    read = read_file(write("1.0,,2.0\nnan,3,NA\n"), **START)
    assert_targets(read, [[1, np.nan], [np.nan, 3], [2, np.nan]])


def test_crlf_line_ends_and_byte_order_mark_are_accepted(write):
    assert_targets(
        read_file(write(b"\xef\xbb\xbf1,2\r\n3,4\r\n\r\n"), **START), [[1, 3], [2, 4]]
    )


def test_values_equal_those_written(write):
    rows = np.random.default_rng(0).standard_normal((50, 7)).round(6)
    text = "\n".join(",".join(map(str, row)) for row in rows)
    assert_targets(read_file(write(text), **START), rows.T)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("1,2,3\n4,5\n", FileLayoutError, "line 2 of my.txt has 2 values.* first .* 3"),
        ("1,2,3\n4,5,6,7\n", FileLayoutError, "line 2 of my.txt has 4 values"),
        ("1,2\n\n4,5\n", FileLayoutError, "line 2 of my.txt is empty"),
        ("1,2\n3,abc\n", FileLayoutError, "line 2 of my.txt has 'abc' in column '1'"),
        ("a,b\n3,4\n", FileLayoutError, "line 1 .* 'a' .* not have a header"),
        ("1;2\n3;4\n", FileLayoutError, "'1;2' .* separated by commas"),
        ("1,2\n3,inf\n", InfiniteValuesError, "line 2 of my.txt .* column '1'"),
        ("1,2\n-1e999,4\n", FileLayoutError, "line 2 of my.txt has '-1e999'"),
        ("", FileLayoutError, "my.txt is empty"),
        (" \n\n", FileLayoutError, "my.txt is empty"),
        (b"1,2\n\xff\xfe,4\n", FileLayoutError, "UTF-8"),
    ],
)
def test_bad_text_file_error_names_line_and_column(write, text, error, words):
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
        (
            {**START, "columns": Columns("date")},
            ArgumentError,
            "timestamp names a column",
        ),
    ],
)
def test_start_and_frequency_of_a_text_file_are_checked(write, arguments, error, words):
    with pytest.raises(error, match=words):
        read_file(write("1,2\n3,4\n"), **arguments)


def test_csv_file_with_start_needs_a_frequency(write):
    with pytest.raises(FrequencyError, match="freq is missing"):
        read_file(write("1,2\n3,4\n", "my.csv"), start="2020-01-01")


def test_missing_or_unsupported_file_is_named(write, tmp_path):
    with pytest.raises(DatasetNotFoundError, match="no file .*none.csv"):
        read_file(tmp_path / "none.csv")
    with pytest.raises(FileLayoutError, match="is a folder"):
        read_file(tmp_path)
    with pytest.raises(FileLayoutError, match=r"my.xlsx ends in none of \.txt"):
        read_file(write("1", "my.xlsx"))


@pytest.mark.parametrize("cut", [0, 25])
def test_incomplete_or_fake_gzip_file_is_rejected(tmp_path, cut):
    path = tmp_path / "my.txt.gz"
    path.write_bytes(gzip.compress(b"1,2\n3,4\n" * 9)[:cut] or b"1,2\n3,4\n")
    with pytest.raises(FileLayoutError, match="named .gz, but is not a complete gzip"):
        read_file(path, **START)


@pytest.mark.parametrize("name", ["my.csv", "my.csv.gz", "my.parquet", None])
def test_every_other_column_of_a_wide_table_is_a_series(tmp_path, name):
    frame = hourly_frame()
    if name is None:
        read = series_from_frame(frame)
    elif name.endswith("parquet"):
        pytest.importorskip("pyarrow")
        frame.to_parquet(tmp_path / name)
        read = read_file(tmp_path / name)
    else:
        frame.to_csv(tmp_path / name, index=False)
        read = read_file(tmp_path / name)
    assert_targets(read, [frame["a"], frame["b"]])
    assert read.item_ids == ["a", "b"]
    assert read.starts == [pd.Timestamp("2020-01-01")] * 2
    assert parse_offset(read.freq) == parse_offset("h")


def test_unnamed_column_of_row_numbers_is_not_a_series(tmp_path):
    hourly_frame().to_csv(tmp_path / "my.csv")
    assert read_file(tmp_path / "my.csv").item_ids == ["a", "b"]


def test_first_column_holds_the_timestamps_by_default(write):
    text = "When,a\n2020-01-01,1\n2020-01-02,2\n2020-01-03,4\n"
    read = read_file(write(text, "my.csv"))
    assert (read.item_ids, read.freq) == (["a"], "D")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        (
            "date,a\n2020-01-01,1\n2020-01-02,2\n2020-01-02,3\n",
            FileLayoutError,
            "line 4 of my.csv has 2020-01-02.* already; keep one row",
        ),
        ("date,a\n2020-01-01,1\n,2\n", FileLayoutError, "line 3 .* nan, but .* 'date'"),
        ("date,a\n2020-01-01,1\nsoon,2\n", FileLayoutError, "line 3 .* 'soon'"),
        ("date,a\n01/02/2020,1\n02/02/2020,2\n", FileLayoutError, "written 2024-01-31"),
        ("date,a\n2020-01-01,1\n02/01/2020,2\n", FileLayoutError, "line 3 .*02/01/2020"),
        ("date,a\n2020-01-01T00:00Z,1\n", FileLayoutError, "time zone, .*utc=True"),
        ("1.5,2\n3,4\n", FileLayoutError, "number 3, .* pass start= and freq="),
        ("date,a\n2020-01-01,1\n2020-01-02\n", FileLayoutError, "line 3 .* 1 values"),
        ("date,a\n2020-01-01,1\n2020-01-02,x\n", FileLayoutError, "line 3 .* 'x' .* 'a'"),
        ("date,a\n2020-01-01,inf\n", InfiniteValuesError, "line 2 .* column 'a'"),
        ("date,a\n", FileLayoutError, "header, but no rows"),
        ("date\n2020-01-01\n", FileLayoutError, "no column with values besides 'date'"),
        ("date,a,a\n2020-01-01,1,2\n", FileLayoutError, "'a' more than once"),
        (
            "date,a\n2020-01-01,1\n2020-01-02,2\n",
            FrequencyError,
            "2 timestamps.*freq='h'",
        ),
        (
            "date,a\n2020-01-01,1\n2020-01-02,2\n2020-01-05,3\n2020-01-20,3\n",
            FrequencyError,
            "cannot be inferred",
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
def test_bad_table_error_names_line_and_column(write, text, error, words):
    with pytest.raises(error, match=words):
        read_file(write(text, "my.csv"))


def test_parquet_without_pyarrow_says_what_to_install(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pts-scott\[arrow\]"):
        read_file(write("PAR1", "my.parquet"))


def test_file_that_is_not_parquet_is_rejected(write):
    pytest.importorskip("pyarrow")
    with pytest.raises(FileLayoutError, match="my.parquet is not a Parquet file"):
        read_file(write("date,a\n", "my.parquet"))
