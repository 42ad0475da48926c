"""Stratum codes: stable between processes, and equal for equal labels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pts_scott import Stratifier
from pts_scott.errors import DataError


def test_codes_do_not_depend_on_the_process():
    # Python's built-in hash of a string differs between processes.
    instance = {"item_id": "client 7", "forecast_start": pd.Timestamp("2020-01-01")}
    assert Stratifier.series().code(instance) == 765314024777430191
    assert Stratifier.random(49).code(instance) == 32


def test_equal_labels_of_different_types_share_a_stratum(windows):
    labels = [1, 1.0, True, np.int64(1), np.float32(1.0)]
    policy = Stratifier.custom(lambda i, moment, _: (labels[moment.hour % 5], 0.5))
    assert len(policy.stratify(windows)) == 1


def test_instance_without_item_id_raises():
    with pytest.raises(DataError, match="item_id"):
        Stratifier.series().code({"forecast_start": pd.Timestamp("2020-01-01")})
