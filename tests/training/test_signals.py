"""Ctrl-C and SIGTERM: once in good order, twice at once."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from helpers.series import wave_windows
from helpers.training import QUIET, quiet_trainer, tiny_network

from pts_scott import Stratifier
from pts_scott.training.signals import interruptible


@pytest.fixture(autouse=True)
def _heard():
    """Ctrl-C is heard, also where the tests were started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Press(pl.Callback):
    """Presses Ctrl-C at a step, perhaps twice, or sends another signal."""

    def __init__(self, step: int, times: int = 1, number: int = signal.SIGINT) -> None:
        self.step, self.times, self.number = step, times, number

    def on_train_batch_end(self, trainer, pl_module, *_):
        if pl_module.steps >= self.step and self.times:
            self.times -= 1
            os.kill(os.getpid(), self.number)
            if self.times:
                os.kill(os.getpid(), self.number)


def trainer(folder: Path | None = None, *callbacks: pl.Callback, resume: bool = False):
    return quiet_trainer(
        epochs=3,
        batch_size=4,
        inner_steps=7,
        gamma=None,
        stratifier=Stratifier.series(),
        checkpoint=folder,
        resume=resume,
        trainer_kwargs={**QUIET, "callbacks": list(callbacks)},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_once_ends_the_outer_loop_writes_a_checkpoint_and_returns(number, tmp_path):
    before = signal.getsignal(number)
    network, first = tiny_network(), trainer(tmp_path, Press(10, number=number))
    first.fit(network, wave_windows(), wave_windows().last())
    assert first.interrupted
    assert first.history["step"].tolist() == [7, 14]
    assert signal.getsignal(number) is before
    second = trainer(tmp_path, resume=True)
    second.fit(network, wave_windows(), wave_windows().last())
    assert not second.interrupted
    whole, network_of_whole = trainer(), tiny_network()
    whole.fit(network_of_whole, wave_windows(), wave_windows().last())
    for x, y in zip(network.parameters(), network_of_whole.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    assert second.history["step"].tolist() == whole.history["step"].tolist()


class PressInValidation(pl.Callback):
    """Presses Ctrl-C while the last validation is made."""

    def on_validation_start(self, trainer, pl_module):
        if pl_module.steps == 60:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("press", [Press(60), PressInValidation()])
def test_in_the_last_outer_loop_the_end_is_written(press, tmp_path):
    own = trainer(tmp_path, press)
    network = tiny_network()
    own.fit(network, wave_windows(), wave_windows().last())
    assert own.interrupted
    again, read_back = trainer(tmp_path, resume=True), tiny_network()
    again.fit(read_back, wave_windows(), wave_windows().last())
    for x, y in zip(network.parameters(), read_back.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_twice_ends_at_once():
    with pytest.raises((SystemExit, KeyboardInterrupt)):  # which is Lightning's answer
        trainer(None, Press(10, times=2)).fit(tiny_network(), wave_windows())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a child is forked")
def test_sigterm_twice_ends_the_process():
    child = os.fork()
    if child == 0:
        press = Press(10, times=2, number=signal.SIGTERM)
        trainer(None, press).fit(tiny_network(), wave_windows())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_a_second_training_is_not_interrupted_by_the_first():
    own = trainer(None, Press(10))
    own.fit(tiny_network(), wave_windows())
    assert own.interrupted
    own.fit(tiny_network(), wave_windows())
    assert not own.interrupted
    assert own.history["step"].iloc[-1] == 60


def test_a_program_in_the_background_does_not_hear_it():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible(lambda: pytest.fail("it was ignored")):
        os.kill(os.getpid(), signal.SIGINT)


def test_other_threads_are_left_alone():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with interruptible(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
