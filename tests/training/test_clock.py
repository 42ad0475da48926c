"""Stopwatch: training counts as training time, evaluation does not."""

from __future__ import annotations

import time

import lightning.pytorch as pl
import pytest
from helpers.runs import fit_tiny_network
from helpers.series import wave_windows
from helpers.training import QUIET, quiet_trainer, tiny_network

from pts_scott import WindowIndex
from pts_scott.engine.eager import EagerEngine
from pts_scott.engine.gradients import Gradients
from pts_scott.method.samplers import UniformSampler
from pts_scott.method.scott import Algorithm
from pts_scott.training import lightning_module
from pts_scott.training.clock import Stopwatch

# -- the stopwatch alone ------------------------------------------------------------


class ManualTime:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def manual_time(monkeypatch) -> ManualTime:
    manual = ManualTime()
    monkeypatch.setattr("pts_scott.training.clock.time", manual)
    return manual


def test_stopwatch_counts_only_while_it_runs(manual_time):
    clock = Stopwatch()
    manual_time.now += 1.0  # before the start
    assert clock.seconds == 0.0
    clock.start()
    manual_time.now += 2.0
    assert clock.seconds == 2.0, "it can be read while it runs"
    clock.stop()
    manual_time.now += 4.0
    assert clock.seconds == 2.0
    clock.start()
    manual_time.now += 8.0
    clock.stop()
    assert clock.seconds == 10.0


def test_stopwatch_of_a_resumed_run_continues_at_its_seconds(manual_time):
    clock = Stopwatch(3.0)
    clock.start()
    manual_time.now += 2.0
    assert clock.seconds == 5.0


def test_stopping_twice_counts_once(manual_time):
    clock = Stopwatch()
    clock.start()
    manual_time.now += 1.0
    clock.stop()
    manual_time.now += 1.0
    clock.stop()
    assert clock.seconds == 1.0


def test_stopped_suspends_the_clock_even_if_the_work_fails(manual_time):
    clock = Stopwatch()
    clock.start()

    def fail() -> None:
        with clock.stopped():
            manual_time.now += 5.0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert clock.seconds == 0.0
    manual_time.now += 1.0
    assert clock.seconds == 1.0, "it runs again"


# -- the clock of a run -------------------------------------------------------------


def slow_down(monkeypatch, owner, name: str, seconds: float) -> list[float]:
    """Make a function slower; return a list that collects the pauses."""
    original = getattr(owner, name)
    pauses: list[float] = []

    def slow(*args, **kwargs):
        began = time.perf_counter()
        time.sleep(seconds)
        pauses.append(time.perf_counter() - began)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, slow)
    return pauses


def test_validation_is_not_counted_as_training_time(monkeypatch):
    pauses = slow_down(monkeypatch, lightning_module, "evaluate", 1.0)
    trainer = quiet_trainer(method="plain", epochs=3, num_batches_per_epoch=10)
    fit_tiny_network(trainer, validate=True)
    assert len(pauses) == 3
    assert trainer.history["seconds"].iloc[-1] < 1.0, "30 steps of a few milliseconds"


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (WindowIndex, "gather"),
        (UniformSampler, "draw"),
        (Gradients, "weighted"),
        (Gradients, "control_variate"),
        (Algorithm, "_anchor"),
        (EagerEngine, "_update"),
    ],
)
def test_every_part_of_a_step_is_counted_as_training_time(monkeypatch, owner, name):
    trainer = quiet_trainer(gamma=None, inner_steps=5)
    windows, network = wave_windows(), tiny_network()

    class SlowDownAfterSelfCheck(pl.Callback):
        def on_train_epoch_start(self, *_):
            self.pauses = slow_down(monkeypatch, owner, name, 0.05)

    callback = SlowDownAfterSelfCheck()
    trainer.trainer_kwargs = {**QUIET, "callbacks": [callback]}
    trainer.fit(network, windows)
    assert len(callback.pauses) >= 4
    assert trainer.history["seconds"].iloc[-1] >= sum(callback.pauses)
