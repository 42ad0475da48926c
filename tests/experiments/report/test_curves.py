"""Mean curves cover the points that all seeds share."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from helpers.small_results import run_record, runs_frame

from pts_scott.experiments.report.curves import (
    average_measurements,
    mean_curve,
    settled_losses,
    tail_mean,
)


def seed_curve(seed, losses):
    seconds = np.linspace(0, 30, len(losses))
    return pd.DataFrame({"seed": seed, "seconds": seconds, "train_loss": losses})


def test_mean_curve_interpolates_between_the_points_of_the_seeds():
    one = pd.DataFrame({"seed": 0, "seconds": [0.0, 2.0, 4.0], "train_loss": [8, 4, 0]})
    two = pd.DataFrame({"seed": 1, "seconds": [0.0, 1.0, 3.0], "train_loss": [8, 8, 4]})
    mean = mean_curve(pd.concat([one, two]), "seconds", "train_loss")
    assert mean["x"].tolist() == [0, 1, 2, 3]  # as far as both seeds reach
    assert mean["mean"].tolist() == [8, 7, 5, 3]  # (8, 6, 4, 2) and (8, 8, 6, 4)
    assert mean["std"].tolist() == pytest.approx([0, *3 * [np.sqrt(2)]])


def test_mean_curve_ends_where_a_seed_diverges():
    whole = seed_curve(0, [5.0, 4.0, 3.0, 2.0, 1.0])
    diverged = seed_curve(1, [5.0, 4.0, 9.0, np.inf, np.nan])
    mean = mean_curve(pd.concat([whole, diverged]), "seconds", "train_loss")
    assert mean["mean"].tolist() == [5, 4, 6]
    never_finite = seed_curve(2, [np.nan] * 5)
    assert mean_curve(pd.concat([whole, never_finite]), "seconds", "train_loss").empty


def test_mean_curves_average_the_measurements_of_finished_seeds():
    def run(seed, status, losses):
        costs = {"step": [0, 10 + seed], "gradients": [0, 20], "seconds": [0.0, 1.0]}
        keys = {"setting": "a", "optimizer": "SGD", "seed": seed, "status": status}
        return pd.DataFrame({**costs, "train_loss": losses, "test_loss": losses}).assign(
            **keys
        )

    runs = [run(0, "finished", [4.0, 1.0]), run(2, "finished", [6.0, 3.0])]
    table = average_measurements(pd.concat([*runs, run(4, "diverged", [6.0, 1e9])]))
    assert table["measurement"].tolist() == [0, 1]
    assert table["seeds"].tolist() == [2, 2]
    assert table["step"].tolist() == [0, 11]
    assert table["train_loss_mean"].tolist() == [5, 2]
    assert table["test_loss_std"].tolist() == pytest.approx(2 * [np.sqrt(2)])


def test_tail_mean_is_the_mean_of_the_curve_over_the_last_share():
    points = np.array([[0.0, 4.0], [6.0, 4.0], [12.0, 1.0]])
    assert tail_mean(points, 12.0, 0.5) == pytest.approx(2.5)
    assert tail_mean(points, 9.0, 1 / 3) == pytest.approx(3.25)
    assert tail_mean(points, 9.0, 0.0) == pytest.approx(2.5)


def test_settled_losses_replace_those_of_the_last_step():
    runs = runs_frame(
        run_record(seed=0, train=9.0), run_record(seed=1, status="diverged")
    )
    curve = pd.DataFrame({"seconds": [0.0, 10.0, 20.0], "train_loss": [8.0, 2.0, 4.0]})
    curves = pd.concat(
        curve.assign(setting="mlp-traffic-M1", optimizer="SGD", seed=seed)
        for seed in (0, 1)
    )
    curves["test_loss"] = curves["train_loss"] + 1
    settled = settled_losses(runs, curves, tail=0.5)
    assert settled["train_loss"].tolist() == pytest.approx([3.0, math.nan], nan_ok=True)
    assert settled["test_loss"].tolist() == pytest.approx([4.0, math.nan], nan_ok=True)
    assert runs["train_loss"].iloc[0] == 9.0
