"""Policy: the transformation, the product, and what every policy checks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.series import wave_windows

from pts_scott import Stratifier
from pts_scott.errors import (
    ArgumentError,
    EmptyStratumError,
    NotFittedError,
    TooManyStrataError,
)


def test_transformation_adds_only_the_stratum_field():
    instance = {"item_id": "a", "forecast_start": pd.Period("2024-05-15", "D")}
    policy = Stratifier.calendar("weekday")
    (tagged,) = policy(iter([instance]), is_train=True)
    assert tagged == {**instance, "stratum": 2}
    assert "stratum" not in instance


def test_dataset_instead_of_windows_raises():
    with pytest.raises(ArgumentError, match="create_windows"):
        Stratifier.series().describe([{"start": "2020-01-01", "target": [1.0]}])


def test_more_strata_than_windows_raise(windows):
    with pytest.raises(TooManyStrataError, match="only 117 windows"):
        Stratifier.random(1000).stratify(windows)


def test_declared_stratum_without_windows_raises():
    with pytest.raises(EmptyStratumError, match="no window falls into"):
        Stratifier.periodic(8).stratify(wave_windows(stride=8))


@pytest.mark.parametrize("policy", [Stratifier.ranges(3), Stratifier.kmeans(3)], ids=repr)
def test_code_before_fit_raises(policy):
    instance = {
        "item_id": "a",
        "forecast_start": pd.Timestamp("2020-01-01"),
        "past_target": np.zeros(6),
    }
    with pytest.raises(NotFittedError, match="fit"):
        policy.code(instance)
