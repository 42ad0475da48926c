"""Algorithms 1 and 2 equal the plain reference, and have the properties of the paper."""

from __future__ import annotations

import itertools

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from helpers.engine import assemble
from helpers.reference import (
    B_PER_STRATUM,
    BATCH,
    INNER_STEPS,
    STEPS,
    STRATA,
    STRATIFIER,
    RecordingTrainer,
    reference_path,
    train,
)
from helpers.series import wave_windows
from helpers.training import QUIET, TinyNetwork, tiny_network

from pts_scott import Stratifier
from pts_scott.method.methods import METHODS
from pts_scott.method.scott import Algorithm, geometric_length


@pytest.mark.parametrize("gamma", [None, 0.6])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("method", METHODS)
def test_trained_parameters_equal_the_reference_step_by_step(method, optimizer, gamma):
    windows = wave_windows()
    strata = STRATIFIER.stratify(windows)
    trainer = train(method, optimizer, windows=windows, gamma=gamma)
    expected = reference_path(method, optimizer, gamma, windows, strata)

    assert len(trainer.path) == len(expected) == STEPS
    for fast, plain in zip(trainer.path, expected):
        for x, y in zip(fast, plain):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-11)
    if gamma is not None and method in ("scott", "scsg", "svrg"):
        lengths = np.diff(trainer.history["step"], prepend=0)
        assert (lengths[:-1] < INNER_STEPS).any(), "the early stop was not tested"


def loops_of(trainer: RecordingTrainer) -> list[list[float]]:
    """Return ‖v‖² of each step, grouped by outer loop."""
    norms = [sum(float((g * g).sum()) for g in v) for v in trainer.directions]
    ends = trainer.history["step"].tolist()
    outer = np.searchsorted(ends, np.arange(len(norms)), side="right")
    groups = itertools.groupby(zip(outer, norms), lambda pair: pair[0])
    return [[norm for _, norm in group] for _, group in groups]


def test_first_norm_is_reset_in_each_outer_loop():
    gamma = 0.6
    trainer = train("scott", gamma=gamma, num_batches_per_epoch=120)
    loops = loops_of(trainer)[:-1]  # the last may be cut by the end of training
    assert len(loops) > 10
    for norms in loops:
        stops = [k for k, n in enumerate(norms) if n <= gamma * norms[0]]
        if len(norms) < INNER_STEPS:
            assert stops == [len(norms) - 1]
        else:
            assert stops in ([], [INNER_STEPS - 1])


@pytest.mark.parametrize("method", ["scott", "scsg", "svrg"])
def test_deferred_early_stop_changes_no_parameter(method, monkeypatch):
    waiting = train(method, gamma=0.6, num_batches_per_epoch=60)
    monkeypatch.setattr("pts_scott.engine.build.should_look_ahead", lambda *_: True)
    ahead = train(method, gamma=0.6, num_batches_per_epoch=60)

    assert len(ahead.path) == len(waiting.path) == 60
    for x, y in zip(ahead.path, waiting.path):
        for p, q in zip(x, y):
            assert torch.equal(p, q)
    # Each early stop costs one pair of gradients, and they are counted.
    lengths = np.diff(waiting.history["step"], prepend=0)
    stops = (lengths[:-1] < INNER_STEPS).sum()
    assert stops > 3
    wasted = ahead.history["gradients"].iloc[-1] - waiting.history["gradients"].iloc[-1]
    assert wasted in (2 * BATCH * stops, 2 * BATCH * (stops + 1))


def test_svrg_equals_scott_with_the_finest_strata():
    svrg = train("svrg", gamma=0.6)
    scott = train("scott", gamma=0.6, stratifier=Stratifier.finest(), anchor_batch_size=1)
    assert len(svrg.path) == len(scott.path)
    for x, y in zip(svrg.path[-1], scott.path[-1]):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)
    assert svrg.history["gradients"].tolist() == scott.history["gradients"].tolist()


@pytest.mark.parametrize("method", ["scott", "scsg", "svrg"])
def test_coefficient_zero_equals_plain(method):
    plain = train("plain")
    without = train(method, coefficient=0.0, gamma=None)
    for x, y in zip(plain.path[-1], without.path[-1]):
        assert torch.equal(x, y)


