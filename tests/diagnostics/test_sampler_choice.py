"""The choice of a sampler: candidates compared on windows they were not fitted to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.series import wave_windows

from pts_scott import Stratifier
from pts_scott.diagnostics.sampler_choice import (
    Measured,
    SamplerChoice,
    findings_table,
)


@pytest.fixture
def windows():
    return wave_windows()


def measured(windows, scale, seed=0, count=400):
    """Return gradients whose size depends on the series."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, len(windows), count)
    series, _ = windows.rows(numbers)
    rows = np.asarray(scale)[series][:, None] * rng.standard_normal((count, 6))
    return Measured(numbers, torch.from_numpy(rows))


def test_heterogeneous_series_are_found(windows):
    policies = {"series": Stratifier.series(), "weekday": Stratifier.calendar("weekday")}
    choice = SamplerChoice(windows, policies, 16)
    found = {
        f.label: f
        for f in choice.compare(measured(windows, [1, 20, 1]), np.arange(len(windows)))
    }
    weights = choice.strata("series").weights.numpy()
    labels = choice.strata("series").labels(range(3))
    spread = np.where([label == "series s1" for label in labels], 20.0, 1.0)
    bound = (weights @ spread) ** 2 / (weights @ spread**2)
    assert found["series"].spread.is_gain
    assert found["series"].best[0] == "spread"
    assert found["series"].spread.value == pytest.approx(bound, abs=0.1)
    assert not found["weekday"].proportional.is_gain


def test_homogeneous_gradients_show_no_gain(windows):
    policies = {"series": Stratifier.series(), "learned": Stratifier.learned(8)}
    choice = SamplerChoice(windows, policies, 16)
    gains = [
        finding.best[1].is_gain
        for seed in range(20)
        for finding in choice.compare(
            measured(windows, [1, 1, 1], seed), np.arange(len(windows))
        )
    ]
    # The better of two allocations beyond two standard errors: one in twenty by chance.
    assert sum(gains) <= 6


def test_partitions_with_too_few_windows_are_left_out(windows):
    policies = {"hour": Stratifier.calendar("hour"), "series": Stratifier.series()}
    choice = SamplerChoice(windows, policies, 16)
    few = measured(windows, [1, 1, 1], count=64)
    assert [f.label for f in choice.compare(few, np.arange(10))] == ["series"]


def test_a_single_stratum_is_no_candidate(windows):
    choice = SamplerChoice(windows, {"year": Stratifier.calendar("year")}, 16)
    assert choice.compare(measured(windows, [1, 1, 1]), np.arange(10)) == []


def test_layout_follows_the_spread(windows):
    choice = SamplerChoice(windows, {"series": Stratifier.series()}, 16)
    strata = choice.strata("series")
    layout = choice.layout(strata, measured(windows, [1, 20, 1]), "spread")
    labels = strata.labels(range(3))
    assert float(layout.shares.sum()) == pytest.approx(1.0)
    assert labels[int(layout.shares.argmax())] == "series s1"
    assert sorted(layout.order.tolist()) == [0, 1, 2]
    proportional = choice.layout(strata, measured(windows, [1, 20, 1]), "proportional")
    assert torch.equal(proportional.shares, strata.weights)
    equal = choice.layout(strata, measured(windows, [1, 20, 1]), "equal")
    assert equal.shares.tolist() == [1 / 3] * 3


def test_table_has_a_row_per_partition_and_allocation(windows):
    choice = SamplerChoice(windows, {"series": Stratifier.series()}, 16)
    findings = choice.compare(measured(windows, [1, 2, 3]), np.arange(10))
    table = findings_table(findings)
    assert table["allocation"].tolist() == ["proportional", "spread"]
    assert table["count"].tolist() == [3, 3]
    assert findings_table([]).columns.tolist() == table.columns.tolist()
