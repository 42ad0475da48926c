"""k-means policy: clusters of window features."""

from __future__ import annotations

import numpy as np
import pytest
from gluonts.transform import AddObservedValuesIndicator, Chain
from helpers.instances import splitter
from helpers.series import dataset, wave_windows

from pts_scott import Stratifier, WindowIndex
from pts_scott.errors import ArgumentError


def test_kmeans_separates_different_kinds_of_windows():
    t = np.arange(200)
    rows = np.stack([np.sin(t), 100 + np.sin(t / 5), (t % 3 == 0)])
    data = dataset(rows, "h")
    windows = WindowIndex.from_dataset(data, "h", 24, 1)
    policy = Stratifier.kmeans(3).fit(windows)
    strata = policy.stratify(windows)
    per_series = strata.order.numpy() // (len(windows) // 3)
    groups = np.split(per_series, np.cumsum(strata.sizes.numpy())[:-1])
    assert all(len(set(group)) == 1 for group in groups)

    chain = Chain(
        [AddObservedValuesIndicator("target", "observed_values"), splitter(24, 1), policy]
    )
    tagged = [instance["stratum"] for instance in chain(iter(data), is_train=True)]
    assert tagged == policy.codes(windows).expand(windows).tolist()


def test_kmeans_accepts_a_feature_function():
    windows = wave_windows()
    strata = Stratifier.kmeans(3, features=lambda x: x.mean(axis=1, keepdims=True))
    assert len(strata.stratify(windows)) == 3


def test_unknown_feature_raises_with_the_nearest_name():
    with pytest.raises(ArgumentError, match="'spectrum'"):
        Stratifier.kmeans(3, features=["spectra"])
