"""Fixtures of the experiments' tests."""

from __future__ import annotations

import pytest

from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.setting import Setting


@pytest.fixture
def setting(small_config) -> Setting:
    """The small experiment, ready to train."""
    return Setting(load_experiment(small_config))
