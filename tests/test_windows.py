"""Windows: counted, gathered and drawn as the obvious slow code would."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import dataset, wave_entries, wave_windows
from gluonts.transform import (
    AddObservedValuesIndicator,
    InstanceSampler,
    InstanceSplitter,
)

from pts_scott import WindowIndex
from pts_scott.errors import (
    ArgumentError,
    DataError,
    EmptyDatasetError,
    InfiniteValuesError,
    ShortSeriesError,
)


class EveryWindow(InstanceSampler):
    """All forecast starts of a series, as GluonTS' samplers give them."""

    stride: int = 1

    def __call__(self, ts: np.ndarray) -> np.ndarray:
        first, last = self._get_bounds(ts)
        return np.arange(first, last + 1, self.stride)


def splitter(context_length: int, prediction_length: int, stride=1, context="full"):
    return InstanceSplitter(
        target_field="target",
        is_pad_field="is_pad",
        start_field="start",
        forecast_start_field="forecast_start",
        instance_sampler=EveryWindow(
            min_past=context_length if context == "full" else 1,
            min_future=prediction_length,
            stride=stride,
        ),
        past_length=context_length,
        future_length=prediction_length,
        time_series_fields=["observed_values"],
    )


FIELDS = (
    "past_target",
    "future_target",
    "past_observed_values",
    "future_observed_values",
    "past_is_pad",
)


@pytest.mark.parametrize("context", ["full", "padded"])
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("dimensions", [None, 2])
def test_gathered_windows_equal_those_of_the_instance_splitter(
    context, stride, dimensions
):
    generator = np.random.default_rng(1)
    shape = () if dimensions is None else (dimensions,)
    entries = [
        {
            "item_id": name,
            "start": "2020-01-01",
            "target": generator.standard_normal((*shape, length)).astype(np.float32),
        }
        for name, length in (("a", 20), ("b", 13), ("c", 31))
    ]
    entries[1]["target"][..., 4:7] = np.nan
    from gluonts.dataset.common import ListDataset

    data = ListDataset(entries, freq="D", one_dim_target=dimensions is None)
    windows = WindowIndex.from_dataset(data, "D", 5, 2, stride=stride, context=context)
    chain = AddObservedValuesIndicator("target", "observed_values") + splitter(
        5, 2, stride, context
    )
    instances = list(chain(iter(data), is_train=True))
    assert len(windows) == len(instances)
    batch = windows.gather(torch.arange(len(windows)))
    for name in FIELDS:
        expected = np.stack([instance[name] for instance in instances])
        np.testing.assert_array_equal(batch[name].numpy(), expected, err_msg=name)


def test_series_are_not_copied_for_each_window():
    length = 100_000
    windows = WindowIndex.from_dataset(
        [{"start": "2020-01-01", "target": np.zeros(length)}], "h", 1000, 24
    )
    tensors = [v for v in vars(windows).values() if isinstance(v, torch.Tensor)]
    tensors += [v for v in vars(windows.series).values() if isinstance(v, torch.Tensor)]
    assert sum(t.numel() for t in tensors) < 2 * length
    assert len(windows) == length - 1000 - 24 + 1


def test_uniform_draws_reach_every_window_equally(windows):
    draws = windows.draw(200_000, torch.Generator().manual_seed(0))
    counts = torch.bincount(draws, minlength=len(windows)).double()
    expected = 200_000 / len(windows)
    # Five standard deviations of a Poisson count.
    assert (counts - expected).abs().max() < 5 * expected**0.5


def test_draws_depend_on_the_generator_alone(windows):
    def draw():
        return windows.draw(10, torch.Generator().manual_seed(4))

    first = draw()
    torch.manual_seed(99)
    assert torch.equal(first, draw())


def test_the_last_windows_are_those_that_gluonts_validates_on(windows):
    last = windows.last()
    assert len(last) == 3
    batch = last.gather(torch.arange(3), ["future_target"])
    expected = np.stack([entry["target"][-2:] for entry in wave_entries()])
    np.testing.assert_allclose(batch["future_target"].numpy(), expected)


