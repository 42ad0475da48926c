"""Report pages with selected parts, and a table with blocks."""

from __future__ import annotations

from pts_scott.experiments.report.page import (
    Comparison,
    Completeness,
    Overview,
    ReportPage,
    Versions,
)
from pts_scott.experiments.report.render import render_page
from pts_scott.experiments.report.tables import Cell, Row, Table

BLOCK_TABLE = Table(
    ["Setting", "<name>", "Loss"],
    [
        Row([Cell("a & b"), Cell("x"), Cell("1.0", "1 of 2 seeds", True, True, 1.0)]),
        Row.of("a & b", "y", 2.0, rule="group"),
        Row.of("c", "x", 3.0),
    ],
    "A caption.",
)


def render_parts(**parts):
    """Return the HTML of a page with the given parts; all others are empty."""
    empty = {
        "headline": ["An answer."],
        "completeness": Completeness(0, {}, []),
        "overview": Overview(None, None, []),
        "losses": Table([], []),
        "settings": [],
        "comparison": Comparison([], Table([], [])),
        "backtest": Table([], []),
        "unfinished_runs": None,
        "warnings": [],
        "versions": Versions(None, 0, []),
    }
    return render_page(ReportPage(**{**empty, **parts}))
