"""Windows are counted, gathered and drawn as the obvious slow code does."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from gluonts.dataset.common import ListDataset
from gluonts.transform import AddObservedValuesIndicator
from helpers.instances import splitter
from helpers.series import dataset, wave_entries, wave_windows
from hypothesis import given, settings
from hypothesis import strategies as st

from pts_scott import WindowIndex
from pts_scott.errors import (
    ArgumentError,
    ShortSeriesError,
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


@st.composite
def problems(draw) -> tuple[list[dict], dict]:
    """Draw a few short series, and the arguments of a window index."""
    settings = {
        "context_length": draw(st.integers(1, 6)),
        "prediction_length": draw(st.integers(1, 4)),
        "stride": draw(st.integers(1, 4)),
        "context": draw(st.sampled_from(["full", "padded"])),
    }
    full = settings["context"] == "full"
    shortest = settings["prediction_length"] + (settings["context_length"] if full else 1)
    shape = draw(st.sampled_from([(), (1,), (3,)]))
    same = draw(st.booleans())
    lengths = st.integers(shortest, shortest + 12)
    length, holes = draw(lengths), draw(st.sampled_from([0.0, 0.3, 0.9]))
    generator = np.random.default_rng(draw(st.integers(0, 999)))
    entries = []
    for number in range(draw(st.integers(1, 4))):
        size = (*shape, length if same else draw(lengths))
        target = generator.standard_normal(size).astype(np.float32)
        target[generator.random(size) < holes] = np.nan
        target[..., 0] = number  # at least one value
        entries.append({"start": "2020-01-01", "target": target})
    return entries, settings


def slow_windows(entries, context_length, prediction_length, stride, context):
    """Cut windows in the obvious way: step by step, one after the other."""
    for number, entry in enumerate(entries):
        steps = entry["target"].T.tolist()
        start = context_length if context == "full" else 1
        while start + prediction_length <= len(steps):
            values, observed, pad = [], [], []
            for step in range(start - context_length, start + prediction_length):
                value = np.array(
                    steps[step] if step >= 0 else np.full_like(steps[0], 0.0)
                )
                there = ~np.isnan(value) & (step >= 0)
                values.append(np.where(there, value, 0.0))
                observed.append(there)
                pad.append(step < 0)
            yield (
                number,
                start,
                {
                    "past_target": values[:context_length],
                    "future_target": values[context_length:],
                    "past_observed_values": observed[:context_length],
                    "future_observed_values": observed[context_length:],
                    "past_is_pad": pad[:context_length],
                },
            )
            start += stride


def assert_windows(windows: WindowIndex, numbers: list[int], expected: list) -> None:
    places = torch.tensor(numbers)
    series, starts = windows.locate(places)
    assert list(zip(series.tolist(), starts.tolist())) == [e[:2] for e in expected]
    batch = windows.gather(places)
    assert tuple(batch) == FIELDS
    for name, values in batch.items():
        slow = np.array([fields[name] for *_, fields in expected], dtype=np.float32)
        np.testing.assert_array_equal(values.numpy(), slow, err_msg=name)
        alone = windows.gather(places, [name])
        assert list(alone) == [name]
        assert torch.equal(alone[name], values)


@given(problems(), st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_windows_equal_those_of_a_slow_loop(problem, data):
    entries, how = problem
    windows = WindowIndex.from_dataset(entries, "D", **how)
    slow = list(slow_windows(entries, **how))
    assert len(windows) == len(slow)
    counts = [sum(series == i for series, *_ in slow) for i in range(len(entries))]
    assert windows.counts.tolist() == counts
    # Any windows, in any order, possibly repeated.
    numbers = data.draw(st.lists(st.integers(0, len(slow) - 1), min_size=1, max_size=8))
    assert_windows(windows, numbers, [slow[number] for number in numbers])
    assert_windows(windows, list(range(len(slow))), slow)


@given(problems())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_last_windows_equal_those_of_a_slow_loop(problem):
    entries, how = problem
    last = WindowIndex.from_dataset(entries, "D", **how).last()
    each = slow_windows(entries, **{**how, "stride": 1})
    slow = list({series: (series, *rest) for series, *rest in each}.values())
    assert_windows(last, list(range(len(entries))), slow)


def test_memory_does_not_grow_with_the_number_of_windows():
    length = 100_000
    windows = WindowIndex.from_dataset(
        [{"start": "2020-01-01", "target": np.zeros(length)}], "h", 1000, 24
    )
    tensors = [v for v in vars(windows).values() if isinstance(v, torch.Tensor)]
    tensors += [v for v in vars(windows.series).values() if isinstance(v, torch.Tensor)]
    assert sum(t.numel() for t in tensors) < 2 * length
    assert len(windows) == length - 1000 - 24 + 1


def test_every_window_is_drawn_equally_often(windows):
    draws = windows.draw(200_000, torch.Generator().manual_seed(0))
    counts = torch.bincount(draws, minlength=len(windows)).double()
    expected = 200_000 / len(windows)
    # Five standard deviations of a Poisson count.
    assert (counts - expected).abs().max() < 5 * expected**0.5


def test_draws_depend_only_on_the_generator(windows):
    def draw():
        return windows.draw(10, torch.Generator().manual_seed(4))

    first = draw()
    torch.manual_seed(99)
    assert torch.equal(first, draw())


def test_last_windows_are_those_that_gluonts_validates_on(windows):
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


def test_error_names_short_series():
    rows = dataset(np.zeros((1, 30)), "D")
    short = [
        {"item_id": "tiny", "start": next(iter(rows))["start"], "target": [1.0, 2.0]}
    ]
    with pytest.raises(
        ShortSeriesError, match=r"1 of 2 series .* 9 steps: 'tiny'.*padded"
    ):
        WindowIndex.from_dataset([*rows, *short], "D", 8, 1)


def test_empty_series_is_too_short():
    with pytest.raises(ShortSeriesError, match="'0'"):
        WindowIndex.from_dataset([{"start": "2020-01-01", "target": []}], "D", 1, 1)


@pytest.mark.parametrize("kwargs", [{"stride": 0}, {"stride": 1.5}, {"context": "half"}])
def test_invalid_arguments_are_rejected(kwargs):
    with pytest.raises(ArgumentError, match=next(iter(kwargs))):
        wave_windows(**kwargs)


@pytest.mark.parametrize("size", [2 * 10**8, 3 * 10**9, 5 * 10**10])
def test_draws_are_uniform_for_billions_of_windows(windows, size):
    """A remainder of 32 bits favours the first 2^32 mod size windows."""
    large = copy.copy(windows)
    large._size = size
    draws = 10**6
    drawn = large.draw(draws, torch.Generator().manual_seed(0)).double()
    assert 0 <= int(drawn.min()) <= int(drawn.max()) < size
    for share in (0.25, 2**32 % size / size, 0.5, 0.75):
        found = float((drawn < share * size).double().mean())
        # Five standard deviations; at 2e8 windows a remainder is off by twenty.
        assert abs(found - share) < 5 * (share * (1 - share) / draws) ** 0.5
    pieces = torch.histc(drawn, 100, 0, size) / draws
    assert float((pieces - 0.01).abs().max()) < 5 * (0.01 * 0.99 / draws) ** 0.5


def test_padding_is_suggested_only_where_it_helps():
    entries = [{"item_id": "a", "start": "2024-01-01", "target": np.arange(600.0)}]
    with pytest.raises(ShortSeriesError, match="shorten prediction_length") as caught:
        WindowIndex.from_dataset(entries, "h", 3000, 1000)
    assert "padded" not in str(caught.value)
    with pytest.raises(ShortSeriesError, match="context='padded'"):
        WindowIndex.from_dataset(entries, "h", 3000, 100)
