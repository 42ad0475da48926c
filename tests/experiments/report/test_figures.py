"""Figures show one curve and band per optimizer, on axes that fit them."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from pts_scott.experiments.report import figures
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


def test_every_optimizer_has_a_line_and_a_band_in_every_panel(curves, drawn):
    labels = [axes.get_xlabel() for axes in drawn.axes]
    assert labels == list(figures.AXIS_LABELS.values())
    for axes in drawn.axes:
        assert [line.get_label() for line in axes.lines] == list(PAPER_OPTIMIZERS)
        assert len(axes.collections) == 10
    labels = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert labels == list(PAPER_OPTIMIZERS)
    (axes,) = figures.held_out_figure(curves, "NLL").axes
    assert (len(axes.lines), len(axes.collections)) == (10, 10)
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(2.1, abs=0.01)  # a test loss


def test_band_is_one_standard_deviation_to_each_side(drawn):
    points = drawn.axes[2].collections[0].get_paths()[0].vertices
    at_the_end = points[points[:, 0] == 30.0][:, 1]
    # The seeds end at 1.0, 1.1 and 1.2, whose standard deviation is 0.1.
    fall = 9 * np.exp(-8)
    assert at_the_end.min() == pytest.approx(1.0 + fall)
    assert at_the_end.max() == pytest.approx(1.2 + fall)


def test_one_seed_has_no_band():
    curves = pd.concat(falling_curves("SGD", seeds=1))
    axes = figures.training_figure(curves).axes[0]
    assert (len(axes.lines), len(axes.collections)) == (1, 0)


def test_colour_shows_the_update_rule_and_line_style_the_method(drawn):
    lines = {line.get_label(): line for line in drawn.axes[0].lines}
    looks = {
        name: (to_hex(line.get_color()), line._unscaled_dash_pattern[1])
        for name, line in lines.items()
    }
    assert len({(c, tuple(d or ())) for c, d in looks.values()}) == 10
    assert looks["Adam"][0] == looks["S-Adam"][0] == looks["stratified Adam"][0]
    assert looks["SGD"][0] == looks["SCott"][0] == looks["SCSG"][0]
    assert looks["SGD"][1] == looks["Adam"][1]
    assert looks["SCott"][1] is looks["S-Adam"][1] is None


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
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["SGD (1 of 5 diverged)", r"a \$cheap\$ one"]


def test_runs_without_finite_losses_can_be_drawn(tmp_path):
    curves = pd.concat([*falling_curves("SGD"), seed_curve("Adam", 0, [np.nan] * 4)])
    curves = pd.concat([curves, seed_curve("SCott", 0, [5.0])])
    figure = figures.held_out_figure(curves)
    assert len(figure.axes[0].lines) == 3
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


def test_pyplot_is_not_used(tmp_path):
    pyplot = sys.modules.get("matplotlib.pyplot")
    before = pyplot.get_fignums() if pyplot else []
    figure = figures.held_out_figure(pd.concat(falling_curves("SGD", seeds=1)))
    figures.save_figure(figure, tmp_path / "test.png")
    assert isinstance(figure, Figure)
    assert (sys.modules["matplotlib.pyplot"].get_fignums() if pyplot else []) == before
