"""Work in processes: every result once, and the errors of workers are raised."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from pts_scott.errors import ScottError
from pts_scott.experiments.workers import in_processes


def test_every_result_has_the_index_of_its_call():
    calls = [(4.0,), (9.0,), (16.0,)]
    assert sorted(in_processes(math.sqrt, calls, workers=2)) == [(0, 2), (1, 3), (2, 4)]


def test_progress_is_shown_while_waiting(monkeypatch):
    monkeypatch.setattr("pts_scott.experiments.workers.SHOW_SECONDS", 0.05)
    shown: list[None] = []
    list(in_processes(time.sleep, [(0.5,)], 1, lambda: shown.append(None)))
    assert shown


def test_error_in_a_worker_is_raised():
    with pytest.raises(ValueError, match="math domain|nonnegative"):
        list(in_processes(math.sqrt, [(-1.0,)], workers=1))


def test_error_for_a_dead_worker_says_what_to_do():
    with pytest.raises(ScottError, match="died unexpectedly.*fewer --workers"):
        list(in_processes(os._exit, [(1,)], workers=1))


def test_no_more_calls_are_submitted_than_can_run(tmp_path):
    calls = [(tmp_path / f"call{number}",) for number in range(20)]
    results = in_processes(Path.touch, calls, workers=2)
    next(results)
    results.close()  # as an error or Ctrl-C would
    assert len(list(tmp_path.iterdir())) <= 4  # the finished one, and two or three more