def test_missing_values_are_zero_and_not_observed():
    entry = {"start": "2020-01-01", "target": [1.0, np.nan, 3.0, 4.0]}
    windows = WindowIndex.from_dataset([entry], "D", 2, 2)
    batch = windows.gather(torch.tensor([0]))
    assert batch["past_target"].tolist() == [[1.0, 0.0]]
    assert batch["past_observed_values"].tolist() == [[1.0, 0.0]]
    assert windows.series.first_missing() == ("0", pd.Timestamp("2020-01-02"))


def test_an_empty_dataset_is_refused():
    with pytest.raises(EmptyDatasetError, match="no series"):
        WindowIndex.from_dataset([], "D", 2, 1)


def test_a_generator_that_was_read_before_is_refused():
    entries = (entry for entry in wave_entries())
    WindowIndex.from_dataset(entries, "h", 6, 2)
    with pytest.raises(EmptyDatasetError, match="generator"):
        WindowIndex.from_dataset(entries, "h", 6, 2)


def test_short_series_are_named():
    rows = dataset(np.zeros((1, 30)), "D")
    short = [
        {"item_id": "tiny", "start": next(iter(rows))["start"], "target": [1.0, 2.0]}
    ]
    with pytest.raises(
        ShortSeriesError, match=r"1 of 2 series .* 9 steps: 'tiny'.*padded"
    ):
        WindowIndex.from_dataset([*rows, *short], "D", 8, 1)


def test_an_infinite_target_is_named():
    entry = {"item_id": "x", "start": "2020-01-01", "target": [1.0, np.inf, 3.0]}
    with pytest.raises(InfiniteValuesError, match="'x' is infinite at 2020-01-02"):
        WindowIndex.from_dataset([entry], "D", 1, 1)


def test_a_target_that_overflows_single_precision_is_named():
    entry = {"start": "2020-01-01", "target": [1.0, 1e39, 3.0]}
    with pytest.raises(InfiniteValuesError, match="float32"):
        WindowIndex.from_dataset([entry], "D", 1, 1)
    WindowIndex.from_dataset([entry], "D", 1, 1, dtype=torch.float64)


def test_series_without_item_id_are_known_by_their_place():
    entries = [{"item_id": None, "start": "2020-01-01", "target": np.ones(5)}] * 2
    windows = WindowIndex.from_dataset(entries, "D", 1, 1)
    assert windows.series.item_ids == ("0", "1")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"start": "2020-01-01"}, "no field 'target'"),
        ({"target": [1.0, 2.0]}, "no field 'start'"),
        ({"start": "2020-01-01", "target": ["a", "b"]}, "not numeric"),
        ({"start": "2020-01-01", "target": ["1", "2"]}, "not numeric"),
        ({"start": "2020-01-01", "target": [1j, 2j]}, "not numeric"),
        ("start", "holds a str"),
        ({"start": "2020-01-01", "target": np.zeros((2, 2, 2))}, "has shape"),
    ],
)
def test_unusable_entries_are_refused(entry, message):
    with pytest.raises(DataError, match=message):
        WindowIndex.from_dataset([entry], "D", 1, 1)


@pytest.mark.parametrize("given", [None, {"start": 1}, pd.DataFrame({"a": [1]})])
def test_what_is_not_a_dataset_is_refused(given):
    with pytest.raises(DataError, match="ListDataset"):
        WindowIndex.from_dataset(given, "D", 1, 1)


def test_series_without_any_value_are_refused():
    entry = {"start": "2020-01-01", "target": [np.nan] * 9}
    with pytest.raises(EmptyDatasetError, match="all targets are missing"):
        WindowIndex.from_dataset([entry], "D", 1, 1)


def test_an_empty_series_is_a_short_one():
    with pytest.raises(ShortSeriesError, match="'0'"):
        WindowIndex.from_dataset([{"start": "2020-01-01", "target": []}], "D", 1, 1)


def test_series_of_different_dimensions_are_refused():
    entries = [
        {"start": "2020-01-01", "target": np.zeros(5)},
        {"start": "2020-01-01", "target": np.zeros((2, 5))},
    ]
    with pytest.raises(DataError, match="all series need the same"):
        WindowIndex.from_dataset(entries, "D", 1, 1)


@pytest.mark.parametrize("kwargs", [{"stride": 0}, {"stride": 1.5}, {"context": "half"}])
def test_settings_out_of_range_are_refused(kwargs):
    with pytest.raises(ArgumentError, match=next(iter(kwargs))):
        wave_windows(**kwargs)
