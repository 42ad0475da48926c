"""Pictures of a benchmark: one curve and band an optimizer, and nothing squashed."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from pts_scott.experiments.report import figures
from pts_scott.experiments.results import OPTIMIZERS


def curve(optimizer, seed, losses, speed=1.0):
    share = np.linspace(0, 1, len(losses))
    return pd.DataFrame(
        {
            "setting": "s",
            "optimizer": optimizer,
            "seed": seed,
            "status": "finished",
            "step": np.round(1000 * speed * share),
            "gradients": np.round(5000 * share),
            "seconds": 30 * share,
            "train_loss": losses,
            "test_loss": np.asarray(losses) + 1,
        }
    )


def falling(optimizer, start=10.0, end=1.0, seeds=3, points=21):
    fall = np.exp(-8 * np.linspace(0, 1, points))
    return [
        curve(optimizer, seed, end + seed / 10 + (start - end) * fall)
        for seed in range(seeds)
    ]


@pytest.fixture(scope="module")
def curves():
    return pd.concat([c for name in OPTIMIZERS for c in falling(name)])


@pytest.fixture(scope="module")
def drawn(curves):
    return figures.training_figure(curves, "NLL")


def test_the_mean_curve_interpolates_between_the_points_of_the_seeds():
    one = pd.DataFrame({"seed": 0, "seconds": [0.0, 2.0, 4.0], "train_loss": [8, 4, 0]})
    two = pd.DataFrame({"seed": 1, "seconds": [0.0, 1.0, 3.0], "train_loss": [8, 8, 4]})
    mean = figures.mean_curve(pd.concat([one, two]), "seconds", "train_loss")
    assert mean["x"].tolist() == [0, 1, 2, 3]  # as far as both go
    assert mean["mean"].tolist() == [8, 7, 5, 3]  # (8, 6, 4, 2) and (8, 8, 6, 4)
    assert mean["std"].tolist() == pytest.approx([0, *3 * [np.sqrt(2)]])


def test_the_mean_curve_ends_where_a_seed_diverges():
    whole = curve("SGD", 0, [5.0, 4.0, 3.0, 2.0, 1.0])
    broken = curve("SGD", 1, [5.0, 4.0, 9.0, np.inf, np.nan])
    mean = figures.mean_curve(pd.concat([whole, broken]), "seconds", "train_loss")
    assert mean["mean"].tolist() == [5, 4, 6]
    at_once = curve("SGD", 2, [np.nan] * 5)
    assert figures.mean_curve(pd.concat([whole, at_once]), "seconds", "train_loss").empty


def test_every_optimizer_has_a_line_and_a_band_in_every_panel(curves, drawn):
    assert [axes.get_xlabel() for axes in drawn.axes] == list(figures.AXES.values())
    for axes in drawn.axes:
        assert [line.get_label() for line in axes.lines] == list(OPTIMIZERS)
        assert len(axes.collections) == 10
    labels = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert labels == list(OPTIMIZERS)
    (axes,) = figures.held_out_figure(curves, "NLL").axes
    assert (len(axes.lines), len(axes.collections)) == (10, 10)
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(2.1, abs=0.01)  # a test loss


def test_the_band_is_one_standard_deviation_wide(drawn):
    points = drawn.axes[2].collections[0].get_paths()[0].vertices
    at_the_end = points[points[:, 0] == 30.0][:, 1]
    # The seeds end at 1.0, 1.1 and 1.2, whose standard deviation is 0.1.
    fall = 9 * np.exp(-8)
    assert at_the_end.min() == pytest.approx(1.0 + fall)
    assert at_the_end.max() == pytest.approx(1.2 + fall)


def test_one_seed_has_no_band():
    curves = pd.concat(falling("SGD", seeds=1))
    axes = figures.training_figure(curves).axes[0]
    assert (len(axes.lines), len(axes.collections)) == (1, 0)


def test_colour_tells_the_update_rule_and_line_style_the_method(drawn):
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


def test_what_blows_up_does_not_squash_the_others():
    wild = np.full(21, 5.0)
    wild[3:6] = 1e6
    curves = pd.concat([*falling("SGD"), *falling("Adam"), curve("SCott", 0, wild)])
    figure = figures.training_figure(curves)
    low, high = figure.axes[0].get_ylim()
    assert high < 100
    assert low < 1.1
    assert figures.cut_off(figure)["SCott"] == 1e6


def test_a_curve_that_ends_high_stays_in_the_picture():
    curves = pd.concat([*falling("SGD"), *falling("Adam"), *falling("SCott", end=2.5)])
    figure = figures.training_figure(curves, "NLL")
    assert figure.axes[0].get_ylim()[1] > 2.6


def test_nothing_is_cut_off_where_nothing_needs_to_be():
    curves = pd.concat(
        [curve("SGD", 0, [3.0, 2.5, 2.0, 1.5]), curve("SCott", 0, [3, 2, 1.5, 1])]
    )
    assert figures.cut_off(figures.training_figure(curves)) == {}


def test_the_scale_is_logarithmic_only_where_the_loss_is_positive_and_falls_far():
    def scale(start, end):
        return figures.training_figure(pd.concat(falling("SGD", start, end))).axes[0]

    assert scale(1000, 1).get_yscale() == "log"
    assert scale(3, 1).get_yscale() == "linear"
    assert scale(8, -2).get_yscale() == "linear"


def test_a_cost_that_differs_much_has_a_logarithmic_axis():
    cheap, dear = falling("SGD"), falling("stratified SGD")
    dear = [c.assign(gradients=16 * c["gradients"]) for c in dear]
    panels = figures.training_figure(pd.concat([*cheap, *dear])).axes
    assert [axes.get_xscale() for axes in panels] == ["linear", "log", "linear"]
    assert panels[0].lines[0].get_xdata()[0] == 0
    assert panels[1].lines[0].get_xdata()[0] == 250  # zero has no place there
    early = pd.concat([*cheap, curve("Adam", 0, [5.0, 6.0, *[np.nan] * 19])])
    panels = figures.training_figure(early).axes
    assert {axes.get_xscale() for axes in panels} == {"linear"}


def test_the_legend_holds_the_notes_and_plain_text():
    curves = pd.concat([*falling("SGD"), *falling("a $cheap$ one")])
    figure = figures.training_figure(curves, notes={"SGD": "1 of 5 diverged"})
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["SGD (1 of 5 diverged)", r"a \$cheap\$ one"]


def test_a_run_that_diverged_at_once_breaks_nothing(tmp_path):
    curves = pd.concat([*falling("SGD"), curve("Adam", 0, [np.nan] * 4)])
    curves = pd.concat([curves, curve("SCott", 0, [5.0])])
    figure = figures.held_out_figure(curves)
    assert len(figure.axes[0].lines) == 3
    assert figures.save(figure, tmp_path / "a" / "b.png").stat().st_size > 10_000
    only = figures.held_out_figure(curve("Adam", 0, [np.nan] * 4))
    figures.save(only, tmp_path / "only.png")


@pytest.mark.parametrize("nothing", [None, ""])  # from a file, and from the probe
def test_the_variance_of_each_sampler_has_a_line_on_a_logarithmic_axis(nothing):
    rows = [
        {
            "seconds": second,
            "sampler": sampler,
            "stratifier": stratifier,
            "strata": strata,
            "variance": variance / (1 + second),
            "standard_error": variance / 10,
            "note": "less than one window" if strata == 7 else nothing,
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
    assert styles == ["-", "--", "-"]  # "--" is what matplotlib calls any pattern
    assert axes.lines[0].get_xdata().tolist() == [0, 1, 2, 3]
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert len(axes.collections) == 3


def test_pyplot_is_left_alone(tmp_path):
    pyplot = sys.modules.get("matplotlib.pyplot")
    before = pyplot.get_fignums() if pyplot else []
    figure = figures.held_out_figure(pd.concat(falling("SGD", seeds=1)))
    figures.save(figure, tmp_path / "test.png")
    assert isinstance(figure, Figure)
    assert (sys.modules["matplotlib.pyplot"].get_fignums() if pyplot else []) == before
