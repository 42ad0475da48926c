"""Objectives: what is minimised changes as calculated, under any allocation."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pandas as pd
import pytest
import torch
from gluonts.core import serde
from helpers.training import quiet_trainer
from torch import nn

from pts_scott import ScottTrainer, Stratifier
from pts_scott._utils.rng import Generators
from pts_scott.errors import ArgumentError
from pts_scott.method.hyperparameters import Hyperparameters
from pts_scott.method.methods import METHODS
from pts_scott.method.objective import Objective, check_objective


def weights_of(windows, objective, strata=None):
    checked = check_objective(objective)
    found = Objective.of(checked, windows, strata)
    return found.weights(np.arange(len(windows)))


def test_windows_count_alike_by_default(windows):
    assert Objective.of(check_objective("windows"), windows, None) is None


def test_series_count_alike(windows):
    weights = weights_of(windows, "series")
    assert weights.mean() == pytest.approx(1.0)
    series, _ = windows.rows(np.arange(len(windows)))
    totals = np.bincount(series, weights=weights)
    np.testing.assert_allclose(totals, len(windows) / 3)


@pytest.mark.parametrize(
    "half_life", ["10 hours", pd.Timedelta(10, "h"), timedelta(hours=10)]
)
def test_a_half_life_halves_the_weight(half_life, windows):
    weights = weights_of(windows, half_life)
    assert weights.mean() == pytest.approx(1.0)
    _, rows = windows.rows(np.arange(len(windows)))
    moments = windows.series.timeline.moments[rows]
    age = (moments.max() - moments) / pd.Timedelta(10, "h")
    np.testing.assert_allclose(weights / weights.max(), 0.5**age, rtol=1e-12)


def test_a_table_weights_strata(windows):
    strata = Stratifier.series().stratify(windows)
    table = {"series s0": 2.0, "series s1": 0.0, "series s2": 1.0}
    weights = weights_of(windows, table, strata)
    assert weights.mean() == pytest.approx(1.0)
    series, _ = windows.rows(np.arange(len(windows)))
    assert set(weights[series == 1]) == {0.0}
    assert weights[series == 0][0] == pytest.approx(2 * weights[series == 2][0])


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("serie", "expected 'windows'"),
        ("-3 days", "expected 'windows'"),
        ("90", "expected 'windows'"),
        (None, "expected 'windows'"),
        ({"a": -1.0}, "weight of 'a' is -1.0"),
        ({"a": 0.0, "b": 0}, "no stratum has a weight above 0"),
    ],
)
def test_bad_objectives_are_refused(objective, message):
    with pytest.raises(ArgumentError, match=message):
        ScottTrainer(objective=objective)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"series s0": 1.0, "series s7": 1.0}, "no stratum 'series s7'"),
        ({"series s0": 1.0}, "no weight for 'series s1', 'series s2'"),
    ],
)
def test_tables_that_do_not_fit_the_strata_are_refused(table, message, windows):
    trainer = quiet_trainer(
        method="plain", objective=table, stratifier=Stratifier.series()
    )
    with pytest.raises(ArgumentError, match=message):
        trainer.fit(Level(), windows)


class Level(nn.Module):
    """The simplest linear model: one level for every value; the loss is its square error.

    Its minimiser is the weighted mean of the windows' targets.
    """

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def loss(self, past_target, future_target):
        return (future_target - self.level).square().mean(dim=1)


def minimiser(windows, weights) -> float:
    targets = windows.gather(torch.arange(len(windows)))["future_target"].mean(dim=1)
    weights = torch.from_numpy(weights)
    return float((weights * targets).sum() / weights.sum())


@pytest.mark.parametrize(
    "sampling",
    [
        {"method": "plain"},
        {"method": "stratified"},
        {"method": "stratified", "allocation": "equal"},
        {"method": "stratified", "allocation": "equal", "replacement": False},
        {"method": "scott", "anchor_batch_size": 40},
        {"method": "svrg"},
    ],
)
@pytest.mark.parametrize("objective", ["series", "6 hours"])
def test_the_minimiser_is_that_of_the_objective(sampling, objective, windows):
    network = Level()
    trainer = quiet_trainer(
        **{"anchor_batch_size": 1, **sampling},
        objective=objective,
        stratifier=Stratifier.series(),
        batch_size=64,
        epochs=4,
        num_batches_per_epoch=250,
        weight_decay=0.0,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.1),
        learning_rate=0.2,
    )
    trainer.fit(network, windows)
    weights = weights_of(windows, objective)
    plain = minimiser(windows, np.ones(len(windows)))
    expected = minimiser(windows, weights)
    assert abs(expected - plain) > 0.05, "the objective matters"
    # The third epoch averages 16,000 windows of variance 1, whose weights differ by up to
    # a hundred: a standard error of about 0.01.
    assert float(network.level.detach()) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("allocation", ["proportional", "equal"])
def test_gradients_are_unbiased_for_the_objective(allocation, windows):
    strata = Stratifier.series().stratify(windows)
    objective = Objective.of(check_objective("6 hours"), windows, strata)
    numbers = Hyperparameters("stratified", batch_size=5, allocation=allocation)
    method = METHODS["stratified"](
        numbers, windows, strata, Generators.from_seed(0), objective
    )
    values = torch.randn(
        len(windows), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    found = []
    for _ in range(20_000):
        sample = method.minibatch()
        found.append(float((sample.weights * values[sample.windows]).sum()))
    expected = float((torch.from_numpy(weights_of(windows, "6 hours")) * values).mean())
    error = np.std(found) / np.sqrt(len(found))
    assert np.mean(found) == pytest.approx(expected, abs=4 * error)


def test_a_weighted_sample_that_was_put_back_survives_a_checkpoint(windows):
    objective = Objective.of(check_objective("series"), windows, None)
    numbers = Hyperparameters("plain", batch_size=3)

    def method():
        return METHODS["plain"](
            numbers, windows, None, Generators.from_seed(0), objective
        )

    first, second = method(), method()
    sample = first.minibatch()
    first.put_back(sample)
    second.load_state_dict(first.state_dict())
    again = second.minibatch()
    assert torch.equal(again.windows, sample.windows)
    assert torch.equal(again.weights, sample.weights)


@pytest.mark.parametrize("half_life", [pd.Timedelta("3 days"), timedelta(days=3)])
def test_trainers_with_a_half_life_are_serialised(half_life):
    trainer = ScottTrainer(objective=half_life)
    again = serde.load_json(serde.dump_json(trainer))
    assert again.objective == trainer.objective == pd.Timedelta("3 days")
