"""The demo: two comparisons, sentences that follow from the losses, a plot."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pts_scott import demo
from pts_scott.backends import backend


def test_demo_trains_all_sides_and_writes_plot_and_curves(tmp_path, capsys):
    options = ["--seconds", "0.5", "--seeds", "2", "--repetitions", "30"]
    assert demo.main([*options, "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    curves = pd.read_csv(tmp_path / "out" / "curves.csv")
    sides = ["SGD", "SCott", "auto", "ScottTrainer, plain", "ScottTrainer, auto"]
    if backend.NAME == "gluonts":
        sides.insert(3, "GluonTS' own trainer")
    assert list(curves["side"].unique()) == sides
    assert set(curves["seed"]) == {0, 1}
    ends = curves.groupby(["side", "seed"])["seconds"].max()
    assert ends.between(0.5, 5.0).all()
    for side in sides:
        assert f"{side}, seed 1: loss" in printed.err
    told = "GluonTS' own trainer is compared only if" in printed.err
    assert told == (backend.NAME == "pytorchts")
    assert printed.out.count("lower with") == len(sides) - 2
    assert (tmp_path / "out" / "loss.png").stat().st_size > 10_000


def hand_made(values: dict[str, list[list[float]]]):
    """Return a comparison with the losses of each seed at seconds 0 to 4."""
    comparison = demo.Comparison("title", "loss", dict.fromkeys(values, pd.DataFrame))
    rows = [
        {"comparison": "title", "side": side, "seed": seed, "seconds": t, "loss": loss}
        for side, seeds in values.items()
        for seed, losses in enumerate(seeds)
        for t, loss in enumerate(losses)
    ]
    return comparison, pd.DataFrame(rows)


def test_sentences_follow_from_the_losses():
    comparison, curves = hand_made(
        {
            "plain": [[10, 8, 6, 5, 4], [10, 8, 6, 5, 4]],
            "better": [[10, 4, 3, 2, 1], [10, 4, 3, 2, 1]],
            "worse": [[10, 9, 9, 9, 9], [10, 9, 9, 4, 2]],
        }
    )
    better, worse = demo.conclude(comparison, curves, 4.0)
    # Means over the last sixth, so at second 11/3 where the curves are straight.
    assert "better ended at 1.333, plain at 4.333: lower with 2 of 2 seeds" in better
    assert "after 24% of the time" in better  # at 10 − 6 t = 4.333, t = 0.944 of 4
    assert "worse ended at 5.833, plain at 4.333: lower with 1 of 2 seeds" in worse
    assert "did not reach that loss" in worse


def test_curves_of_seeds_are_compared_at_the_same_times():
    _, curves = hand_made({"a": [[10, 8, 6, 4, 2], [20, 18, 16, 14, 12]]})
    curves["seconds"] += np.where(curves["seed"] == 1, 0.5, 0.0)  # at other times
    grid, losses = demo.on_a_grid(curves, 4.0)
    assert grid[0] == 0.5  # all seeds have been measured by then
    np.testing.assert_allclose(losses[0], 10 - 2 * grid)
    np.testing.assert_allclose(losses[1], 21 - 2 * grid)


def test_mixed_series_differ_in_level_and_noise():
    targets = demo.mixed_series().targets
    levels = np.array([target.mean() for target in targets])
    # Changes from hour to hour, relative to the level.
    noise = np.array([np.diff(np.log(target)).std() for target in targets])
    assert levels.max() / levels.min() > 1000
    assert noise.max() / noise.min() > 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seconds", "0"], "seconds=0"),
        (["--seeds", "0"], "seeds=0"),
        (["--repetitions", "0"], "repetitions=0"),
    ],
)
def test_invalid_input_prints_an_error_and_returns_1(options, message, tmp_path, capsys):
    assert demo.main([*options, "--output", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err


def test_unwritable_folder_is_reported_before_training(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert demo.main(["--seconds", "30", "--output", str(blocked / "out")]) == 1
    assert "error:" in capsys.readouterr().err
