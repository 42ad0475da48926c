"""Measurements at equal shares of the budget."""

from __future__ import annotations

import pytest
from helpers.runs import fit_tiny_network, flat_parameters
from helpers.training import QUIET, quiet_trainer

from pts_scott.training.callbacks import Measurements


class RecordSteps(Measurements):
    """Records the steps at which it measures."""

    def __init__(self, times: int, progress=None) -> None:
        super().__init__(times, progress)
        self.steps: list[int] = []

    def measure(self, trainer, module):
        self.steps.append(module.steps)


@pytest.mark.parametrize(
    ("times", "expected"),
    [(1, [0, 20]), (2, [0, 10, 20]), (4, [0, 5, 10, 15, 20])],
)
def test_measurements_are_at_the_start_the_end_and_equal_shares(times, expected):
    recorder = RecordSteps(times)
    kwargs = {**QUIET, "callbacks": [recorder]}
    fit_tiny_network(quiet_trainer(inner_steps=5, gamma=None, trainer_kwargs=kwargs))
    assert recorder.steps == expected


def test_more_measurements_than_outer_loops_measure_each_loop():
    recorder = RecordSteps(100)
    kwargs = {**QUIET, "callbacks": [recorder]}
    fit_tiny_network(quiet_trainer(inner_steps=5, gamma=None, trainer_kwargs=kwargs))
    assert set(recorder.steps) == {0, 5, 10, 15, 20}


def test_measurements_do_not_change_the_run():
    plain = fit_tiny_network(quiet_trainer())
    kwargs = {**QUIET, "callbacks": [RecordSteps(4)]}
    measured = fit_tiny_network(quiet_trainer(trainer_kwargs=kwargs))
    assert flat_parameters(plain).equal(flat_parameters(measured))


def test_progress_is_reported_at_intervals(monkeypatch):
    shares: list[float] = []
    for seconds, expected in ((1000.0, [0.25]), (0.0, [0.25, 0.5, 0.75, 1.0])):
        monkeypatch.setattr("pts_scott.training.callbacks.REPORT_SECONDS", seconds)
        shares.clear()
        kwargs = {**QUIET, "callbacks": [RecordSteps(1, shares.append)]}
        fit_tiny_network(quiet_trainer(inner_steps=5, gamma=None, trainer_kwargs=kwargs))
        assert sorted(set(shares)) == expected  # the last one possibly twice
