"""Fixtures of the training tests."""

from __future__ import annotations

import pytest
from helpers.runs import TickingTime


@pytest.fixture
def ticking_time(monkeypatch) -> TickingTime:
    """The time of the training clock and of checkpoints, independent of the disk."""
    ticking = TickingTime()
    monkeypatch.setattr("pts_scott.training.clock.time", ticking)
    monkeypatch.setattr("pts_scott.training.checkpoints.time", ticking)
    return ticking
