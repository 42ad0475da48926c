"""The templates escape all text, and lay out tables by block."""

from __future__ import annotations

import re

from helpers.report_page import BLOCK_TABLE, render_parts

from pts_scott.experiments.report.page import FigureImage, SettingPart
from pts_scott.experiments.report.tables import Cell, Row, Table


def test_block_has_one_head_that_spans_its_rows():
    html = render_parts(losses=BLOCK_TABLE)
    assert '<th scope="rowgroup" rowspan="2">a &amp; b</th>' in html
    assert '<th scope="rowgroup" rowspan="1">c</th>' in html
    assert html.count("a &amp; b") == 1
    assert '<th scope="col">&lt;name&gt;</th>' in html
    marked = "<strong>1.0</strong> ★<br><small>1 of 2 seeds</small>"
    assert f'<td class="number" data-value="1.0">{marked}</td>' in html
    assert '<tr class="group"><td>y</td><td class="number">2.0</td></tr>' in html
    assert '<p class="caption">A caption.</p>' in html


def test_table_without_blocks_has_one_body_and_a_head_in_every_row():
    rows = [Row([Cell(name), Cell("x", tone="better")], "block") for name in "ab"]
    html = render_parts(losses=Table(["A", "B"], rows, labels=2))
    body = html.split("<h2>Losses</h2>")[1].split("</section>")[0]
    assert body.count("<tbody>") == 1
    assert '<th scope="row">b</th><td class="better">x</td>' in body
    assert "rowspan" not in body


def test_headline_is_the_title_and_further_sentences_a_list():
    html = render_parts(headline=["An <answer>.", "More."])
    assert "<h1>An &lt;answer&gt;.</h1>" in html
    assert "<li>More.</li>" in html


def test_table_without_a_caption_has_none():
    assert 'class="caption"' not in render_parts(losses=Table(["A"], [Row.of("b")]))


def test_setting_shows_escaped_figures_costs_and_config():
    hostile = "\"><script>alert('1')</script>"
    costs = Table([hostile], [Row.of(hostile)], hostile)
    images = [FigureImage("<svg></svg>", hostile)]
    part = SettingPart(hostile, True, images, {hostile: costs}, hostile)
    html = render_parts(settings=[part])
    assert html.count("<script") == 1  # the one that sorts tables
    assert 'aria-label="&#34;&gt;&lt;script' in html
    assert "<svg></svg></div>" in html
    assert "<summary>&#34;&gt;" in html
    assert '<h3 id="setting-0">&#34;&gt;' in html
    assert '<a href="#setting-0">&#34;&gt;' in html
    assert '<pre tabindex="0">&#34;&gt;' in html
    assert "no curves" not in html


def test_setting_without_curves_costs_and_config_says_so():
    html = render_parts(settings=[SettingPart("a", False, [], {}, "")])
    assert "There are no curves yet." in html
    assert "<details>" not in html


def test_page_has_all_sections_in_order():
    assert re.findall(r"<h2>(.*?)</h2>", render_parts()) == [
        "Against the plain optimizer",
        "Losses",
        "Settings",
        "What was compared",
        "Backtest",
        "Diverged and failed runs",
        "Warnings",
        "Versions",
    ]
