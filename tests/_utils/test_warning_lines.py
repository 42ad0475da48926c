"""Warnings of a command: one line each."""

from __future__ import annotations

import warnings

import pytest

from pts_scott._utils.warning_lines import warnings_as_lines
from pts_scott.errors import ScottWarning


@pytest.mark.filterwarnings("default")
def test_warnings_are_lines_and_those_between_libraries_are_left_out():
    lines: list[str] = []
    before = warnings.showwarning
    with warnings_as_lines(lines.append):
        warnings.warn("the anchor is small", ScottWarning, stacklevel=1)
        warnings.warn("dropout has no effect", UserWarning, stacklevel=1)
        warnings.warn("x will be removed", FutureWarning, stacklevel=1)
        warnings.warn("Using a non-tuple sequence for …", UserWarning, stacklevel=1)
    assert lines == ["warning: the anchor is small", "UserWarning: dropout has no effect"]
    assert warnings.showwarning is before
