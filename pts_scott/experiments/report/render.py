"""Render the report's page from its facts with the Jinja2 templates."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from pts_scott.experiments.report.page import ReportPage


def render_page(page: ReportPage) -> str:
    """Return the page as HTML; all text in it is escaped."""
    return _environment().get_template("report.html.j2").render(page=page)


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("pts_scott.experiments.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
