"""The templates escape all text, and lay out tables by block."""

from __future__ import annotations

import re

from helpers.report_page import BLOCK_TABLE, render_parts

from pts_scott.experiments.report.page import FigureImage, SettingPart
from pts_scott.experiments.report.tables import Row, Table


def test_block_has_one_head_that_spans_its_rows():
    html = render_parts(losses=BLOCK_TABLE)
    assert '<th scope="rowgroup" rowspan="2">a &amp; b</th>' in html
    assert '<th scope="rowgroup" rowspan="1">c</th>' in html
    assert html.count("a &amp; b") == 1
    assert '<th scope="col">&lt;name&gt;</th>' in html
    marked = "<strong>1.0</strong> ★<br><small>1 of 2 seeds</small>"
    assert f'<td class="number">{marked}</td>' in html
    assert '<tr class="group"><td>y</td><td class="number">2.0</td></tr>' in html
    assert '<p class="caption">A caption.</p>' in html


def test_table_without_a_caption_has_none():
    assert 'class="caption"' not in render_parts(losses=Table(["A"], [Row.of("b")]))


def test_setting_shows_escaped_figures_costs_and_config():
    hostile = "\"><script>alert('1')</script>"
    costs = Table([hostile], [Row.of(hostile)], hostile)
    part = SettingPart(hostile, True, [FigureImage("AAAA", hostile)], costs, hostile)
    html = render_parts(settings=[part])
    assert "<script" not in html
    assert '<img src="data:image/png;base64,AAAA" alt="&#34;&gt;&lt;script' in html
    assert '<h3 id="setting-0">&#34;&gt;' in html
    assert '<a href="#setting-0">&#34;&gt;' in html
    assert "<pre>&#34;&gt;" in html
    assert "no curves" not in html


def test_setting_without_curves_costs_and_config_says_so():
    html = render_parts(settings=[SettingPart("a", False, [], None, "")])
    assert "There are no curves yet." in html
    assert "<details>" not in html


def test_page_has_all_sections_in_order():
    assert re.findall(r"<h2>(.*?)</h2>", render_parts()) == [
        "What was compared",
        "Losses",
        "Verdicts",
        "Settings",
        "Backtest",
        "Diverged and failed runs",
        "Warnings",
        "Versions",
    ]
