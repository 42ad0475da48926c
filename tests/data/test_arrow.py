"""Series mapped from an Arrow file: the same windows as from memory."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from gluonts.dataset.common import ListDataset
from helpers.series import wave_entries
from helpers.training import quiet_trainer

from pts_scott import ArrowDataset, Stratifier, VAREstimator, WindowIndex
from pts_scott.data.arrow import map_if_arrow
from pts_scott.errors import (
    ArgumentError,
    DataError,
    EmptyDatasetError,
    InfiniteValuesError,
    ScottWarning,
    ShortSeriesError,
)

pa = pytest.importorskip("pyarrow")

LENGTHS = (40, 52, 46, 61, 33)


def write(path, entries, kind=None, batch_size=2, compression=None, stream=False):
    """Write entries as GluonTS does: record batches with one row per series."""
    kind = kind or pa.list_(pa.float32())
    fields = {"target": kind, "start": pa.timestamp("us"), "item_id": pa.string()}
    fields["freq"] = pa.string()
    names = [name for name in fields if not entries or name in entries[0]]
    schema = pa.schema([(name, fields[name]) for name in names])
    make = pa.RecordBatchStreamWriter if stream else pa.RecordBatchFileWriter
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with make(str(path), schema, options=options) as writer:
        for first in range(0, len(entries), batch_size):
            rows = entries[first : first + batch_size]
            columns = [pa.array([row[n] for row in rows], fields[n]) for n in names]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return path


@pytest.fixture
def entries():
    return wave_entries(LENGTHS)


@pytest.mark.parametrize("context", ["full", "padded"])
@pytest.mark.parametrize("stored", ["float32", "float64"])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_mapped_windows_equal_those_in_memory(
    tmp_path, entries, context, stored, missing, stream
):
    if missing:
        entries[1]["target"][[5, 20]] = np.nan
    kind = pa.list_(getattr(pa, stored)())
    path = write(tmp_path / "data.arrow", entries, kind, stream=stream)
    inside = WindowIndex.from_dataset(
        ListDataset(entries, freq="h"), "h", 6, 2, context=context
    )
    outside = WindowIndex.from_dataset(
        ArrowDataset(path, "h"), "h", 6, 2, context=context
    )

    assert len(outside) == len(inside)
    every = torch.arange(len(inside))
    for (name, x), y in zip(outside.gather(every).items(), inside.gather(every).values()):
        assert x.dtype == torch.float32
        assert torch.equal(x, y), name
    policy = Stratifier.calendar("hour") * Stratifier.series()
    one, other = policy.stratify(outside), policy.stratify(inside)
    assert torch.equal(one.order, other.order)
    assert one.table().equals(other.table())


def test_mapped_dataset_trains_and_predicts_like_one_in_memory(tmp_path, entries):
    path = write(tmp_path / "data.arrow", entries)
    predictors = []
    for dataset in (ArrowDataset(path, "h"), ListDataset(entries, freq="h")):
        estimator = VAREstimator(
            freq="h", prediction_length=2, context_length=6, trainer=quiet_trainer()
        )
        predictors.append(estimator.train(dataset))
    weights = [p.prediction_net.linear.weight for p in predictors]
    assert torch.equal(*weights)
    forecast = next(iter(predictors[0].predict(ArrowDataset(path, "h"))))
    expected = next(iter(predictors[1].predict(ListDataset(entries, freq="h"))))
    np.testing.assert_array_equal(forecast.samples, expected.samples)
    assert forecast.start_date == expected.start_date


def test_values_stay_in_the_file(tmp_path, entries):
    path = write(tmp_path / "data.arrow", entries)
    store = ArrowDataset(path, "h").series_store("h", torch.float32)
    # As many numbers as fit in the file: the tensor is the file.
    assert store.values.numel() == path.stat().st_size // 4


def test_series_without_names_are_numbered(tmp_path, entries):
    for entry in entries:
        del entry["item_id"]
    dataset = ArrowDataset(write(tmp_path / "data.arrow", entries), "h")
    assert len(dataset) == len(list(dataset)) == len(LENGTHS)
    store = dataset.series_store("h", torch.float32)
    assert store.item_ids == ("0", "1", "2", "3", "4")
    assert store.lengths.tolist() == list(LENGTHS)


def test_only_suitable_gluonts_arrow_datasets_are_mapped(tmp_path, entries):
    arrow = pytest.importorskip("gluonts.dataset.arrow", reason="not in GluonTS 0.9")
    from gluonts.dataset.common import FileDataset

    data = ListDataset(entries, freq="h")
    path = tmp_path / "data.feather"
    arrow.ArrowWriter().write_to_file(data, path)
    for dataset in (arrow.ArrowFile(path), FileDataset(path, freq="h")):
        assert isinstance(map_if_arrow(dataset, "h"), ArrowDataset)
    inside = WindowIndex.from_dataset(data, "h", 6, 2)
    outside = WindowIndex.from_dataset(
        map_if_arrow(arrow.ArrowFile(path), "h"), "h", 6, 2
    )
    every = torch.arange(len(inside))
    assert torch.equal(
        outside.gather(every)["past_target"], inside.gather(every)["past_target"]
    )

    part = arrow.ArrowFile(path)[1:3]
    assert map_if_arrow(part, "h") is part
    streamed = tmp_path / "stream.feather"
    arrow.ArrowWriter(stream=True).write_to_file(data, streamed)
    assert isinstance(map_if_arrow(FileDataset(streamed, freq="h"), "h"), ArrowDataset)
    squeezed = tmp_path / "small.feather"
    arrow.ArrowWriter(compression="zstd").write_to_file(data, squeezed)
    dataset = arrow.ArrowFile(squeezed)
    assert map_if_arrow(dataset, "h") is dataset
    assert map_if_arrow(data, "h") is data
    # A dataset with another frequency is read instead, which raises an error.
    daily = FileDataset(path, freq="D")
    assert map_if_arrow(daily, "h") is daily


def test_the_frequency_can_be_in_the_file(tmp_path, entries):
    hourly = [{**entry, "freq": "h"} for entry in entries]
    dataset = ArrowDataset(write(tmp_path / "data.arrow", hourly, stream=True))
    assert dataset.freq == "h"
    assert len(WindowIndex.from_dataset(dataset, "h", 6, 2)) > 0
    mixed = [{**hourly[0], "freq": "D"}, *hourly[1:]]
    for wrong in (entries, mixed):
        with pytest.raises(DataError, match="pass freq="):
            ArrowDataset(write(tmp_path / "wrong.arrow", wrong))


def test_copies_map_the_file_again(tmp_path, entries):
    dataset = ArrowDataset(write(tmp_path / "data.arrow", entries), "h")
    for copied in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert [e["item_id"] for e in copied] == [e["item_id"] for e in dataset]


def test_time_zones_are_an_error(tmp_path):
    zone = pa.timestamp("us", tz="Europe/Berlin")
    table = pa.table({"start": pa.array([0], zone), "target": [[1.0, 2.0]]})
    path = tmp_path / "data.arrow"
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)
    with pytest.raises(DataError, match="time zone"):
        ArrowDataset(path, "h")


def test_features_of_a_mapped_file_are_missed(tmp_path):
    columns = {"start": [pd.Timestamp("2024-01-01")], "target": [np.arange(20.0)]}
    table = pa.table({**columns, "feat_static_cat": [[1]]})
    path = tmp_path / "data.arrow"
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)
    windows = WindowIndex.from_dataset(ArrowDataset(path, "h"), "h", 6, 2)
    policy = Stratifier.custom(lambda item_id, start, window: start.hour)
    with pytest.warns(ScottWarning, match="does not see 'feat_static_cat'"):
        policy.stratify(windows)


def test_empty_batches_and_null_names_are_read(tmp_path, entries):
    path = tmp_path / "data.arrow"
    schema = pa.schema(
        [
            ("target", pa.large_list(pa.float64())),
            ("start", pa.timestamp("us")),
            ("item_id", pa.string()),
        ]
    )
    with pa.RecordBatchFileWriter(str(path), schema) as writer:
        for rows in ([], entries[:2], [], entries[2:], []):
            columns = [
                pa.array([row[name] for row in rows], schema.field(name).type)
                for name in ("target", "start")
            ]
            names = pa.array([None] * len(rows), pa.string())
            writer.write_batch(pa.record_batch([*columns, names], schema=schema))
    store = ArrowDataset(path, "h").series_store("h", torch.float64)
    assert store.item_ids == ("0", "1", "2", "3", "4")
    for entry, begin, length in zip(entries, store.begins, store.lengths):
        np.testing.assert_array_equal(
            store.values[begin : begin + length].numpy(), entry["target"]
        )


def test_files_that_cannot_be_mapped_are_rejected_with_the_reason(tmp_path, entries):
    path = tmp_path / "data.arrow"
    with pytest.raises(DataError, match="no file"):
        ArrowDataset(path, "h")
    path.write_text("something else")
    with pytest.raises(DataError, match="not an Arrow file"):
        ArrowDataset(path, "h")
    with pytest.raises(DataError, match="is a folder"):
        ArrowDataset(tmp_path, "h")
    with pytest.raises(DataError, match="compression=None"):
        ArrowDataset(write(path, entries, compression="zstd"), "h")
    whole = [{**entry, "target": np.arange(40)} for entry in entries]
    with pytest.raises(DataError, match="float32 or float64"):
        ArrowDataset(write(path, whole, pa.list_(pa.int64())), "h")
    flat = [{**entry, "target": 1.0} for entry in entries]
    with pytest.raises(DataError, match="univariate"):
        ArrowDataset(write(path, flat, pa.float32()), "h")
    with pytest.raises(DataError, match="no column 'start'"):
        ArrowDataset(write(path, [{"target": [1.0]}]), "h")


def test_unusable_series_are_rejected(tmp_path, entries):
    path = tmp_path / "data.arrow"

    def store(changed, kind=None):
        return ArrowDataset(write(path, changed, kind), "h").series_store(
            "h", torch.float32
        )

    with pytest.raises(EmptyDatasetError, match="no series"):
        store([])
    for target in ([1.0, None], None):
        nulls = [*entries, {**entries[0], "target": target}]
        with pytest.raises(DataError, match="nulls"):
            store(nulls)
    entries[3]["target"][7] = np.inf
    moment = pd.Timestamp(entries[3]["start"]) + pd.Timedelta(7, "h")
    with pytest.raises(InfiniteValuesError, match=f"'s3' is infinite at {moment}"):
        store(entries)
    entries[3]["target"][7] = 1e300  # finite in double precision, infinite in single
    with pytest.raises(InfiniteValuesError, match=f"'s3' is infinite at {moment}"):
        store(entries, pa.list_(pa.float64()))
    for entry in entries:
        entry["target"] = np.full(40, np.nan)
    with pytest.raises(EmptyDatasetError, match="all targets are missing"):
        store(entries)


def test_error_names_short_series(tmp_path, entries):
    entries[2]["target"] = entries[2]["target"][:5]
    path = write(tmp_path / "data.arrow", entries)
    with pytest.raises(ShortSeriesError, match="s2"):
        WindowIndex.from_dataset(ArrowDataset(path, "h"), "h", 6, 2)


def test_error_without_pyarrow_says_what_to_install(tmp_path, entries, monkeypatch):
    path = write(tmp_path / "data.arrow", entries)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ArgumentError, match=r"pts-scott\[arrow\]"):
        ArrowDataset(path, "h")
