"""Figures show one curve and band per optimizer, on axes that fit them."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from pts_scott.experiments.report import figures
from pts_scott.experiments.report.axes import INK, format_count, format_value, set_ticks
from pts_scott.experiments.report.line_styles import optimizer_styles
from pts_scott.experiments.results import PAPER_OPTIMIZERS


def seed_curve(optimizer, seed, losses):
    share = np.linspace(0, 1, len(losses))
    return pd.DataFrame(
        {
            "setting": "s",
            "optimizer": optimizer,
            "seed": seed,
            "status": "finished",
            "step": np.round(1000 * share),
            "gradients": np.round(5000 * share),
            "seconds": 30 * share,
            "train_loss": losses,
            "test_loss": np.asarray(losses) + 1,
        }
    )


def falling_curves(optimizer, start=10.0, end=1.0, seeds=3, points=21):
    fall = np.exp(-8 * np.linspace(0, 1, points))
    return [
        seed_curve(optimizer, seed, end + seed / 10 + (start - end) * fall)
        for seed in range(seeds)
    ]


@pytest.fixture(scope="module")
def curves():
    return pd.concat([c for name in PAPER_OPTIMIZERS for c in falling_curves(name)])


@pytest.fixture(scope="module")
def drawn(curves):
    return figures.training_figure(curves, "NLL")


def test_every_optimizer_has_a_line_and_a_band_in_the_row_of_its_update_rule(drawn):
    labels = [axes.get_xlabel() for axes in drawn.axes]
    assert labels == 3 * list(figures.AXIS_LABELS.values())
    assert [axes.get_title(loc="left") for axes in drawn.axes[::3]] == [
        *("SGD", "Adam", "Adagrad")
    ]
    for number, axes in enumerate(drawn.axes):
        rule = ("sgd", "adam", "adagrad")[number // 3]
        names = [name for name, kind in PAPER_OPTIMIZERS.items() if kind.rule == rule]
        assert [line.get_label() for line in axes.lines] == names
        assert len(axes.collections) == len(names)


def test_test_loss_is_drawn_against_all_costs(curves):
    axes = figures.held_out_figure(curves, "NLL").axes
    assert axes[0].get_ylabel() == "test NLL"
    assert axes[5].lines[0].get_ydata()[-1] == pytest.approx(2.1, abs=0.01)


def test_optimizers_of_any_name_are_in_the_row_of_their_recorded_rule():
    auto = [c.assign(method="auto", rule="adam") for c in falling_curves("mine")]
    adam = [c.assign(method="plain", rule="adam") for c in falling_curves("Adam")]
    figure = figures.training_figure(pd.concat([*auto, *adam]))
    assert len(figure.axes) == 3
    widths = {line.get_label(): line.get_linewidth() for line in figure.axes[0].lines}
    assert widths["mine"] > widths["Adam"]  # the default of the trainer


def legend_of(figure, row=0):
    return [t.get_text() for t in figure.axes[3 * row + 2].get_legend().get_texts()]


def test_legend_lists_lines_from_the_highest_end_to_the_lowest():
    curves = pd.concat(
        [
            *falling_curves("SGD", end=2.0),
            *falling_curves("SCSG", end=1.0),
            *falling_curves("SCott", end=3.0),
        ]
    )
    assert legend_of(figures.training_figure(curves)) == ["SCott", "SGD", "SCSG"]


def test_long_curves_are_thinned_and_keep_their_ends():
    losses = np.linspace(9, 1, 500)
    line = figures.training_figure(seed_curve("SGD", 0, losses)).axes[2].lines[0]
    assert len(line.get_xdata()) == figures.DRAWN_POINTS
    assert line.get_xdata()[[0, -1]].tolist() == [0, 30]
    assert line.get_ydata()[[0, -1]].tolist() == [9, 1]


def test_band_is_one_standard_deviation_to_each_side(drawn):
    points = drawn.axes[2].collections[0].get_paths()[0].vertices
    at_the_end = points[points[:, 0] == 30.0][:, 1]
    # The seeds end at 1.0, 1.1 and 1.2, whose standard deviation is 0.1.
    fall = 9 * np.exp(-8)
    assert at_the_end.min() == pytest.approx(1.0 + fall)
    assert at_the_end.max() == pytest.approx(1.2 + fall)


def test_of_many_lines_only_the_plain_and_the_highlighted_have_a_band():
    kinds = {"Adam": "plain", "auto": "auto", **{f"s{n}": "stratified" for n in range(4)}}
    curves = pd.concat(
        c.assign(rule="adam", method=method)
        for name, method in kinds.items()
        for c in falling_curves(name)
    )
    axes = figures.training_figure(curves).axes[0]
    assert (len(axes.lines), len(axes.collections)) == (6, 2)
    few = curves[curves["optimizer"] != "s3"]
    assert len(figures.training_figure(few).axes[0].collections) == 5


def test_one_seed_has_no_band():
    curves = pd.concat(falling_curves("SGD", seeds=1))
    axes = figures.training_figure(curves).axes[0]
    assert (len(axes.lines), len(axes.collections)) == (1, 0)


def test_a_method_looks_the_same_in_every_row(drawn):
    looks = {
        line.get_label(): (to_hex(line.get_color()), line._unscaled_dash_pattern[1])
        for axes in drawn.axes[::3]
        for line in axes.lines
    }
    assert looks["SGD"] == looks["Adam"] == looks["Adagrad"] == (INK, (4, 1.5))
    assert looks["SCott"] == looks["S-Adam"] == looks["S-Adagrad"]
    family = {str(looks[name]) for name in ("SGD", "SCSG", "SCott", "stratified SGD")}
    assert len(family) == 4


def test_sixteen_optimizers_of_one_rule_have_different_looks():
    methods = {f"{method} {n}": method for method in ("plain", "scott") for n in range(8)}
    styles = optimizer_styles(methods).values()
    assert len({(s["color"], str(s["linestyle"])) for s in styles}) == 16


def test_diverging_curve_does_not_squash_the_others():
    diverging = np.full(21, 5.0)
    diverging[3:6] = 1e6
    curves = pd.concat(
        [
            *falling_curves("SGD"),
            *falling_curves("Adam"),
            seed_curve("SCott", 0, diverging),
        ]
    )
    figure = figures.training_figure(curves)
    low, high = figure.axes[0].get_ylim()
    assert high < 100
    assert low < 1.1
    assert figures.cut_off_curves(figure)["SCott"] == 1e6


def test_curve_that_starts_above_the_axes_is_not_cut_off():
    start = [1e6, *np.linspace(3, 1, 20)]
    other = [3.0, 2.9, 1e6, *np.linspace(3, 1, 18)]
    curves = pd.concat(
        [
            *falling_curves("SGD", 3.0),
            seed_curve("SCSG", 0, start),
            seed_curve("SCott", 0, other),
        ]
    )
    figure = figures.training_figure(curves)
    assert figure.axes[0].get_ylim()[1] < 100
    assert list(figures.cut_off_curves(figure)) == ["SCott"]


def test_curve_that_ends_high_stays_within_the_axes():
    curves = pd.concat(
        [
            *falling_curves("SGD"),
            *falling_curves("Adam"),
            *falling_curves("SCott", end=2.5),
        ]
    )
    figure = figures.training_figure(curves, "NLL")
    assert figure.axes[0].get_ylim()[1] > 2.6


def test_curves_of_similar_height_are_not_cut_off():
    curves = pd.concat(
        [
            seed_curve("SGD", 0, [3.0, 2.5, 2.0, 1.5]),
            seed_curve("SCott", 0, [3, 2, 1.5, 1]),
        ]
    )
    assert figures.cut_off_curves(figures.training_figure(curves)) == {}


def test_loss_axis_is_logarithmic_if_the_loss_is_positive_and_falls_far():
    def scale(start, end):
        curves = pd.concat(falling_curves("SGD", start, end))
        return figures.training_figure(curves).axes[0].get_yscale()

    assert scale(1000, 1) == "log"
    assert scale(3, 1) == "linear"
    assert scale(8, -2) == "linear"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((0.8, 60.0), [1, 2, 5, 10, 20, 50]),
        ((0.5, 20_000.0), [1, 10, 100, 1000, 10_000]),
        ((0.95, 2.1), [1, 1.25, 1.5, 1.75, 2]),
    ],
)
def test_log_axes_have_few_plain_numbers(limits, expected):
    axes = Figure().subplots()
    axes.set_yscale("log")
    axes.set_ylim(*limits)
    set_ticks(axes.yaxis, limits)
    ticks = [t for t in axes.yaxis.get_majorticklocs() if limits[0] <= t <= limits[1]]
    assert ticks == pytest.approx(expected)
    assert list(axes.yaxis.get_minorticklocs()) == []
    texts = [t.get_text() for t in axes.get_yticklabels() if t.get_text()]
    assert set(map(str, expected)) <= set(texts)


@pytest.mark.parametrize(
    ("value", "loss", "count"),
    [
        (0.0, "0", "0"),
        (-3.5, "−3.5", "−3.5"),
        (0.02, "0.02", "0.02"),
        (20_000, "20000", "20k"),
        (2_000_000, "2e6", "2M"),
        (2e-5, "2e−5", "2e−5"),
    ],
)
def test_ticks_are_plain_numbers(value, loss, count):
    assert format_value(value) == loss
    assert format_count(value) == count


def test_cost_axis_is_logarithmic_if_costs_differ_widely():
    cheap, costly = falling_curves("SGD"), falling_curves("stratified SGD")
    costly = [c.assign(gradients=16 * c["gradients"]) for c in costly]
    panels = figures.training_figure(pd.concat([*cheap, *costly])).axes
    assert [axes.get_xscale() for axes in panels] == ["linear", "log", "linear"]
    assert panels[0].lines[0].get_xdata()[0] == 0
    assert panels[1].lines[0].get_xdata()[0] == 250  # a log axis has no zero
    early = pd.concat([*cheap, seed_curve("Adam", 0, [5.0, 6.0, *[np.nan] * 19])])
    panels = figures.training_figure(early).axes
    assert {axes.get_xscale() for axes in panels} == {"linear"}


def test_legend_shows_notes_and_escapes_dollar_signs():
    curves = pd.concat([*falling_curves("SGD"), *falling_curves("a $cheap$ one")])
    figure = figures.training_figure(curves, notes={"SGD": "1 of 5 diverged"})
    assert legend_of(figure) == ["SGD (1 of 5 diverged)"]
    assert legend_of(figure, 1) == [r"a \$cheap\$ one"]


def test_runs_without_finite_losses_can_be_drawn(tmp_path):
    curves = pd.concat([*falling_curves("SGD"), seed_curve("Adam", 0, [np.nan] * 4)])
    curves = pd.concat([curves, seed_curve("SCott", 0, [5.0])])
    figure = figures.held_out_figure(curves)
    assert [len(axes.lines) for axes in figure.axes[::3]] == [2, 1]
    assert figures.save_figure(figure, tmp_path / "a" / "b.png").stat().st_size > 10_000
    only = figures.held_out_figure(seed_curve("Adam", 0, [np.nan] * 4))
    figures.save_figure(only, tmp_path / "only.png")


@pytest.mark.parametrize("no_note", [None, ""])  # as read from a file, and as measured
def test_each_sampler_has_a_variance_line_on_a_logarithmic_axis(no_note):
    rows = [
        {
            "seconds": second,
            "sampler": sampler,
            "stratifier": stratifier,
            "strata": strata,
            "variance": variance / (1 + second),
            "standard_error": variance / 10,
            "note": "less than one window" if strata == 7 else no_note,
        }
        for second in (3.0, 1.0, 2.0, 0.0)
        for sampler, stratifier, strata, variance in (
            ("uniform", None, None, 1.0),
            ("stratified", "hours", 24, 0.5),
            ("scott", "weekdays", 7, 0.3),
        )
    ]
    (axes,) = figures.variance_figure(pd.DataFrame(rows)).axes
    assert axes.get_yscale() == "log"
    assert [line.get_label() for line in axes.lines] == [
        "uniform",
        "stratified, hours (24 strata)",
        "SCott, weekdays (7 strata) *",
    ]
    colours = [line.get_color() for line in axes.lines]
    assert len(set(colours)) == 3
    styles = [line.get_linestyle() for line in axes.lines]
    assert styles == ["-", "--", "-"]  # matplotlib reports any dash pattern as "--"
    assert axes.lines[0].get_xdata().tolist() == [0, 1, 2, 3]
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert len(axes.collections) == 3


def reach_rows(optimizer, *shares, baseline="SGD", batch_size=1):
    return pd.DataFrame(
        {
            "batch_size": batch_size,
            "optimizer": optimizer,
            "rule": "sgd",
            "baseline": baseline,
            "target": 1.0,
            "seconds_share": shares,
            "gradients_share": np.multiply(shares, 2),
        }
    )


def test_reach_figure_has_a_dot_per_setting_and_a_bar_at_the_median():
    rows = [reach_rows("SGD", 1.0, 1.0, 1.0), reach_rows("SCott", 0.4, 0.2, np.nan)]
    figure = figures.reach_figure(pd.concat(rows))
    time, gradients = figure.axes
    labels = [label.get_text() for label in time.get_yticklabels()]
    assert labels == ["SGD itself", "SCott"]
    dots = [c.get_offsets()[:, 0] for c in time.collections]
    assert dots[1][:2].tolist() == [0.4, 0.2]
    assert dots[1][2] > 2  # in the lane of those that did not reach it
    bars = [line.get_xdata()[0] for line in time.lines if line.get_linewidth() > 2]
    assert bars == [1.0, 0.4]
    bars = [line.get_xdata()[0] for line in gradients.lines if line.get_linewidth() > 2]
    assert bars == [2.0, 0.8]
    texts = [label.get_text() for label in time.get_xticklabels()]
    assert {"50 %", "100 %", "not\nreached"} <= set(texts)
    assert not figure.legends


def test_reach_figure_has_a_colour_per_batch_size_and_counts_who_did_not_get_there():
    rows = [
        reach_rows("SCott", 0.4, 0.2, 0.1),
        reach_rows("SCott", 0.8, np.nan, np.nan, batch_size=32),
        reach_rows("SCSG", 0.5),
    ]
    figure = figures.reach_figure(pd.concat(rows))
    time, _ = figure.axes
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["M = 1", "M = 32"]
    bars = [line for line in time.lines if line.get_linewidth() > 2]
    assert bars[0].get_xdata()[0] == 0.2
    assert bars[1].get_xdata()[0] > 2  # two of three did not reach it
    assert bars[0].get_color() != bars[1].get_color()
    (count,) = time.texts
    assert count.get_text() == "2"
    assert count.get_color() == bars[1].get_color()
    rows = {tuple(c.get_offsets()[:, 0]): c.get_offsets()[:, 1] for c in time.collections}
    small = next(y for x, y in rows.items() if x == (0.4, 0.2, 0.1))
    large = next(y for x, y in rows.items() if x[:1] == (0.8,))
    assert max(small) < min(large)  # each has its own part of the row


def test_svg_has_the_colour_of_the_page_and_its_own_ids():
    curves = pd.concat([*falling_curves("SGD"), *falling_curves("a <b> -- > c")])
    figure = figures.training_figure(curves)
    svg = figures.figure_svg(figure, "one")
    root = ElementTree.fromstring(svg)  # well-formed
    width = float(root.get("width").removesuffix("pt"))
    assert width == pytest.approx(72 * figure.get_figwidth())
    assert INK not in svg
    assert "currentColor" in svg
    assert "#0072b2" not in svg
    assert "<b>" not in svg
    assert "scale(0.015625)" in svg  # of the letters: only paths are rounded

    def clip_paths(text):
        return set(re.findall(r'clipPath id="(\w+)"', text))

    other = figures.figure_svg(figure, "two")
    assert clip_paths(svg)
    assert not clip_paths(svg) & clip_paths(other)


def test_pyplot_is_not_used(tmp_path):
    pyplot = sys.modules.get("matplotlib.pyplot")
    before = pyplot.get_fignums() if pyplot else []
    figure = figures.held_out_figure(pd.concat(falling_curves("SGD", seeds=1)))
    figures.save_figure(figure, tmp_path / "test.png")
    assert isinstance(figure, Figure)
    assert (sys.modules["matplotlib.pyplot"].get_fignums() if pyplot else []) == before
