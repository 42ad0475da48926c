"""The schedule of probes: counts alone, and a small share of all steps."""

from __future__ import annotations

import math

import pytest

from pts_scott.training.probe_schedule import (
    FIRST_STEP,
    MAX_WINDOWS,
    MIN_WINDOWS,
    PROBE_OVERHEAD,
    SHARE,
    STEP_OVERHEAD,
    ProbeSchedule,
)


def probes(schedule: ProbeSchedule, steps: int) -> list[tuple[int, int]]:
    """Return the steps of all probes of a run, with their windows."""
    found = []
    step = schedule.next_after(0)
    while step < steps:
        found.append((int(step), schedule.windows(int(step))))
        step = schedule.next_after(int(step))
    return found


@pytest.mark.parametrize("batch_size", [1, 8, 32, 256])
@pytest.mark.parametrize("steps", [500, 5000, 20_000, 10**6])
@pytest.mark.parametrize("cost", [3, 32])
@pytest.mark.parametrize("known", [True, False])
def test_probes_cost_a_small_share_of_all_steps(batch_size, steps, cost, known):
    schedule = ProbeSchedule(batch_size, steps if known else None, cost)
    spent = sum(
        PROBE_OVERHEAD + cost * windows
        for _, windows in probes(schedule, steps)
        if windows
    )
    limit = SHARE * (batch_size + STEP_OVERHEAD) * (steps if known else max(steps, 5000))
    # Where the length is unknown, earlier probes were planned for fewer steps.
    assert spent <= limit * (1 if known else 2)


def test_probes_double_their_distance_where_they_can():
    steps = [step for step, _ in probes(ProbeSchedule(256, 5000, 3), 5000)]
    assert steps == [100, 200, 400, 800, 1600, 3200]


def test_default_run_is_probed_early_with_enough_windows():
    found = probes(ProbeSchedule(32, 5000, 3), 5000)
    assert found[0][0] == FIRST_STEP
    assert len(found) >= 3
    assert all(MIN_WINDOWS <= windows <= MAX_WINDOWS for _, windows in found)


def test_short_or_cheap_runs_are_not_probed():
    assert ProbeSchedule(32, 500, 3).windows(FIRST_STEP) == 0


def test_single_probe_is_not_repeated():
    schedule = ProbeSchedule(1, 5000, 3)
    assert [step for step, _ in probes(schedule, 5000)] == [FIRST_STEP]
    assert math.isinf(schedule.next_after(FIRST_STEP))


@pytest.mark.parametrize("batch_size", [1, 32])
def test_runs_of_unknown_length_are_probed_again_beyond_the_expected(batch_size):
    steps = [step for step, _ in probes(ProbeSchedule(batch_size, None, 3), 60_000)]
    assert steps[-4:] == [6400, 12800, 25600, 51200]
