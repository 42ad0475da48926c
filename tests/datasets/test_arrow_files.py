"""Arrow files as Hugging Face's ``datasets`` and GIFT-Eval store them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pts_scott import load
from pts_scott.errors import (
    ArgumentError,
    DataError,
    FileLayoutError,
    MixedFrequencyError,
    ScottWarning,
)

pa = pytest.importorskip("pyarrow")

START = pd.Timestamp("2024-01-01")


def rows_of(count=3, length=20, first=0, **more):
    """Return entries with different values."""
    steps = np.arange(length, dtype=np.float32)
    return [
        {
            "item_id": f"s{number}",
            "start": START,
            "freq": "h",
            "target": steps + 100 * number,
            **more,
        }
        for number in range(first, first + count)
    ]


def write(path, rows, stream=True):
    """Write rows as ``datasets.Dataset.save_to_disk`` does: an Arrow stream."""
    columns = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name == "target" and np.ndim(values[0]) == 2:
            columns[name] = pa.array([list(v) for v in values])
        else:
            columns[name] = pa.array(values)
    table = pa.table(columns)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=2)
    return path


@pytest.mark.parametrize("stream", [True, False])
def test_a_file_is_read(tmp_path, stream):
    rows = rows_of()
    data = load(write(tmp_path / "hourly.arrow", rows, stream))
    assert (data.name, data.freq) == ("hourly", "h")
    assert data.item_ids == ("s0", "s1", "s2")
    for row, entry in zip(rows, data.entries()):
        np.testing.assert_array_equal(entry["target"], row["target"])
        assert entry["start"] == START


def test_the_files_of_a_saved_dataset_are_one(tmp_path):
    folder = tmp_path / "traffic"
    folder.mkdir()
    write(folder / "data-00000-of-00002.arrow", rows_of(3))
    write(folder / "data-00001-of-00002.arrow", rows_of(2, first=3))
    (folder / "state.json").write_text("{}")
    data = load(str(folder))
    assert data.name == "traffic"
    assert data.item_ids == ("s0", "s1", "s2", "s3", "s4")


def test_dimensions_become_series(tmp_path):
    rows = rows_of(2)
    for row in rows:
        row["target"] = np.stack([row["target"], -row["target"] - 1])
    data = load(write(tmp_path / "data.arrow", rows))
    assert data.item_ids == ("s0_dim0", "s0_dim1", "s1_dim0", "s1_dim1")
    np.testing.assert_array_equal(data.targets[3], rows[1]["target"][1])


def test_nulls_and_whole_numbers_are_read(tmp_path):
    table = pa.table(
        {"start": [START], "target": pa.array([[1, None, 3]], pa.list_(pa.int64()))}
    )
    path = tmp_path / "data.arrow"
    with pa.ipc.new_stream(str(path), table.schema) as file:
        file.write_table(table)
    np.testing.assert_array_equal(load(path, freq="D").targets[0], [1, np.nan, 3])


def test_other_columns_are_named(tmp_path):
    path = write(tmp_path / "data.arrow", rows_of(past_feat_dynamic_real=[1.0]))
    with pytest.warns(ScottWarning, match="not read: 'past_feat"):
        data = load(path)
    assert "past_feat_dynamic_real" in str(data.report())


def test_entries_may_name_their_frequency():
    assert load(rows_of()).freq == "h"
    mixed = [*rows_of(1), {**rows_of(1, first=1)[0], "freq": "D"}]
    with pytest.raises(MixedFrequencyError, match="'D', 'h'"):
        load(mixed)


def test_mistakes_are_explained(tmp_path):
    path = write(tmp_path / "data.arrow", rows_of())
    with pytest.raises(ArgumentError, match="have a start"):
        load(path, start="2024-01-01")
    with pytest.raises(ArgumentError, match="item_id"):
        load(path, item_id="name")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileLayoutError, match="not a complete Arrow file"):
        load(path)
    path.write_text("text")
    with pytest.raises(DataError, match="not an Arrow file"):
        load(path)
    with pytest.raises(FileLayoutError, match="no column 'start'"):
        load(write(path, [{"target": [1.0, 2.0]}]))
    empty = pa.table({"start": [START], "target": pa.array([None], pa.list_(pa.int64()))})
    with pa.ipc.new_stream(str(path), empty.schema) as file:
        file.write_table(empty)
    with pytest.raises(FileLayoutError, match="row 0 .* has no target"):
        load(path, freq="D")
    with pytest.raises(FileLayoutError, match="folder"):
        load(tmp_path / "..")
