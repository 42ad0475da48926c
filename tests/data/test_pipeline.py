"""Instances gathered as tensors equal those that the library's own splitter makes."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from gluonts.dataset.field_names import FieldName
from gluonts.transform import (
    AddObservedValuesIndicator,
    AsNumpyArray,
    CanonicalInstanceSplitter,
    Chain,
    ExpectedNumInstanceSampler,
    InstanceSplitter,
    RenameFields,
    SelectFields,
    ValidationSplitSampler,
)
from gluonts.transform.sampler import InstanceSampler
from helpers.instances import SplitAt, library_batch, splits_of

from pts_scott import Stratifier
from pts_scott.data.instance_index import InstanceIndex, PipelineIndex
from pts_scott.data.pipeline import Pipeline
from pts_scott.errors import DataError, EmptyDatasetError, ModelError, ScottWarning

LENGTHS = (40, 25, 40)
FIELDS = (
    *("past_target", "future_target", "past_observed_values", "future_observed_values"),
    *("past_feature", "future_feature", "past_is_pad", "kind", "size"),
)


def start(moment: str = "2024-01-01 05:00"):
    """Return a start as this release of GluonTS represents it."""
    from gluonts.dataset.common import ListDataset

    entry = {"start": moment, "target": [0.0]}
    (first,) = ListDataset([entry], freq="h" if pd.__version__ >= "2.2" else "H")
    return first["start"]


def entries(dimensions: int | None = None, missing: bool = False) -> list[dict]:
    generator = np.random.default_rng(0)
    found = []
    for number, length in enumerate(LENGTHS):
        shape = (length,) if dimensions is None else (dimensions, length)
        target = generator.standard_normal(shape).astype(np.float32)
        if missing:
            target[..., 7:12] = np.nan
        found.append(
            {
                "item_id": f"s{number}",
                "start": start(),
                "target": target,
                "feature": np.stack([np.arange(length), np.ones(length)]).astype("f4"),
                "kind": np.array([number]),
                "size": np.array([0.5, number], dtype=np.float32),
            }
        )
    return found


def pipeline(
    *after,
    sampler=None,
    past=6,
    future=4,
    lead=0,
    ntc=True,
    dummy=-3.0,
    cls=InstanceSplitter,
    fields=FIELDS,
    dimensions=None,
):
    sampler = sampler or ExpectedNumInstanceSampler(
        num_instances=1.0, min_future=future + lead
    )
    splitter = cls(
        target_field=FieldName.TARGET,
        is_pad_field=FieldName.IS_PAD,
        start_field=FieldName.START,
        forecast_start_field=FieldName.FORECAST_START,
        instance_sampler=sampler,
        past_length=past,
        future_length=future,
        lead_time=lead,
        output_NTC=ntc,
        time_series_fields=["feature", FieldName.OBSERVED_VALUES],
        dummy_value=dummy,
    )
    parts = [
        AsNumpyArray("target", expected_ndim=1 if dimensions is None else 2),
        AddObservedValuesIndicator("target", FieldName.OBSERVED_VALUES),
        splitter,
        *after,
    ]
    return Chain([*parts, SelectFields(list(fields))] if fields else parts)


def assert_same_batches(chain: Chain, data: list[dict]) -> InstanceIndex:
    windows = Pipeline.read(chain).windows(data)
    splits = splits_of(windows)
    found, expected = (
        windows.gather(torch.arange(len(windows))),
        library_batch(chain, data, splits),
    )
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype, name
        torch.testing.assert_close(found[name], values, rtol=0, atol=0, msg=name)
    return windows


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("dimensions", [None, 3])
@pytest.mark.parametrize(
    "changes", [{}, {"lead": 3}, {"ntc": False}, {"past": 30}, {"past": 1, "future": 1}]
)
def test_batches_equal_those_of_the_instance_splitter(changes, dimensions, missing):
    data = entries(dimensions, missing)
    windows = assert_same_batches(pipeline(dimensions=dimensions, **changes), data)
    future, lead = changes.get("future", 4), changes.get("lead", 0)
    # Every split with a step before it and the prediction range after it.
    expected = [
        (n, split)
        for n, length in enumerate(LENGTHS)
        for split in range(1, length - future - lead + 1)
    ]
    assert splits_of(windows) == expected


def test_windows_respect_the_bounds_of_the_sampler():
    sampler = ExpectedNumInstanceSampler(num_instances=1.0, min_past=9, min_future=7)
    windows = assert_same_batches(pipeline(sampler=sampler), entries())
    assert splits_of(windows)[0] == (0, 9)
    assert splits_of(windows)[-1] == (2, 40 - 7)
    assert windows.context == "full"


def test_validation_sampler_selects_the_last_window_of_each_series():
    sampler = ValidationSplitSampler(min_future=4)
    windows = assert_same_batches(pipeline(sampler=sampler), entries())
    assert splits_of(windows) == [(0, 36), (1, 21), (2, 36)]


def test_renamed_fields_are_gathered():
    rename = RenameFields({"past_target": "past_target_cdf", "kind": "sort"})
    fields = ["past_target_cdf", "future_target", "sort"]
    windows = assert_same_batches(pipeline(rename, fields=fields), entries())
    assert windows.fields == ("past_target_cdf", "future_target", "sort")
    alone = windows.gather(torch.tensor([3]), ["sort"])
    assert list(alone) == ["sort"]


class AnotherSplitter(InstanceSplitter):
    """A splitter that is not supported natively."""


def test_unsupported_splitter_may_have_another_target_and_no_prediction_range():
    splitter = CanonicalInstanceSplitter(
        target_field="y",
        is_pad_field=FieldName.IS_PAD,
        start_field=FieldName.START,
        forecast_start_field=FieldName.FORECAST_START,
        instance_sampler=ExpectedNumInstanceSampler(num_instances=1.0, min_past=6),
        instance_length=6,
        allow_target_padding=False,
    )
    data = [{**e, "y": e["target"]} for e in entries()]
    with pytest.warns(ScottWarning, match="CanonicalInstanceSplitter is not supported"):
        windows = Pipeline.read(Chain([splitter, SelectFields(["past_y"])])).windows(data)
    found = windows.gather(torch.tensor([0, 3]))["past_y"]
    np.testing.assert_allclose(found[1], data[0]["target"][3:9])


def test_unsupported_splitter_uses_the_librarys_pipeline():
    chain = pipeline(cls=AnotherSplitter)
    with pytest.warns(ScottWarning, match="AnotherSplitter is not supported natively"):
        windows = Pipeline.read(chain).windows(entries())
    assert isinstance(windows, PipelineIndex)
    known = Pipeline.read(pipeline()).windows(entries())
    numbers = torch.tensor([0, 5, 20, 40, len(known) - 1])
    assert len(windows) == len(known)
    found, expected = windows.gather(numbers), known.gather(numbers)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=0, atol=0, msg=name)


def test_strata_belong_to_the_forecast_start_after_the_lead_time():
    policy = Stratifier.calendar("hour")
    data = entries()
    for lead in (0, 3):
        chain = pipeline(lead=lead, fields=None)
        windows = Pipeline.read(
            Chain([*chain.transformations, SelectFields(["past_target"])])
        ).windows(data)
        strata = policy.stratify(windows)
        codes = {}
        for number, (series, split) in enumerate(splits_of(windows)):
            parts = [copy.copy(part) for part in chain.transformations]
            parts[2].instance_sampler = SplitAt(split)
            (row,) = (Chain(parts) + policy)([dict(data[series])], is_train=True)
            codes.setdefault(row["stratum"], []).append(number)
        sizes = sorted(len(numbers) for numbers in codes.values())
        assert sorted(strata.sizes.tolist()) == sizes


def test_values_shared_by_series_are_stored_once():
    windows = Pipeline.read(pipeline()).windows(entries())
    assert len(windows.store.values["target"]) == sum(LENGTHS)
    assert len(windows.store.values["feature"]) == 40 + 25  # two of them are equal


def test_warning_names_series_that_are_too_short_and_left_out():
    with pytest.warns(ScottWarning, match="1 of 3 series are shorter than 31 steps.*s1"):
        windows = Pipeline.read(pipeline(future=30)).windows(entries())
    assert windows.series.item_ids == ("s0", "s2")
    with (
        pytest.warns(ScottWarning, match="3 of 3"),
        pytest.raises(EmptyDatasetError, match="no series has the 101 steps"),
    ):
        Pipeline.read(pipeline(future=100)).windows(entries())
    with pytest.raises(EmptyDatasetError, match="no series"):
        Pipeline.read(pipeline()).windows([])


def test_error_names_missing_field():
    data = entries()
    del data[1]["kind"]
    with pytest.raises(DataError, match="series 's1' has no field 'kind'"):
        Pipeline.read(pipeline()).windows(data)


def test_error_names_field_whose_dimensions_differ():
    data = entries()
    data[1]["feature"] = data[1]["feature"][:1]
    with pytest.raises(DataError, match="'feature' of series 's1'"):
        Pipeline.read(pipeline()).windows(data)


def test_feature_shorter_than_its_target_is_rejected():
    data = entries()
    data[0]["feature"] = data[0]["feature"][:, :-10]
    with pytest.raises(DataError, match=r"'feature' of series 's0' has shape \(2, 30\)"):
        Pipeline.read(pipeline()).windows(data)


def test_features_of_several_types_keep_their_values():
    data = entries()
    data[0]["feature"] = data[0]["feature"].astype(np.int64)
    data[1]["feature"] = data[1]["feature"] + 0.5
    windows = Pipeline.read(pipeline()).windows(data)
    number = splits_of(windows).index((1, 8))
    found = windows.gather(torch.tensor([number]))["future_feature"]
    np.testing.assert_allclose(found[0], data[1]["feature"][:, 8:12].T)


def test_static_features_of_different_shapes_are_rejected():
    data = entries()
    data[2]["size"] = data[2]["size"][:1]
    with pytest.raises(DataError, match="'size' of series 's2' has shape"):
        Pipeline.read(pipeline()).windows(data)


@pytest.mark.parametrize("changes", [{}, {"lead": 3}, {"past": 30}, {"ntc": False}])
@pytest.mark.parametrize("dimensions", [None, 3])
def test_contexts_are_values_of_the_target(changes, dimensions):
    """Regardless of how the instances name and transform it."""
    fields = ["renamed"]
    rename = RenameFields({"past_target": "renamed"})
    chain = pipeline(rename, fields=fields, dummy=0.0, dimensions=dimensions, **changes)
    windows = Pipeline.read(chain).windows(entries(dimensions))
    numbers = torch.arange(len(windows))
    expected = windows.gather(numbers)["renamed"]
    if "ntc" in changes and dimensions:
        expected = expected.mT
    torch.testing.assert_close(windows.contexts(numbers), expected, rtol=0, atol=0)


class MySampler(InstanceSampler):
    """A sampler with its own rule."""


def test_ignoring_a_custom_sampler_raises_a_warning():
    sampler = MySampler(min_future=4)
    with pytest.warns(ScottWarning, match="MySampler is not used"):
        Pipeline.read(pipeline(sampler=sampler)).windows(entries())


def test_pipeline_without_a_splitter_is_rejected():
    with pytest.raises(ModelError, match="no splitter with an instance_sampler"):
        Pipeline.read(Chain([AsNumpyArray("target", expected_ndim=1)]))


@pytest.mark.parametrize(
    ("past", "lead", "min_past"), [(6, 4, 3), (6, 4, 2), (6, 1, 5), (6, 4, 6), (3, 9, 1)]
)
def test_context_before_the_beginning_of_a_series_is_padded_with_a_lead_time(
    past, lead, min_past
):
    """The context ends at the split: the lead time does not extend it."""
    sampler = ExpectedNumInstanceSampler(
        num_instances=1.0, min_past=min_past, min_future=4 + lead
    )
    chain = pipeline(sampler=sampler, past=past, lead=lead)
    windows = assert_same_batches(chain, entries())
    assert splits_of(windows)[0] == (0, min_past)
    assert windows.context == ("padded" if min_past < past else "full")


@pytest.mark.parametrize("cls", [InstanceSplitter, AnotherSplitter])
@pytest.mark.parametrize("lead", [0, 3])
@pytest.mark.filterwarnings("ignore:AnotherSplitter is not supported natively")
@pytest.mark.filterwarnings("ignore:1 of 3 series are shorter")
def test_a_custom_stratifier_sees_the_features_that_entries_give(cls, lead):
    # The pipeline itself neither splits these features nor keeps them.
    data = entries()
    for number, entry in enumerate(data):
        steps = np.arange(len(entry["target"]))
        entry["feat_dynamic_real"] = np.stack([steps, steps + 100 * number])
        entry["feat_static_cat"] = np.array([number])
    chain = pipeline(cls=cls, lead=lead, past=30, future=20)  # s1 is left out
    windows = Pipeline.read(chain).windows(data)
    seen = []

    def record(item_id, start, window):
        past = window["past_feat_dynamic_real"]
        future = window["future_feat_dynamic_real"]
        assert (past.shape, future.shape) == ((30, 2), (20, 2))
        assert (future[:, 1] == future[:, 0] + 100 * int(item_id[1])).all()
        assert window["feat_static_cat"].tolist() == [int(item_id[1])]
        first = future[0, 0]
        # The context ends lead steps earlier, and begins with padding.
        assert past[-1, 0] == first - lead - 1
        assert past[0, 0] == max(0, first - lead - 30)
        seen.append((int(item_id[1]), int(first - lead)))
        return bool(future[:, 0].max() > 35)

    strata = Stratifier.custom(record).stratify(windows)
    assert seen == splits_of(windows)
    assert len(strata) == 2
