"""The outer loop: equal to the plain reference, and to the paper's own claims."""

from __future__ import annotations

from functools import partialmethod
from itertools import groupby

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from helpers.reference import (
    B_PER_STRATUM,
    BATCH,
    INNER_STEPS,
    STEPS,
    STRATIFIER,
    RecordingTrainer,
    reference_path,
    train,
)
from helpers.series import wave_entries, wave_windows
from helpers.training import QUIET, TinyNetwork, tiny_network
from torch.distributions import Distribution

from pts_scott import Stratifier
from pts_scott._utils.rng import Generators
from pts_scott.backends import backend
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.losses import Losses
from pts_scott.method.hyperparameters import Hyperparameters
from pts_scott.method.methods import METHODS
from pts_scott.method.scott import Scott, WindowDraws, geometric_length
from pts_scott.models.networks import (
    LSTMNetwork,
    NBEATSNetwork,
    VARNetwork,
    nbeats_network,
)
from pts_scott.training.optimizers import OPTIMIZERS


@pytest.mark.parametrize("gamma", [None, 0.6])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("method", METHODS)
def test_fast_equals_the_plain_reference_step_by_step(method, optimizer, gamma):
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
    """‖v‖² of each step, grouped by outer loop."""
    norms = [sum(float((g * g).sum()) for g in v) for v in trainer.directions]
    ends = trainer.history["step"].tolist()
    outer = np.searchsorted(ends, np.arange(len(norms)), side="right")
    return [
        [n for _, n in group] for _, group in groupby(zip(outer, norms), lambda x: x[0])
    ]


def test_the_first_norm_starts_anew_in_each_outer_loop():
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
def test_asking_for_the_early_stop_one_step_later_changes_no_parameter(
    method, monkeypatch
):
    at_once = train(method, gamma=0.6, num_batches_per_epoch=60)
    late = partialmethod(Scott.__init__, deferred=True)
    monkeypatch.setattr(Scott, "__init__", late)
    later = train(method, gamma=0.6, num_batches_per_epoch=60)

    assert len(later.path) == len(at_once.path) == 60
    for x, y in zip(later.path, at_once.path):
        for p, q in zip(x, y):
            assert torch.equal(p, q)
    # Each early stop has cost one pair of gradients, and they are counted.
    lengths = np.diff(at_once.history["step"], prepend=0)
    stops = (lengths[:-1] < INNER_STEPS).sum()
    assert stops > 3
    wasted = later.history["gradients"].iloc[-1] - at_once.history["gradients"].iloc[-1]
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


def test_a_linear_coefficient_goes_from_one_to_zero(monkeypatch):
    seen = []
    original = Scott.outer_loop

    def spy(self, length, coefficient=1.0, exhausted=lambda: False):
        seen.append(coefficient)
        return original(self, length, coefficient, exhausted)

    monkeypatch.setattr(Scott, "outer_loop", spy)
    train(
        "scott", coefficient="linear", gamma=None, num_batches_per_epoch=5 * INNER_STEPS
    )
    assert seen == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


@pytest.mark.parametrize("mean", [1, 16, 49])
def test_the_geometric_length_has_the_papers_distribution(mean):
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


def test_a_geometric_run_has_loops_of_random_length():
    trainer = train(
        "scott", inner_length="geometric", gamma=None, num_batches_per_epoch=200
    )
    lengths = np.diff(trainer.history["step"], prepend=0)
    assert lengths.sum() == 200
    assert len(set(lengths)) > 2


class CountingNetwork(TinyNetwork):
    """Counts the windows of every pass that a gradient flows back through."""

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

    class FromTheFirstStep(pl.Callback):
        def on_train_epoch_start(self, *_):  # after the self-check
            network.seen = 0

    kwargs = {**QUIET, "callbacks": [FromTheFirstStep()]}
    trainer = train(method, network=network, gamma=0.6, trainer_kwargs=kwargs)
    history = trainer.history
    assert history["gradients"].iloc[-1] == network.seen
    strata, steps, anchors = 9, STEPS, history["anchors"].iloc[-1]
    expected = {
        "plain": BATCH * steps,
        "stratified": strata * B_PER_STRATUM * steps,
        "scott": 2 * BATCH * steps + strata * B_PER_STRATUM * anchors,
        "scsg": 2 * BATCH * steps + strata * B_PER_STRATUM * anchors,
        "svrg": 2 * BATCH * steps + len(wave_windows()) * anchors,
    }
    assert network.seen == expected[method]


def meta_scott(
    network, windows, method="scott", optimizer="sgd", strata_device="meta", **kwargs
):
    losses = Losses(network.to("meta"))
    gradients = Gradients(losses)
    settings = Hyperparameters(method=method, batch_size=4, gamma=None)
    strata = Stratifier.calendar("hour").stratify(windows).to(strata_device)
    windows = windows.to("meta")
    draws = WindowDraws(settings, windows, strata, Generators.from_seed(0, "meta"))
    step = OPTIMIZERS[optimizer](gradients.parameters, lr=0.1, weight_decay=1e-3).step

    def gather(numbers):
        return windows.gather(numbers, losses.fields)

    return Scott(gradients, gather, draws, settings, step, **kwargs)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("method", METHODS)
def test_an_outer_loop_makes_nothing_on_another_device(method, optimizer):
    scott = meta_scott(
        tiny_network(torch.float32), wave_windows(torch.float32), method, optimizer
    )
    assert scott.outer_loop(3).steps == 3


NBEATS = {
    "context_length": 6,
    "prediction_length": 2,
    "periodicity": 1,
    "num_stacks": 3,
    "widths": [4] * 3,
    "num_blocks": [1] * 3,
    "num_block_layers": [2] * 3,
    "expansion_coefficient_lengths": [2] * 3,
    "stack_types": ["G", "T", "S"],
}


@pytest.fixture
def unvalidated_distributions():
    """Distributions look at their values to validate them, which meta tensors lack."""
    Distribution.set_default_validate_args(False)
    yield
    Distribution.set_default_validate_args(__debug__)


@pytest.mark.usefixtures("unvalidated_distributions")
@pytest.mark.parametrize(
    "make",
    [
        lambda: VARNetwork(context_length=6, prediction_length=2),
        lambda: LSTMNetwork(prediction_length=2, hidden_size=4),
        lambda: NBEATSNetwork(**NBEATS),
        lambda: nbeats_network(**NBEATS),
        lambda: backend.simple_feedforward(6, 2, [4, 4], None, False),
    ],
    ids=["var", "lstm", "nbeats", "the backend's nbeats", "feedforward"],
)
@pytest.mark.parametrize("context", ["full", "padded"])
@pytest.mark.parametrize("missing", [False, True])
def test_no_model_makes_tensors_on_another_device(make, context, missing):
    entries = wave_entries()
    if missing:
        entries[0]["target"][8] = np.nan
    windows = WindowIndex.from_dataset(entries, "h", 6, 2, context=context)
    scott = meta_scott(make(), windows, clip_gradient=1.0)
    assert scott.outer_loop(2).steps == 2


def test_a_tensor_on_another_device_would_be_noticed():
    with pytest.raises(RuntimeError, match="device|meta"):
        meta_scott(
            tiny_network(torch.float32), wave_windows(torch.float32), strata_device="cpu"
        ).outer_loop(1)
