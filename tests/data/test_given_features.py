"""Features of a window, as a user's function sees them."""

from __future__ import annotations

import numpy as np
import pytest

from pts_scott.data.given_features import (
    collected,
    feature_arrays,
    features_of,
    window_features,
)
from pts_scott.errors import DataError


def test_known_past_and_static_features_of_a_window():
    entry = {
        "target": np.zeros(6),
        "feat_dynamic_real": np.arange(12).reshape(2, 6),
        "past_feat_dynamic_real": [[0, 1, 2, 3, 4, 5]],
        "feat_static_cat": [7],
        "feat_static_real": None,
        "feat_dynamic_cat": np.empty((0, 6)),
    }
    given = feature_arrays(features_of(entry), "a")
    found = window_features(given, "a", range(1, 3), range(3, 5))
    assert {name: values.tolist() for name, values in found.items()} == {
        "past_feat_dynamic_real": [[1, 7], [2, 8]],
        "future_feat_dynamic_real": [[3, 9], [4, 10]],
        "past_past_feat_dynamic_real": [[1], [2]],
        "feat_static_cat": [7],
    }


def test_steps_before_the_series_are_zero():
    given = {"feat_dynamic_real": np.array([[5, 6, 7]])}
    found = window_features(given, "a", range(-2, 1), range(1, 3))
    assert found["past_feat_dynamic_real"].tolist() == [[0], [0], [5]]
    assert found["future_feat_dynamic_real"].tolist() == [[6], [7]]
    outside = window_features(given, "a", range(-4, -1), range(0, 1))
    assert outside["past_feat_dynamic_real"].tolist() == [[0], [0], [0]]


def test_a_function_may_write_into_features():
    given = {"feat_dynamic_real": np.array([[5, 6, 7]])}
    given["feat_static_real"] = np.array([1.0])
    for values in window_features(given, "a", range(0, 2), range(2, 3)).values():
        values[:] = 0
    assert given["feat_dynamic_real"].tolist() == [[5, 6, 7]]
    assert given["feat_static_real"].tolist() == [1.0]


def test_features_are_read_only_if_a_function_asks_for_them():
    ragged = features_of({"feat_dynamic_real": [[1, 2, 3], [1]]})
    with pytest.raises(DataError, match="of series 'a' cannot be read"):
        feature_arrays(ragged, "a")


def test_a_feature_that_ends_too_early_is_named():
    with pytest.raises(DataError, match=r"'feat_dynamic_real' of series 'a'"):
        window_features(
            {"feat_dynamic_real": np.zeros((1, 3))}, "a", range(2), range(2, 4)
        )


def test_series_without_features_cost_nothing():
    assert collected([{}, {}]) == ()
    assert len(collected([{}, {"feat_static_cat": np.zeros(1)}])) == 2
