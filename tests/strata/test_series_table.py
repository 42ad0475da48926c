"""Tables of series: a mapping by name that is stored as one array."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from pts_scott.strata.series_table import SeriesTable

NUMBERS = {"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [5.0, 6.0]}


def test_table_equals_the_mapping_it_was_made_of():
    table = SeriesTable.of(NUMBERS)
    assert dict(table) == NUMBERS
    assert SeriesTable.of(table) is table


@pytest.mark.parametrize(
    "again",
    [
        lambda table: pickle.loads(pickle.dumps(table)),
        lambda table: SeriesTable.from_state(table.state_dict()),
    ],
)
def test_copies_are_equal(again):
    table = SeriesTable.of(NUMBERS)
    assert table["b"] == [3.0, 4.0]
    assert dict(again(table)) == NUMBERS


def test_of_series_with_one_name_the_last_one_counts():
    table = SeriesTable(("a", "b", "a"), np.array([[1.0], [2.0], [3.0]]))
    assert dict(table) == {"a": [3.0], "b": [2.0]}


def test_rows_are_found_by_name_in_any_order():
    table = SeriesTable.of(NUMBERS)
    assert table.rows_of(("c", "a")).tolist() == [[5.0, 6.0], [1.0, 2.0]]
    assert table.rows_of(("a", "b", "c")).tolist() == list(NUMBERS.values())
    with pytest.raises(KeyError, match="'new'"):
        table.rows_of(("a", "new"))
