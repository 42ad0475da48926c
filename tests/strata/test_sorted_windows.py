"""Sorted windows: computed from blocks or listed, strata hold the same windows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pts_scott import Stratifier, WindowIndex
from pts_scott.strata.codes import Codes
from pts_scott.strata.sorted_windows import BlockOrder, ListOrder, sort_windows

POLICIES = [
    Stratifier.calendar("hour"),
    Stratifier.calendar("weekday", "hour"),
    Stratifier.series(),
    Stratifier.periodic(3) * Stratifier.series(),
    Stratifier.calendar("hour") * Stratifier.periodic(5),
]


@st.composite
def indices(draw) -> WindowIndex:
    first = pd.Timestamp("2024-01-01")
    entries = [
        {
            # Few names and starts, so that series share strata, spans, or both.
            "item_id": draw(st.sampled_from("abc")),
            "start": first + pd.Timedelta(draw(st.sampled_from([0, 1, 7, 5000])), "h"),
            "target": np.zeros(draw(st.sampled_from([9, 20, 21, 60]))),
        }
        for _ in range(draw(st.integers(1, 6)))
    ]
    stride = draw(st.integers(1, 5))
    context = draw(st.sampled_from(["full", "padded"]))
    return WindowIndex.from_dataset(entries, "h", 5, 2, stride=stride, context=context)


def members(result) -> dict[int, set[int]]:
    """Return the windows of each stratum, by its code."""
    numbers = result.order.windows(torch.arange(int(result.sizes.sum()))).numpy()
    parts = np.split(numbers, result.sizes.cumsum()[:-1])
    assert len(set(numbers)) == len(numbers)
    return {int(code): set(part) for code, part in zip(result.codes, parts)}


@given(indices(), st.sampled_from(POLICIES))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_block_order_and_list_order_hold_the_same_windows(windows, policy):
    codes = policy.fit(windows).codes(windows)
    blocks = sort_windows(codes, windows)
    listed = sort_windows(Codes(windows=codes.expand(windows)), windows)
    assert isinstance(blocks.order, BlockOrder)
    assert isinstance(listed.order, ListOrder)
    assert members(blocks) == members(listed)


@given(indices())
@settings(max_examples=50, deadline=None, derandomize=True)
def test_starts_are_the_forecast_starts_of_all_windows(windows):
    rows = windows.rows(np.arange(len(windows)))[1]
    assert np.flatnonzero(windows.starts()).tolist() == sorted(set(rows))


def test_memory_grows_with_series_and_steps_not_with_windows():
    entries = [
        {"item_id": str(i), "start": "2024-01-01", "target": np.zeros(2000)}
        for i in range(50)
    ]
    windows = WindowIndex.from_dataset(entries, "h", 24, 1)
    policy = Stratifier.calendar("weekday") * Stratifier.series()
    order = policy.stratify(windows).sorted
    held = sum(v.numel() for v in vars(order).values() if isinstance(v, torch.Tensor))
    assert held < 10 * (50 + 2000) < len(windows)


@given(indices(), st.sampled_from([1, 7, 2**20]))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_windows_sorted_in_chunks_are_in_stable_order(windows, chunk):
    codes = (np.arange(len(windows)) * 7 % 5).astype(np.int16) - 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pts_scott.strata.sorted_windows.CHUNK", chunk)
        result = sort_windows(Codes(windows=codes), windows)
    expected, sizes = np.unique(codes, return_counts=True)
    assert np.array_equal(result.codes, expected)
    assert np.array_equal(result.sizes, sizes)
    order = result.order.windows(torch.arange(len(windows)))
    assert order.dtype == torch.int64
    assert np.array_equal(order, np.argsort(codes, kind="stable"))
