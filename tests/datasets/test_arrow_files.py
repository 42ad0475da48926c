"""Arrow files as Hugging Face's ``datasets`` and GIFT-Eval store them."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from pts_scott import ArrowDataset, load
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


def test_a_folder_of_several_datasets_names_them(tmp_path):
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["test", "train"]}')
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "state.json").write_text("{}")
    with pytest.raises(FileLayoutError, match=r"name one of them: .*test', .*train'"):
        load(tmp_path)


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


def test_only_the_files_of_the_dataset_are_read(tmp_path):
    write(tmp_path / "data-00000-of-00001.arrow", rows_of(2))
    write(tmp_path / "cache-1f2e.arrow", rows_of(2, first=7))
    assert load(tmp_path).item_ids == ("s0", "s1")
    listed = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (tmp_path / "state.json").write_text(json.dumps(listed))
    write(tmp_path / "data-other.arrow", rows_of(2, first=4))
    assert load(tmp_path).item_ids == ("s0", "s1")


def test_series_without_names_are_numbered_through_all_files(tmp_path):
    for number in range(2):
        rows = rows_of(2, first=2 * number)
        for row in rows:
            del row["item_id"]
            row["target"] = np.stack([row["target"], row["target"] + 1])
        write(tmp_path / f"data-{number}.arrow", rows)
    names = [f"{n}_dim{d}" for n in range(4) for d in range(2)]
    assert load(tmp_path).item_ids == tuple(names)


def test_gluonts_shapes_of_multivariate_targets_are_used(tmp_path):
    (row,) = rows_of(1)
    both = np.stack([row["target"], -row["target"]])
    flat = {**row, "target": both.ravel(), "target._np_shape": list(both.shape)}
    data = load(write(tmp_path / "data.arrow", [flat]))
    assert data.item_ids == ("s0_dim0", "s0_dim1")
    np.testing.assert_array_equal(data.targets, both)


def test_a_stream_that_was_cut_off_is_noticed(tmp_path):
    path = write(tmp_path / "data.arrow", rows_of(6))
    path.write_bytes(path.read_bytes()[:-8])  # without its end
    with pytest.warns(ScottWarning, match="may have been cut off"):
        load(path)


@pytest.mark.parametrize("name", ["target", "item_id"])
def test_repeated_columns_are_an_error(tmp_path, name):
    table = pa.table(
        [pa.array([[1.0, 2.0]]), pa.array([START]), pa.array(["a"]), pa.array([[1.0]])],
        names=["target", "start", "item_id", name],
    )
    path = tmp_path / "data.arrow"
    with pa.ipc.new_stream(str(path), table.schema) as file:
        file.write_table(table)
    for read in (load, ArrowDataset):
        with pytest.raises(FileLayoutError, match="more than one column"):
            read(path, freq="h")


def test_an_empty_multivariate_target_is_an_error(tmp_path):
    kind = pa.list_(pa.list_(pa.float64()))
    table = pa.table({"start": [START], "target": pa.array([[]], kind)})
    path = tmp_path / "data.arrow"
    with pa.ipc.new_stream(str(path), table.schema) as file:
        file.write_table(table)
    with pytest.raises(FileLayoutError, match="has no target"):
        load(path, freq="D")
