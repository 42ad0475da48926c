"""A diagnosis: its table, its advice, its text and its figure follow from the numbers."""

from __future__ import annotations

import math
import pickle

import pytest

from pts_scott.diagnostics.allocation_variance import RelativeVariance
from pts_scott.diagnostics.diagnosis import Diagnosis, Point
from pts_scott.diagnostics.diagnosis_advice import saved_steps
from pts_scott.diagnostics.noise_scale import NoiseScale
from pts_scott.diagnostics.sampler_choice import Finding

NOISE = NoiseScale(400.0, 300.0, 600.0)
CERTAIN, EVEN = RelativeVariance(0.25, 0.04), RelativeVariance(0.99, 0.02)


def finding(label="learned(16)", proportional=EVEN, spread=CERTAIN) -> Finding:
    return Finding(label, 16, proportional, spread, within=0.9)


def diagnosis(*findings: Finding, noise=NOISE, change=None, batch_size=32) -> Diagnosis:
    start = Point(0, 1024, findings, NOISE, None)
    last = Point(500, 1024, findings, noise, change)
    return Diagnosis("Network", batch_size, (start, last))


def test_gain_is_recommended_with_its_equivalent_batch_size():
    advice = diagnosis(finding("series()", EVEN, EVEN), finding()).advice
    assert advice == (
        "Draw from learned(16) with spread allocation: mini-batches of 32 then have "
        "0.25 ± 0.04 of the variance of uniform ones, as if batch_size were 128 at the "
        "cost of 32; method='auto' does this by itself."
    )


@pytest.mark.parametrize(
    ("spread", "noise", "words"),
    [
        (EVEN, NOISE, ["Nothing to gain", "best of 1", "400", "larger batch_size"]),
        (
            EVEN,
            NoiseScale(5.0, 4.0, 6.0),
            ["Nothing to gain", "above 5.0 buys little", "steps=5000"],
        ),
        (EVEN, NoiseScale(0.1, 0.1, 0.1), ["0.10", "above 1.0 buys little"]),
        (EVEN, NoiseScale(math.inf, 700.0, math.inf), ["above 700"]),
        (RelativeVariance(0.6, 0.3), NOISE, ["Nothing to gain", "0.60 ± 0.30"]),
        (RelativeVariance(0.93, 0.01), NOISE, ["Hardly anything to gain"]),
        (
            CERTAIN,
            NoiseScale(1.0, 0.8, 1.2),
            ["Draw from learned(16)", "will pay once the noise scale (1.0 after 500"],
        ),
        (CERTAIN, NoiseScale(math.inf, 9.0, math.inf), ["Draw from learned(16)"]),
    ],
)
def test_advice_follows_from_variance_and_noise(spread, noise, words):
    advice = diagnosis(finding(spread=spread), noise=noise).advice
    for word in words:
        assert word in advice
    assert advice.endswith(".")
    assert ". " not in advice.replace("… ", "")  # one sentence


def test_advice_without_candidates_or_gradients():
    assert "no strata could be compared" in diagnosis().advice
    unknown = NoiseScale(math.nan, math.nan, math.nan)
    assert "all measured gradients are zero" in diagnosis(noise=unknown).advice


@pytest.mark.parametrize(
    ("noise", "saved"), [(0.0, 0.0), (32.0, 0.375), (math.inf, 0.75)]
)
def test_steps_saved_grow_with_the_noise_scale(noise, saved):
    # 1 − (1 + 0.25·S/M)/(1 + S/M) with M = 32.
    assert saved_steps(0.25, noise, 32) == pytest.approx(saved)


