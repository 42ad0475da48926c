"""Hostile and damaged Arrow files: rejected, and nothing in them is executed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.hostile_files import DAYS, WAVE, hostile_field

from pts_scott import ArrowDataset
from pts_scott.errors import DataError, ScottError

pa = pytest.importorskip("pyarrow")


def write_arrow(path: Path, table: Any) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    return path


def write_waves(path: Path, start: Any) -> Path:
    table = pa.table({"start": [start] * 3, "target": [WAVE.tolist()] * 3})
    return write_arrow(path, table)


@pytest.mark.filterwarnings("ignore:pickle-based deserialization:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:pyarrow.PyExtensionType is:FutureWarning")
def test_types_in_an_arrow_file_are_not_unpickled(tmp_path):
    created = tmp_path / "created"
    starts, targets = pa.array(DAYS[:1]), pa.array([WAVE.tolist()])
    field = hostile_field("target", targets, created)
    schema = pa.schema([pa.field("start", starts.type), field])
    path = write_arrow(tmp_path / "my.arrow", pa.table([starts, targets], schema=schema))
    with contextlib.suppress(DataError):  # some versions do not read it as numbers
        list(ArrowDataset(path, "D"))
    assert not created.exists()


def test_truncated_arrow_file_is_rejected(tmp_path):
    path = write_waves(tmp_path / "my.arrow", DAYS[0])
    data = path.read_bytes()
    for broken in (data[: len(data) // 2], data[:20], b"ARROW1" + bytes(300)):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="my.arrow is not a complete Arrow file"):
            ArrowDataset(path, "D")


def test_offsets_beyond_the_end_of_an_arrow_file_are_rejected(tmp_path):
    path = write_waves(tmp_path / "my.arrow", DAYS[0])
    offsets = np.array([0, 40, 80, 120], dtype=np.int32).tobytes()
    data = path.read_bytes()
    assert data.count(offsets) == 1
    far = np.array([0, 40, 80, 2**30], dtype=np.int32).tobytes()
    path.write_bytes(data.replace(offsets, far))
    with pytest.raises(DataError, match="my.arrow is not a complete Arrow file"):
        ArrowDataset(path, "D")


@pytest.mark.parametrize("start", ["no date", [1], b"\x80\x04."])
def test_start_that_is_not_a_date_is_named(start, tmp_path):
    dataset = ArrowDataset(write_waves(tmp_path / "my.arrow", start), "D")
    for read in (list, lambda data: data.series_store("D", torch.float32)):
        with pytest.raises(
            ScottError, match="my.arrow has a start .*, which is not a date"
        ):
            read(dataset)
