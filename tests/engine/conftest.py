"""Fixtures of the engine's tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def traced(monkeypatch):
    """Trace steps as for compilation, but run them without the C++ compiler."""
    monkeypatch.setattr("pts_scott.engine.compilation.BACKEND", "aot_eager")
    monkeypatch.setattr("pts_scott.training.compile_policy.has_compiler", lambda: True)
