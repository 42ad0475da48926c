"""Progress: what became of each run, and how long the rest will take."""

from __future__ import annotations

import pytest

from pts_scott.experiments import progress as module
from pts_scott.experiments.progress import Progress

DONE = {"status": "finished", "train_loss": 1.0, "test_loss": 2.0, "steps": 5}


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_the_rest_is_estimated_by_budgets(clock):
    lines: list[str] = []
    progress = Progress([10, 10, 100], lines.append)
    clock[0] = 12.0  # a run of 10 s took 12
    progress.finished("a", DONE, 10)
    assert lines[-1] == "[1/3] a: train 1, test 2, 5 steps; about 2 min left"
    clock[0] = 24.0
    progress.finished("b", DONE, 10)
    assert lines[-1].endswith("about 2 min left")
    clock[0] = 144.0
    progress.finished("c", DONE, 100)
    assert lines[-1] == "[3/3] c: train 1, test 2, 5 steps"


def test_failed_and_diverged_runs_are_told(clock):
    lines: list[str] = []
    progress = Progress([1, 1], lines.append)
    clock[0] = 1.0
    progress.finished("a", {"status": "failed", "error": "no memory"}, 1)
    progress.finished("b", {"status": "diverged", "steps": 7}, 1)
    assert "FAILED: no memory" in lines[0]
    assert "diverged after 7 steps" in lines[1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 s"), (89, "89 s"), (600, "10 min"), (7200, "2.0 h")]
)
def test_seconds_are_said_as_people_do(seconds, text):
    assert Progress.duration(seconds) == text