def test_table_has_a_row_per_point_and_sampler():
    table = diagnosis(finding(), change=RelativeVariance(0.02, 0.01)).table
    assert list(table["step"]) == [0] * 3 + [500] * 4
    assert list(table["sampler"][3:]) == [
        "uniform",
        "stratified",
        "stratified",
        "control variate",
    ]
    assert list(table["allocation"][3:]) == ["", "proportional", "spread", "spread"]
    assert table["variance"].iloc[5] == 0.25
    assert table["equivalent_batch_size"].iloc[5] == 128
    assert table["within"].iloc[5] == 0.9
    assert set(table["noise_scale"]) == {400.0}
    # (√V + √(2δ))² of the best sampler: (0.5 + 0.2)².
    assert table["variance"].iloc[6] == pytest.approx(0.49)


def test_control_variate_error_is_that_of_its_parts():
    change = RelativeVariance(0.02, 0.001)
    point = Point(500, 64, (finding(spread=RelativeVariance(0.25, 0.01)),), NOISE, change)
    # Finite differences of (√V + √(2δ))² in V and δ.
    step = 1e-6

    def variance(v, d):
        return (math.sqrt(v) + math.sqrt(2 * d)) ** 2

    in_v = (variance(0.25 + step, 0.02) - variance(0.25, 0.02)) / step
    in_d = (variance(0.25, 0.02 + step) - variance(0.25, 0.02)) / step
    expected = math.hypot(0.01 * in_v, 0.001 * in_d)
    # The error of a difference quotient, relative to the derivative: about step/δ.
    assert point.control_variate.standard_error == pytest.approx(expected, rel=1e-3)


def test_control_variate_of_strata_without_gain_has_a_uniform_anchor():
    worse = RelativeVariance(1.3, 0.1)
    change = RelativeVariance(0.02, 0.001)
    row = diagnosis(finding("series()", worse, worse), change=change).table.iloc[-1]
    assert row["variance"] == pytest.approx((1 + 0.2) ** 2)
    assert row["strata"] == ""


def test_text_holds_table_noise_scale_and_advice():
    found = diagnosis(finding(), finding("series()"), change=RelativeVariance(0.02, 0.01))
    text = str(found)
    assert text == repr(found)
    for words in (
        "Network, batch_size=32, after 500 steps",
        "uniform",
        "0.25 ± 0.04",
        "control variate",
        "After 0 steps: learned(16), spread: 0.25 ± 0.04; noise scale 400",
        "Noise scale: 400 (300 to 600)",
        f"Advice: {found.advice}",
    ):
        assert words in text
    html = found._repr_html_()
    assert "<table" in html
    assert "method=&#x27;auto&#x27;" in html


def test_candidates_that_were_left_out_are_named():
    found = diagnosis(finding())
    left = Diagnosis("Network", 32, found.points, ("finest()",))
    assert "Not compared, with one stratum or too many: finest()." in str(left)


def test_diagnosis_can_be_pickled():
    found = diagnosis(finding())
    assert pickle.loads(pickle.dumps(found)) == found


def test_figure_shows_every_candidate_at_every_point():
    found = diagnosis(finding(), finding("series()"), change=RelativeVariance(0.02, 0.01))
    figure = found.figure()
    assert len(figure.axes) == 2
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == ["learned(16)  (16)", "series()  (16)", "control variate (SCott)"]
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[0].startswith("at the start")
    assert titles[1].startswith("after 500 steps\nnoise scale 400")
    _, names = figure.axes[1].get_legend_handles_labels()
    assert sorted(names) == [
        "control variate",
        "proportional allocation",
        "spread allocation",
        "uniform mini-batch",
    ]
    assert "Draw from learned(16)" in figure.get_suptitle().replace("\n", " ")
    drawn = [line.get_xdata()[0] for line in figure.axes[1].lines]
    assert 0.25 in drawn  # the spread variance
    assert 0.99 in drawn  # the proportional one


def test_figure_writes_values_beyond_its_axis():
    found = diagnosis(finding(), change=RelativeVariance(2.0, 0.1))
    texts = [text.get_text() for text in found.figure().axes[1].texts]
    assert texts == ["6.2"]  # (0.5 + 2)² = 6.25


def test_figure_without_candidates_can_be_drawn(tmp_path):
    diagnosis().figure().savefig(tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 1000
