"""Ctrl-C and SIGTERM: the first ends training gracefully, the second at once."""

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
def _default_sigint_handler():
    """Handle Ctrl-C even if the tests run in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class SendSignal(pl.Callback):
    """Sends a signal to this process at a step, once or twice."""

    def __init__(self, step: int, times: int = 1, number: int = signal.SIGINT) -> None:
        self.step, self.times, self.number = step, times, number

    def on_train_batch_end(self, trainer, pl_module, *_):
        if pl_module.steps >= self.step and self.times:
            self.times -= 1
            os.kill(os.getpid(), self.number)
            if self.times:
                os.kill(os.getpid(), self.number)


def make_trainer(
    folder: Path | None = None, *callbacks: pl.Callback, resume: bool = False
):
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
def test_first_signal_ends_the_outer_loop_and_writes_a_checkpoint(number, tmp_path):
    before = signal.getsignal(number)
    network, first = tiny_network(), make_trainer(tmp_path, SendSignal(10, number=number))
    first.fit(network, wave_windows(), wave_windows().last())
    assert first.interrupted
    assert first.history["step"].tolist() == [7, 14]
    assert signal.getsignal(number) is before
    second = make_trainer(tmp_path, resume=True)
    second.fit(network, wave_windows(), wave_windows().last())
    assert not second.interrupted
    whole, whole_network = make_trainer(), tiny_network()
    whole.fit(whole_network, wave_windows(), wave_windows().last())
    for x, y in zip(network.parameters(), whole_network.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    assert second.history["step"].tolist() == whole.history["step"].tolist()


class SendSignalInValidation(pl.Callback):
    """Sends SIGINT during the last validation."""

    def on_validation_start(self, trainer, pl_module):
        if pl_module.steps == 60:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("callback", [SendSignal(60), SendSignalInValidation()])
def test_signal_in_the_last_outer_loop_still_saves_the_finished_run(callback, tmp_path):
    trainer = make_trainer(tmp_path, callback)
    network = tiny_network()
    trainer.fit(network, wave_windows(), wave_windows().last())
    assert trainer.interrupted
    again, read_back = make_trainer(tmp_path, resume=True), tiny_network()
    again.fit(read_back, wave_windows(), wave_windows().last())
    for x, y in zip(network.parameters(), read_back.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_second_ctrl_c_ends_at_once():
    with pytest.raises(
        (SystemExit, KeyboardInterrupt)
    ):  # depending on Lightning's version
        make_trainer(None, SendSignal(10, times=2)).fit(tiny_network(), wave_windows())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_second_sigterm_ends_the_process():
    child = os.fork()
    if child == 0:
        callback = SendSignal(10, times=2, number=signal.SIGTERM)
        make_trainer(None, callback).fit(tiny_network(), wave_windows())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_interruption_does_not_affect_the_next_run():
    trainer = make_trainer(None, SendSignal(10))
    trainer.fit(tiny_network(), wave_windows())
    assert trainer.interrupted
    trainer.fit(tiny_network(), wave_windows())
    assert not trainer.interrupted
    assert trainer.history["step"].iloc[-1] == 60


def test_ctrl_c_stays_ignored_in_background_programs():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible(lambda: pytest.fail("SIGINT should be ignored")):
        os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_unchanged_outside_the_main_thread():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with interruptible(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
