"""The paper's synthetic data."""

from __future__ import annotations

import numpy as np

from pts_scott.datasets.synthetic import patterns, synthetic_series, synthetic_windows
from pts_scott.strata.synthetic import synthetic_stratifier


def test_series_repeat_their_patterns_with_unit_noise():
    series = synthetic_series(repetitions=500)
    assert series.shape == (4, 96 * 500)
    for row, order in zip(
        series, [(0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3), (3, 1, 2, 0)]
    ):
        clean = np.tile(np.concatenate([patterns()[k] for k in order]), 500)
        noise = row - clean
        # 48,000 draws know mean and deviation to half a percent.
        assert abs(noise.mean()) < 0.025
        assert abs(noise.std() - 1) < 0.025


def test_patterns_are_the_papers():
    t = np.arange(1, 25)
    np.testing.assert_allclose(patterns(), [np.sin(t), t, t**2, np.sqrt(t)])


def test_a_stratum_is_one_series_and_one_predicted_pattern():
    windows = synthetic_windows(repetitions=20)
    strata = synthetic_stratifier().stratify(windows)
    futures = windows.gather(strata.order, ["future_target"])["future_target"].numpy()
    nearest = np.abs(futures[:, None] - patterns()[None]).sum(axis=2).argmin(axis=1)
    series = windows.locate(strata.order)[0].numpy()
    kinds = list(zip(series, nearest))
    parts = np.split(np.arange(len(kinds)), np.cumsum(strata.sizes.numpy())[:-1])
    assert [len({kinds[i] for i in part}) for part in parts] == [1] * 16
    assert len(set(kinds)) == 16


def test_the_papers_size():
    windows = synthetic_windows()
    assert len(windows) == 4 * (2000 * 4 - 3)
