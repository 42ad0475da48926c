"""Strata: the partition, its weights, its table, and draws within each stratum."""

from __future__ import annotations

import functools
import operator
from datetime import datetime, timedelta

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pts_scott import Stratifier, WindowIndex

POLICY = Stratifier.periodic(3) * Stratifier.series()
EPOCH, HOUR = datetime(1970, 1, 1), timedelta(hours=1)
BEGINS = [-100_000, 0, 1, 24, 1500]  # in hours


def test_strata_are_a_partition_of_all_windows(windows):
    strata = POLICY.stratify(windows)
    assert sorted(strata.order.tolist()) == list(range(len(windows)))
    assert int(strata.sizes.sum()) == len(windows)
    assert float(strata.weights.sum()) == pytest.approx(1.0)
    codes = strata.stratifier.codes(windows).expand(windows)
    parts = np.split(strata.order.numpy(), np.cumsum(strata.sizes.numpy())[:-1])
    assert [set(codes[part]) for part in parts] == [{code} for code in strata.codes]


# Policies, and the label of a window in plain Python.
LABELS = [
    (Stratifier.calendar("hour"), lambda item_id, m: m.hour),
    (Stratifier.calendar("weekday", "hour"), lambda item_id, m: (m.weekday(), m.hour)),
    (Stratifier.periodic(3), lambda item_id, m: (m - EPOCH) // HOUR % 3),
    (Stratifier.periodic(2, unit=4), lambda item_id, m: (m - EPOCH) // HOUR // 4 % 2),
    (Stratifier.series(), lambda item_id, m: item_id),
    (
        Stratifier.custom(lambda item_id, m, _: (item_id, m.hour < 12)),
        lambda item_id, m: (item_id, m.hour < 12),
    ),
]


@st.composite
def stratified(draw):
    """Hourly series with windows, a product of policies, and the label of each window."""
    chosen = draw(st.lists(st.sampled_from(LABELS), min_size=1, max_size=3, unique_by=id))
    policy = functools.reduce(operator.mul, [policy for policy, _ in chosen])
    stride, labels, entries = draw(st.sampled_from([1, 5])), [], []
    for _ in range(draw(st.integers(1, 4))):
        # Few names, starts and lengths, so that series share some of them.
        item_id, begin = draw(st.sampled_from("abc")), draw(st.sampled_from(BEGINS))
        length = draw(st.sampled_from([60, 75]))
        start = datetime(2024, 1, 1) + begin * HOUR
        entries.append({"item_id": item_id, "start": start, "target": np.zeros(length)})
        for step in range(4, length - 1, stride):
            moment = start + step * HOUR
            labels.append(tuple(label(item_id, moment) for _, label in chosen))
    return WindowIndex.from_dataset(entries, "h", 4, 2, stride=stride), policy, labels


@given(stratified(), st.integers(0, 99))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_strata_and_draws_match_labels_in_plain_python(problem, seed):
    windows, policy, labels = problem
    strata = policy.stratify(windows)
    expected: dict = {}
    for number, label in enumerate(labels):
        expected.setdefault(label, set()).add(number)
    parts = np.split(strata.order.numpy(), np.cumsum(strata.sizes.numpy())[:-1])
    assert sorted(map(sorted, parts)) == sorted(map(sorted, expected.values()))
    assert sum(map(len, parts)) == len(windows) == len(labels)
    assert strata.sizes.tolist() == [len(part) for part in parts]
    assert float(strata.weights.sum()) == pytest.approx(1.0)
    weights = [len(part) / len(labels) for part in parts]
    np.testing.assert_allclose(strata.weights.numpy(), weights)

    draws = strata.draw(3, torch.Generator().manual_seed(seed), times=2)
    for rows in draws.reshape(2, len(strata), 3):
        for part, row in zip(parts, rows.tolist()):
            assert set(row) <= set(part)


def test_several_draws_at_once_equal_single_calls(windows):
    strata = (Stratifier.periodic(3) * Stratifier.series()).stratify(windows)
    at_once, singly = (torch.Generator().manual_seed(5) for _ in range(2))
    together = strata.draw(2, at_once, times=4)
    alone = torch.cat([strata.draw(2, singly) for _ in range(4)])
    assert torch.equal(together, alone)


def test_draws_lie_in_their_stratum_and_cover_it_uniformly(windows):
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


def test_table_and_summary_describe_the_strata(windows):
    table = POLICY.describe(windows)
    assert list(table.columns) == ["label", "windows", "weight"]
    assert len(table) == 9
    assert table["label"].str.contains("phase [012]; series s[012]").all()
    assert table["windows"].sum() == len(windows)
    assert "9 strata of 117 windows; the smallest is" in str(POLICY.stratify(windows))


def test_calendar_labels_are_readable(windows):
    table = Stratifier.calendar("weekday", "season").describe(windows)
    assert table["label"].tolist()[0] == "Mon, 2021Q1"
