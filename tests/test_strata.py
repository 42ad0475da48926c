"""Strata: a partition with weights, a table, and draws within each stratum."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pts_scott import Stratifier

POLICY = Stratifier.periodic(3) * Stratifier.series()


def test_strata_are_a_partition_of_all_windows(windows):
    strata = POLICY.stratify(windows)
    assert sorted(strata.order.tolist()) == list(range(len(windows)))
    assert int(strata.sizes.sum()) == len(windows)
    assert float(strata.weights.sum()) == pytest.approx(1.0)
    codes = strata.stratifier.codes(windows).expand(windows)
    parts = np.split(strata.order.numpy(), np.cumsum(strata.sizes.numpy())[:-1])
    assert [set(codes[part]) for part in parts] == [{code} for code in strata.codes]


def test_several_draws_at_once_are_those_of_single_calls(windows):
    strata = (Stratifier.periodic(3) * Stratifier.series()).stratify(windows)
    at_once, singly = (torch.Generator().manual_seed(5) for _ in range(2))
    together = strata.draw(2, at_once, times=4)
    alone = torch.cat([strata.draw(2, singly) for _ in range(4)])
    assert torch.equal(together, alone)


def test_draws_lie_in_their_stratum_and_reach_all_of_it(windows):
    strata = POLICY.stratify(windows)
    generator = torch.Generator().manual_seed(0)
    member = torch.empty(len(windows), dtype=torch.long)
    member[strata.order] = torch.arange(len(strata)).repeat_interleave(strata.sizes)
    draws = strata.draw(4000, generator).reshape(len(strata), 4000)
    for stratum, row in enumerate(draws):
        assert (member[row] == stratum).all()
        counts = torch.bincount(row, minlength=len(windows))[member == stratum]
        expected = 4000 / int(strata.sizes[stratum])
        assert (counts - expected).abs().max() < 5 * expected**0.5


def test_strata_describe_themselves(windows):
    table = POLICY.describe(windows)
    assert list(table.columns) == ["label", "windows", "weight"]
    assert len(table) == 9
    assert table["label"].str.contains("phase [012]; series s[012]").all()
    assert table["windows"].sum() == len(windows)
    assert "9 strata of 117 windows; the smallest is" in str(POLICY.stratify(windows))


def test_labels_of_a_calendar_are_readable(windows):
    table = Stratifier.calendar("weekday", "season").describe(windows)
    assert table["label"].tolist()[0] == "Mon, 2021Q1"