def test_linear_coefficient_decays_from_one_to_zero(monkeypatch):
    seen = []
    original = Algorithm.outer_loop

    def spy(self, step_size, coefficient, *arguments):
        seen.append(coefficient)
        return original(self, step_size, coefficient, *arguments)

    monkeypatch.setattr(Algorithm, "outer_loop", spy)
    train(
        "scott", coefficient="linear", gamma=None, num_batches_per_epoch=5 * INNER_STEPS
    )
    assert seen == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


@pytest.mark.parametrize("mean", [1, 16, 49])
def test_geometric_length_has_the_distribution_of_the_paper(mean):
    size = 20_000
    generator = torch.Generator().manual_seed(3)
    lengths = np.array([geometric_length(mean, generator) for _ in range(size)])
    p = mean / (mean + 1)
    # Five standard errors: a right sampler fails once in a million runs.
    assert abs(lengths.mean() - mean) < 5 * np.sqrt(mean * (mean + 1) / size)
    for k in range(3):
        expected = p**k * (1 - p)
        error = np.sqrt(expected * (1 - expected) / size)
        assert abs((lengths == k).mean() - expected) < 5 * error


def test_geometric_run_has_loops_of_random_length():
    trainer = train(
        "scott", inner_length="geometric", gamma=None, num_batches_per_epoch=200
    )
    lengths = np.diff(trainer.history["step"], prepend=0)
    assert lengths.sum() == 200
    assert len(set(lengths)) > 2


class CountingNetwork(TinyNetwork):
    """Counts the windows of every backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def loss(self, past_target, future_target):
        losses = super().loss(past_target, future_target)
        if losses.requires_grad:
            losses.register_hook(self.count)
        return losses

    def count(self, gradient):
        self.seen += len(gradient)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_counted_equal_gradients_computed(method):
    network = CountingNetwork().double()

    class ResetCount(pl.Callback):
        def on_train_epoch_start(self, *_):  # after the checks before training
            network.seen = 0

    kwargs = {**QUIET, "callbacks": [ResetCount()]}
    trainer = train(method, network=network, gamma=0.6, trainer_kwargs=kwargs)
    history = trainer.history
    assert history["gradients"].iloc[-1] == network.seen
    strata, steps, anchors = STRATA, STEPS, history["anchors"].iloc[-1]
    expected = {
        "auto": BATCH * steps,
        "plain": BATCH * steps,
        "mars": BATCH * steps,
        "storm": 2 * BATCH * steps - BATCH,
        "stratified": strata * B_PER_STRATUM * steps,
        # The first step after an anchor is along the anchor.
        "scott": 2 * BATCH * (steps - anchors) + strata * B_PER_STRATUM * anchors,
        "scsg": 2 * BATCH * (steps - anchors) + strata * B_PER_STRATUM * anchors,
        "svrg": 2 * BATCH * (steps - anchors) + len(wave_windows()) * anchors,
    }
    assert network.seen == expected[method]


def test_outer_loop_asks_for_the_budget_once_per_step():
    """A budget of time must give one answer: whether a step follows, and is the last."""
    asked = []

    def may_step(made: int) -> bool:
        asked.append(made)
        return made < 2

    run = assemble(tiny_network(), wave_windows())
    report = run.algorithm.outer_loop(0.1, 1.0, may_step, 9)
    assert len(report.steps) == 2
    assert asked == [0, 1, 2]


def test_outer_loop_ends_after_its_length():
    run = assemble(tiny_network(), wave_windows(), inner_steps=3)
    assert len(run.algorithm.outer_loop(0.1, 1.0, lambda made: True, 9).steps) == 3
    assert run.algorithm.outer_loop(0.1, 1.0, lambda made: False, 9).steps == []


def test_last_step_of_an_outer_loop_is_announced(monkeypatch):
    run = assemble(tiny_network(), wave_windows())
    announced = []
    apply = run.parts.wrapper.apply

    def record(v, last):
        announced.append(last)
        return apply(v, last)

    monkeypatch.setattr(run.parts.wrapper, "apply", record)
    run.outer_loop(3)
    assert announced == [False, False, True]
