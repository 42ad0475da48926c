"""Hostile files: nothing in them is executed, fills the memory, or makes reading hang."""

from __future__ import annotations

import contextlib
import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.hostile_files import DAYS, WAVE, CreatesFile, hostile_field

from pts_scott import datasets
from pts_scott.datasets import readers
from pts_scott.errors import (
    DataError,
    DatasetNotFoundError,
    FileLayoutError,
    ScottWarning,
)

# Text.

TEXT = {"start": "2024-01-01", "freq": "D"}


@pytest.mark.parametrize("name", ["my.txt", "my.txt.gz", "my.csv", "my.csv.gz"])
def test_file_of_zero_bytes_is_not_read_completely(name, tmp_path, monkeypatch):
    path, data = tmp_path / name, bytes(100_000)
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    monkeypatch.setattr(readers, "PROBE_BYTES", 1000)
    opened: list[Any] = []
    real_open = gzip.open if name.endswith("gz") else Path.open

    def recording_open(*args: Any) -> Any:
        opened.append(real_open(*args))
        return opened[-1]

    owner = gzip if name.endswith("gz") else Path
    monkeypatch.setattr(owner, "open", recording_open)
    monkeypatch.setattr(readers.Path, "read_bytes", None)
    with pytest.raises(FileLayoutError, match="not text in UTF-8 .byte 0 is zero"):
        datasets.load(path, **(TEXT if "txt" in name else {}))
    assert len(opened) == 1


def test_decompression_bomb_is_rejected(tmp_path, monkeypatch):
    path = tmp_path / "my.txt.gz"
    path.write_bytes(gzip.compress(b"1,2\n3,4\n" * 50_000))
    monkeypatch.setattr(readers, "UNPACKED_BYTES", 100_000)
    with pytest.raises(FileLayoutError, match="bytes unpacked, 100 times its size"):
        datasets.load(path, **TEXT)
    monkeypatch.setattr(readers, "UNPACKED_BYTES", 400_000)
    assert len(datasets.load(path, **TEXT)) == 2
    monkeypatch.setattr(readers, "UNPACKED_BYTES", 100_000)
    monkeypatch.setattr(readers, "PACKING_RATIO", 10_000)
    assert len(datasets.load(path, **TEXT)) == 2


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_are_rejected_without_hanging(seed, tmp_path):
    generator = np.random.default_rng(seed)
    letters = np.frombuffer(b'0123456789,.\n"\r-e \xff;\xc3', dtype=np.uint8)
    for _ in range(20):
        size = int(generator.integers(1, 3000))
        random = generator.integers(0, 256, size, dtype=np.uint8)
        for data in (random.tobytes(), generator.choice(letters, size).tobytes()):
            for name in ("my.txt", "my.csv", "my.txt.gz", "my.parquet"):
                (tmp_path / name).write_bytes(data)
                with pytest.raises(DataError):
                    datasets.load(tmp_path / name, **(TEXT if "txt" in name else {}))


@pytest.mark.parametrize("text", ['"{}",a\n2,3\n', 'date,a\n"{}",1\n'])
def test_line_with_an_unclosed_quote_is_named(text, tmp_path):
    path = tmp_path / "my.csv"
    path.write_text(text.format("x" * 200_000))
    with pytest.raises(FileLayoutError, match=r"line \d of my.csv .* quote"):
        datasets.load(path)


@pytest.mark.parametrize(
    "name",
    ["a\0b.csv", "a" * 5000 + ".csv", "~nobody_of_this_name/a.csv", "/dev/null", ".."],
)
def test_name_that_is_not_a_regular_file_is_not_opened(name):
    with pytest.raises((DatasetNotFoundError, FileLayoutError)) as caught:
        datasets.load(name)
    assert len(str(caught.value)) < 500


def test_url_is_not_fetched():
    with pytest.raises(DatasetNotFoundError, match="no file"):
        datasets.load("http://127.0.0.1:9/a.csv")


# Parquet.


@pytest.fixture
def arrow() -> Any:
    return pytest.importorskip("pyarrow")


def write_parquet(path: Path, metadata: Any = None, **columns: Any) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata) if metadata else table, path)
    return path


OBJECTS = {
    "lists": [[1.0, 2.0]] * 40,
    "dicts": [{"a": 1}] * 40,
    "bytes": [b"1", b"2"] * 20,
    "pickles": [pickle.dumps(CreatesFile(Path("created")))] * 40,
}


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("role", ["values", "names", "times"])
def test_objects_are_rejected_as_series(kind, role, arrow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns: dict[str, Any] = {"timestamp": DAYS, "a": WAVE}
    if role == "values":
        columns["a"] = OBJECTS[kind]
    elif role == "names":
        columns = {"timestamp": DAYS, "item_id": OBJECTS[kind], "target": WAVE}
    else:
        columns["timestamp"] = OBJECTS[kind]
    path = write_parquet(tmp_path / "my.parquet", **columns)
    with pytest.raises(FileLayoutError, match="row 0 of my.parquet has .* expected text"):
        datasets.load(path)
    assert not Path("created").exists()


def test_objects_in_unread_columns_are_ignored(arrow, tmp_path):
    columns = {"timestamp": DAYS, "item_id": ["a"] * 40, "target": WAVE}
    path = write_parquet(tmp_path / "my.parquet", **columns, more=OBJECTS["lists"])
    with pytest.warns(ScottWarning, match="not read: 'more'"):
        data = datasets.load(path)
    np.testing.assert_array_equal(data.targets[0], WAVE)


@pytest.mark.parametrize(
    "metadata", [b"{", b"[]", b'{"index_columns": ["b"], "columns": []}', b"\xff"]
)
def test_invalid_metadata_are_rejected(metadata, arrow, tmp_path):
    columns = {"timestamp": DAYS, "a": WAVE}
    path = write_parquet(tmp_path / "my.parquet", {"pandas": metadata}, **columns)
    with pytest.raises(FileLayoutError, match="my.parquet is not a Parquet file"):
        datasets.load(path)


@pytest.mark.filterwarnings("ignore:pickle-based deserialization:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:pyarrow.PyExtensionType is:FutureWarning")
def test_types_in_a_parquet_file_are_not_unpickled(arrow, tmp_path):
    import pyarrow.parquet as pq

    created = tmp_path / "created"
    times, values = arrow.array(DAYS), arrow.array(WAVE)
    field = hostile_field("a", values, created)
    schema = arrow.schema([arrow.field("timestamp", times.type), field])
    pq.write_table(arrow.table([times, values], schema=schema), tmp_path / "my.parquet")
    with contextlib.suppress(DataError):  # some versions do not read it as numbers
        datasets.load(tmp_path / "my.parquet")
    assert not created.exists()
