"""Window features: running sums equal the contexts themselves."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.series import wave_windows

from pts_scott import WindowIndex
from pts_scott.strata import window_features
from pts_scott.strata.window_features import CONTEXT, WindowFeatures, context_features


def odd_entries() -> list[dict]:
    """Return series with gaps, constants, zeros, large levels and tiny changes."""
    rng = np.random.default_rng(0)
    steps = np.arange(60.0)
    targets = [
        np.where(steps % 7 == 0, np.nan, rng.standard_normal(60)),
        np.full(60, 3.0),
        np.zeros(60),
        1e6 + rng.standard_normal(60),
        np.where(steps < 30, 5.0, 5.0 + steps),
        1e-6 * rng.random(60),
    ]
    return [
        {"item_id": str(k), "start": pd.Timestamp("2021-01-01"), "target": target}
        for k, target in enumerate(targets)
    ]


@pytest.mark.parametrize("context", ["full", "padded"])
@pytest.mark.parametrize("stride", [1, 3])
def test_running_sums_equal_the_contexts(context, stride):
    index = WindowIndex.from_dataset(
        odd_entries(), "h", 8, 2, context=context, stride=stride, dtype=torch.float64
    )
    numbers = np.arange(len(index))
    found = WindowFeatures(index).at(numbers)[:, : len(CONTEXT)]
    contexts = index.contexts(torch.from_numpy(numbers)).numpy()
    # Sums over 60 values of 1e6 lose ten digits of sixteen; features have seven.
    np.testing.assert_allclose(found, context_features(contexts), rtol=2e-5, atol=1e-6)


def test_large_data_is_read_in_chunks(monkeypatch):
    index = wave_windows()
    numbers = np.arange(len(index))
    expected = WindowFeatures(index).at(numbers)
    monkeypatch.setattr(window_features, "MAX_SUMMED", 0)
    monkeypatch.setattr(window_features, "CHUNK", 7)
    found = WindowFeatures(index).at(numbers)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_features_of_a_context_by_hand():
    context = np.array([[0.0, 2.0, 4.0, 2.0]])
    level, spread, last, recent, zeros = context_features(context)[0]
    assert level == pytest.approx(np.log1p(2.0))
    assert spread == pytest.approx(np.sqrt(2.0) / 2)
    assert (last, recent) == (0.0, 0.0)
    assert zeros == 0.25


def test_a_constant_context_has_no_spread():
    features = context_features(np.full((1, 5), 7.0))[0]
    assert features[1:4].tolist() == [0.0, 0.0, 0.0]


def test_several_dimensions_are_averaged():
    rng = np.random.default_rng(0)
    contexts = rng.random((4, 6, 3))
    np.testing.assert_array_equal(
        context_features(contexts), context_features(contexts.mean(axis=2))
    )


def test_calendar_features_suit_the_frequency():
    daily = [{"start": pd.Timestamp("2021-01-01"), "target": np.arange(40.0)}]
    index = WindowIndex.from_dataset(daily, "D", 6, 2)
    names = WindowFeatures(index).names
    assert "hour" not in names
    assert {"weekday", "day", "month"} <= set(names)


@pytest.mark.parametrize("stretch", [1, 100, 10**6])
def test_series_features_do_not_depend_on_how_series_are_grouped(stretch, monkeypatch):
    monkeypatch.setattr(window_features, "STRETCH", stretch)
    entries = odd_entries()
    index = WindowIndex.from_dataset(entries, "h", 8, 2, dtype=torch.float64)
    found = WindowFeatures(index).series
    for row, entry in zip(found, entries, strict=True):
        x = np.nan_to_num(entry["target"])
        size = np.abs(x).mean() or 1.0
        change = np.abs(np.diff(x)).mean() / size
        expected = np.log1p(size), x.std() / size, change
        np.testing.assert_allclose(row, expected, rtol=1e-9, atol=1e-15)
