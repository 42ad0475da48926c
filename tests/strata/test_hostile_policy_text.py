"""Policies as text are parsed, never executed."""

from __future__ import annotations

import pytest

from pts_scott import Stratifier
from pts_scott.errors import ArgumentError


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch {created}')",
        "calendar(__import__('os').system('touch {created}'))",
        "series() if __import__('os').system('touch {created}') else series()",
        "Stratifier.__init__.__globals__['os'].system('touch {created}')",
        "custom(print)",
        "(lambda: series())()",
        "[series()][0]",
        "random({{[]: 1}})",
        "random(2**99999999999)",
        "-" * 5000 + "1",
        "(" * 5000,
        "series() * " * 5000 + "series()",
        "\0",
    ],
)
def test_policy_text_is_not_executed(text, tmp_path):
    created = tmp_path / "created"
    with pytest.raises(ArgumentError, match="stratifier"):
        Stratifier.parse(text.format(created=created))
    assert not created.exists()
