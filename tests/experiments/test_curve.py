"""The loss curve: equal shares of the budget, evenly spaced windows."""

from __future__ import annotations

import numpy as np
import pytest

from pts_scott import WindowIndex
from pts_scott.experiments.curve import select_windows
from pts_scott.experiments.run import perform


def test_curve_has_equal_shares_of_the_budget_from_start_to_end(setting):
    run = perform(setting, "SGD", seed=0)
    curve = run.curve
    assert list(curve.columns) == [
        *("step", "gradients", "seconds", "train_loss", "test_loss")
    ]
    assert curve["step"].iloc[0] == 0
    assert curve["step"].iloc[-1] == run.record["steps"] == 500
    # Four shares of 500 steps, each measured at the end of an outer loop of 20 steps.
    np.testing.assert_allclose(curve["step"], [0, 125, 250, 375, 500], atol=20)
    # There are so few windows that both curve and table use all of them.
    assert curve["test_loss"].iloc[-1] == pytest.approx(run.record["test_loss"])


def test_selected_windows_are_evenly_spaced(windows: WindowIndex):
    indices = select_windows(windows, 10)
    assert indices[0] == 0
    assert indices[-1] == len(windows) - 1
    gaps = indices.diff()
    assert gaps.max() - gaps.min() <= 1
    for limit in (None, len(windows), 10**6):
        assert len(select_windows(windows, limit)) == len(windows)
