"""A report page that is empty but for the given parts."""

from __future__ import annotations

from pts_scott.experiments.report.page import (
    Comparison,
    Completeness,
    ReportPage,
    Verdicts,
    Versions,
)
from pts_scott.experiments.report.render import render_page
from pts_scott.experiments.report.tables import Table


def render_parts(**parts):
    """Return the HTML of a page with the given parts; all others are empty."""
    empty = {
        "completeness": Completeness(0, {}, []),
        "comparison": Comparison([], Table([], [])),
        "losses": Table([], []),
        "verdicts": Verdicts([], None),
        "settings": [],
        "backtest": Table([], []),
        "unfinished_runs": None,
        "warnings": [],
        "versions": Versions(None, 0, []),
    }
    return render_page(ReportPage(**{**empty, **parts}))
