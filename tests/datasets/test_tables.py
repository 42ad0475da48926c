"""Wide and long data frames: what is read and what is rejected."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.loaded_series import assert_targets, hourly_frame
from hypothesis import given, settings
from hypothesis import strategies as st

from pts_scott import load
from pts_scott.data.offsets import parse_offset
from pts_scott.datasets.columns import Columns
from pts_scott.datasets.readers import read_file
from pts_scott.datasets.tables import series_from_frame
from pts_scott.errors import FileLayoutError, ScottWarning


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


@st.composite
def tables(draw):
    """Draw series by name, with gaps and of unequal lengths, as rows in any order.

    Some have rows without a value before and after them.
    """
    count = draw(st.integers(1, 4))
    series, rows = {}, []
    for number in range(count):
        length = draw(st.integers(4, 9))
        first = draw(st.integers(0, 5))
        values = np.arange(float(length)) + 100 * number
        gaps = draw(st.sets(st.integers(1, length - 2), max_size=1 if length > 5 else 0))
        values[list(gaps)] = np.nan
        start = pd.Timestamp("2024-01-01") + pd.Timedelta(first, "D")
        series[f"s{number}"] = start, values
        rows += [
            (f"s{number}", start + pd.Timedelta(k, "D"), value)
            for k, value in enumerate(values)
            if k not in gaps
        ]
        before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        empty = [*range(-before, 0), *range(length, length + after)]
        rows += [(f"s{number}", start + pd.Timedelta(k, "D"), np.nan) for k in empty]
    return series, draw(st.permutations(rows))


@pytest.mark.filterwarnings("ignore:The rows of", "ignore:Rows without a target")
@settings(deadline=None, max_examples=40)
@given(tables(), st.sampled_from(["nixtla", "autogluon", "own", "index", "wide"]))
def test_frames_of_every_layout_give_the_series_they_were_made_of(drawn, layout):
    series, rows = drawn
    names = {
        "nixtla": ["unique_id", "ds", "y"],
        "own": ["shop", "day", "sales"],
    }.get(layout, ["item_id", "timestamp", "target"])
    frame = pd.DataFrame(rows, columns=names)
    options = {}
    if layout == "own":
        options = {"item_id": "shop", "timestamp": "day", "target": "sales"}
    elif layout == "index":
        frame = frame.set_index(names[:2])
    elif layout == "wide":
        frame = frame.pivot(index="timestamp", columns="item_id", values="target")
        frame = frame.sample(frac=1, random_state=0)
    found = load(frame, freq="D", constant="keep", **options)
    assert sorted(found.item_ids) == sorted(series)
    for item_id, start, target in zip(
        found.item_ids, found.starts, found.targets, strict=True
    ):
        expected_start, expected = series[item_id]
        assert start == expected_start
        np.testing.assert_array_equal(target, expected)


def test_unsorted_rows_are_sorted_and_said():
    frame = long_frame()
    expected = series_from_frame(frame)
    with pytest.warns(ScottWarning, match="not in order of time, and were sorted"):
        found = load(frame[::-1])
    rows = [found.item_ids.index(name) for name in expected.item_ids]
    assert_targets(expected, [found.targets[row] for row in rows])
    assert "sorted" in str(found.report())


@pytest.mark.parametrize("name", [None, "sales"])
def test_series_with_times_is_one_series(name):
    times = pd.date_range("2024-01-01", periods=5, freq="D")
    data = load(pd.Series(np.arange(5.0), index=times, name=name))
    assert data.item_ids == (name or "target",)
    assert data.starts == (times[0],)


@pytest.mark.parametrize("place", ["column", "index"])
def test_message_about_time_zones_has_code_that_works(place):
    frame = hourly_frame()
    frame["timestamp"] = frame["timestamp"].dt.tz_localize("Europe/Berlin")
    frame = frame if place == "column" else frame.set_index("timestamp")
    with pytest.raises(FileLayoutError, match="time zone") as caught:
        load(frame)
    code = str(caught.value).partition("Convert them to UTC: ")[2].removesuffix(".")
    scope = {"frame": frame, "pd": pd}
    exec(code, scope)
    assert load(scope["frame"]).item_ids == ("a", "b")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["item_id", "unique_id", "ds", "y"], "each could be the item_id"),
        (["item_id", "ds", "y", "target"], "each could be the target"),
    ],
)
def test_two_candidates_for_a_column_are_told(columns, message):
    frame = pd.DataFrame(np.zeros((3, len(columns))), columns=columns)
    frame["ds"] = pd.date_range("2024-01-01", periods=3)
    with pytest.raises(FileLayoutError, match=message):
        load(frame)


def test_long_frame_with_own_names_is_recognised():
    own = {"unique_id": "shop", "ds": "day", "y": "sales"}
    frame = long_frame().rename(columns=own)[list(own.values())]
    with pytest.raises(FileLayoutError, match="item_id='shop' and target='sales'"):
        load(frame)
    assert len(load(frame, item_id="shop", target="sales")) > 1


def test_rows_without_a_target_at_the_ends_are_left_out_and_named():
    frame = pd.DataFrame(
        {
            "item_id": ["a"] * 5 + ["b"] * 5,
            "timestamp": [*pd.date_range("2024-01-01", periods=5)] * 2,
            "target": [np.nan, 1, np.nan, 3, np.nan, *range(5)],
        }
    )
    with pytest.warns(ScottWarning, match="at the ends of series 'a' were left out"):
        data = load(frame)
    assert data.starts[0] == pd.Timestamp("2024-01-02")
    np.testing.assert_array_equal(data.targets[0], [1, np.nan, 3])
