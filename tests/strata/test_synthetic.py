"""The policy of the paper's synthetic data."""

from __future__ import annotations

from pts_scott.datasets.synthetic import synthetic_windows
from pts_scott.strata.synthetic import synthetic_stratifier


def test_synthetic_data_has_the_papers_16_strata():
    strata = synthetic_stratifier().stratify(synthetic_windows(repetitions=5))
    assert len(strata) == 16
