"""Progress: the outcome of each run, the remaining time, and a bar on terminals."""

from __future__ import annotations

import io
import sys

import pytest
from tqdm import tqdm

from pts_scott.experiments import progress as module
from pts_scott.experiments.curve import Point
from pts_scott.experiments.progress import (
    Meter,
    Progress,
    format_duration,
    terminal_bar,
)

FINISHED = {"status": "finished", "train_loss": 1.0, "test_loss": 2.0, "steps": 5}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_remaining_time_is_estimated_from_budgets(clock):
    lines: list[str] = []
    progress = Progress([10, 10, 100], lines.append)
    clock[0] = 12.0  # a run of 10 s took 12
    progress.finished("a", FINISHED, 10)
    assert lines[-1] == "[1/3] a: train 1, test 2, 5 steps; about 2 min left"
    clock[0] = 24.0
    progress.finished("b", FINISHED, 10)
    assert lines[-1].endswith("about 2 min left")
    clock[0] = 144.0
    progress.finished("c", FINISHED, 100)
    assert lines[-1] == "[3/3] c: train 1, test 2, 5 steps"


def test_failed_and_diverged_runs_are_reported(clock):
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
def test_durations_have_suitable_units(seconds, text):
    assert format_duration(seconds) == text


def test_bar_on_a_terminal_shows_total_rate_and_remaining_time(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with Progress([10, 10], lambda line: None, " s") as progress:
        watch, _ = progress.watch("small: SGD, seed 0", 10)
        watch(Point(0.5, 3, 12, 5.0, 1.25, 2.0))
        progress._bar.refresh()
        shown = terminal.getvalue().split("\r")[-1]
        assert shown.startswith("small: SGD, seed 0:  25%|")
        assert "| 5.00/20.0 s [" in shown
        assert " s/s, train 1.25]" in shown
        watch(Point(1.5, 6, 24, 15.0, 1.25, 2.0))  # the last loop exceeds the budget
        assert progress._bar.n == 10
        progress.finished("small: SGD, seed 0", FINISHED, 10)
        assert progress._bar.n == 10


def test_long_run_without_a_terminal_has_a_line_now_and_then(clock):
    lines: list[str] = []
    progress = Progress([100, 100], lines.append)
    _, advance = progress.watch("a", 100)
    for seconds in (30, 61, 90, 122):
        clock[0] = float(seconds)
        advance(seconds / 200)
    assert lines == ["[1/2] a: 30%; about 6 min left", "[1/2] a: 61%; about 5 min left"]


def test_meter_writes_lines_with_the_time_left(clock):
    lines: list[str] = []
    with Meter("diagnosis", 100, " steps", lines.append) as meter:
        clock[0] = 10.0
        meter.advance(0.1)
        meter.line("step 20", 0.2)
        clock[0] = 75.0
        meter.advance(0.5)
        meter.line("step 100", 1.0)
    assert lines == [
        "step 20; about 40 s left",
        "diagnosis: 50%; about 75 s left",
        "step 100",
    ]


def test_meter_on_a_terminal_is_a_bar(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    lines: list[str] = []
    with Meter("diagnosis", 100, " steps", lines.append) as meter:
        clock[0] = 75.0
        meter.advance(0.5)
        meter._bar.refresh()
    assert "diagnosis:  50%|" in terminal.getvalue()
    assert lines == []


def test_lines_are_written_above_the_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with terminal_bar(4, " trials") as bar:
        bar.update(1)
        tqdm.write("a line", file=sys.stderr)
    assert "\ra line\n" in terminal.getvalue()


def test_nothing_but_lines_is_written_without_a_terminal(capsys):
    with Progress([10], lambda line: None, " s") as progress:
        watch, _ = progress.watch("a", 10)
        watch(Point(0.5, 3, 12, 5.0, 1.0, 2.0))
        progress.finished("a", FINISHED, 10)
    assert capsys.readouterr() == ("", "")
