"""Checkpoints: a run that was interrupted ends as if it had not been."""

from __future__ import annotations

import math
import os
import pickle
import signal
import time
import zipfile
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from conftest import QUIET, quiet_trainer, tiny_network, wave_entries, wave_windows
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn

from pts_scott import Checkpoints, ScottTrainer, Stratifier, WindowIndex
from pts_scott.checkpoints import read, write
from pts_scott.errors import (
    ArgumentError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointVersionError,
    DamagedCheckpointError,
    ScottWarning,
    UnsafeCheckpointError,
)
from pts_scott.lightning_loop import KEY
from pts_scott.scott import METHODS

CLOCK = ["seconds", "compile_seconds"]  # columns of the history that no two runs share


class CrashError(Exception):
    """The end of a process, for a test."""


class CrashAt(pl.Callback):
    """Ends training after a step, as a crash would."""

    def __init__(self, step: float) -> None:
        self.step = step

    def on_train_batch_end(self, trainer, pl_module, *_):
        if pl_module.steps >= self.step:
            raise CrashError


class Dropped(nn.Module):
    """A network with dropout and a running value, whose state is in global places."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2, dtype=torch.float64)
        nn.init.constant_(self.linear.weight, 0.1)
        nn.init.zeros_(self.linear.bias)
        level = torch.zeros((), dtype=torch.float64)
        self.register_buffer("level", level, persistent=False)

    def loss(self, past_target, future_target):
        hidden = nn.functional.dropout(past_target, 0.3, self.training)
        if self.training:
            self.level = 0.9 * self.level + 0.1 * past_target.mean().detach()
        forecast = self.linear(hidden) + 0.01 * self.level
        return (forecast - future_target).square().mean(dim=1)


def run(
    folder: Path | None = None,
    crash: float = math.inf,
    network: nn.Module | None = None,
    callbacks: list[pl.Callback] | None = None,
    **settings: Any,
) -> tuple[nn.Module, ScottTrainer]:
    """Train, from the folder's checkpoint on if there is one."""
    network = network or tiny_network()
    arguments = {
        "learning_rate": 0.01,
        "batch_size": 4,
        "anchor_batch_size": 2,
        "inner_steps": 7,
        "epochs": 3,
        "num_batches_per_epoch": 18,
        "stratifier": Stratifier.series(),
        "trainer_kwargs": {**QUIET, "callbacks": [*(callbacks or []), CrashAt(crash)]},
    }
    if folder is not None:
        arguments |= {"checkpoint": Checkpoints(folder, steps=1), "resume": True}
    trainer = quiet_trainer(**{**arguments, **settings})
    windows = wave_windows()
    try:
        trainer.fit(network, windows, windows.last())
    except CrashError:
        assert math.isfinite(crash)
    return network, trainer


def assert_same(one: tuple[nn.Module, ScottTrainer], other: tuple[Any, Any]) -> None:
    """To the bit: parameters, buffers, and the history but for its clock."""
    for x, y in zip(one[0].parameters(), other[0].parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    for x, y in zip(one[0].buffers(), other[0].buffers(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    histories = [trainer.history.drop(columns=CLOCK) for _, trainer in (one, other)]
    assert histories[0].equals(histories[1])


# -- exact resume ----------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_crashed_ends_as_one_that_did_not(method, optimizer, tmp_path):
    settings = {"method": method, "optimizer": optimizer}
    whole = run(**settings)
    for crash in (3, 18, 30, 53):  # in the first epoch, at its end, later, almost done
        folder = tmp_path / str(crash)
        run(folder, crash, **settings)
        assert_same(run(folder, **settings), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "optimizer"), [("scott", "adam"), ("plain", "sgd"), ("svrg", "adagrad")]
)
def test_compiled_runs_are_resumed_exactly(method, optimizer, tmp_path):
    settings = {"method": method, "optimizer": optimizer, "compile": True}
    whole = run(**settings)
    run(tmp_path, 30, **settings)
    assert_same(run(tmp_path, **settings), whole)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("method", METHODS)
def test_every_compiled_run_is_resumed_exactly(method, optimizer, tmp_path):
    settings = {"method": method, "optimizer": optimizer, "compile": True}
    whole = run(**settings)
    run(tmp_path, 30, **settings)
    assert_same(run(tmp_path, **settings), whole)


def exponential(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


@pytest.mark.parametrize(
    "settings",
    [
        {"output": "best"},
        {"output": "sampled"},
        {"inner_length": "geometric", "gamma": None},
        {"coefficient": "linear"},
        {"gradient_budget": 700, "epochs": None},
        {"scheduler": exponential, "optimizer": "adam"},
        {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau},
        {"optimizer": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9)},
        {"clip_gradient": 0.1, "stratifier": Stratifier.random(5)},
        {"num_batches_per_epoch": 3, "epochs": 15},  # shorter than an outer loop
    ],
    ids=lambda settings: "-".join(settings),
)
def test_whatever_is_set_is_resumed_exactly(settings, tmp_path):
    whole = run(**settings)
    for crash in (10, 33):
        run(tmp_path / str(crash), crash, **settings)
        assert_same(run(tmp_path / str(crash), **settings), whole)


def test_dropout_and_running_values_are_resumed_exactly(tmp_path):
    whole = run(network=Dropped())
    run(tmp_path, 30, network=Dropped())
    assert_same(run(tmp_path, network=Dropped()), whole)


def test_callbacks_are_resumed_with_the_run(tmp_path):
    def stop() -> list[pl.Callback]:
        return [EarlyStopping(monitor="val_loss", patience=3, min_delta=1e9)]

    settings: dict[str, Any] = {"epochs": 9}
    whole = run(callbacks=stop(), **settings)
    run(tmp_path, 40, callbacks=stop(), **settings)
    assert_same(run(tmp_path, callbacks=stop(), **settings), whole)
    assert whole[1].history["epoch"].max() == 3


def test_a_crash_in_every_outer_loop_changes_nothing(tmp_path):
    whole = run()
    for crash in range(1, 54, 2):
        run(tmp_path, crash)
    assert_same(run(tmp_path), whole)


def test_a_finished_run_is_read_and_not_trained_again(tmp_path):
    first = run(tmp_path, output="best")
    again = run(tmp_path, crash=0, output="best")  # a step would crash
    assert_same(first, again)


def test_a_finished_run_goes_on_with_a_larger_budget(tmp_path):
    """Exactly for steps that nothing ties together; SCott's last anchor was cut short."""
    run(tmp_path / "plain", epochs=2, method="plain")
    longer = run(tmp_path / "plain", epochs=3, method="plain")
    assert_same(longer, run(epochs=3, method="plain"))
    run(tmp_path / "scott", epochs=2)
    _, trainer = run(tmp_path / "scott", epochs=3)
    assert trainer.history["step"].iloc[-1] == 54
    assert trainer.history["step"].is_monotonic_increasing


def test_without_resume_a_run_starts_anew(tmp_path):
    run(tmp_path, 30)
    assert_same(run(tmp_path, resume=False), run())


class Ticking:
    """A clock on which every look takes a millisecond, on any machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.001
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Ticking:
    """The clock of training and of checkpoints; the disk does not wait for it."""
    ticking = Ticking()
    monkeypatch.setattr("pts_scott.budget.time", ticking)
    monkeypatch.setattr("pts_scott.checkpoints.time", ticking)
    return ticking


def test_time_that_was_used_counts_against_the_budget(tmp_path, clock):
    settings = {"epochs": None, "time_budget": 0.4, "gamma": None}
    _, whole = run(tmp_path / "whole", **settings)
    run(tmp_path, crash=100, **settings)
    used = read(tmp_path / "last.ckpt")[KEY]["seconds"]
    assert 0.1 < used < 0.3
    _, trainer = run(tmp_path, **settings)
    seconds = trainer.history["seconds"]
    assert seconds.is_monotonic_increasing
    assert used < seconds.iloc[-1] < 0.42
    steps = trainer.history["step"].iloc[-1], whole.history["step"].iloc[-1]
    assert abs(steps[0] - steps[1]) <= 7, "as many as without, up to an outer loop"


# -- when it is written ----------------------------------------------------------------


class Written(pl.Callback):
    """Steps at which the file changed."""

    def __init__(self, path: Path) -> None:
        self.path, self.steps, self.seen = path, [], None

    def on_train_batch_end(self, trainer, pl_module, *_):
        stamp = self.path.stat().st_mtime_ns if self.path.exists() else None
        if stamp != self.seen:
            self.seen = stamp
            self.steps.append(read(self.path)[KEY]["steps"])


def test_checkpoints_come_every_so_many_steps(tmp_path):
    written = Written(tmp_path / "last.ckpt")
    checkpoint = Checkpoints(tmp_path, steps=20)
    run(tmp_path, callbacks=[written], checkpoint=checkpoint, gamma=None)
    assert written.steps == [21, 42]
    assert read(written.path)[KEY]["finished"]


def slow_disk(monkeypatch, clock: Ticking, seconds: float) -> None:
    def slow(checkpoint, path):
        clock.now += seconds
        write(checkpoint, path)

    monkeypatch.setattr("pts_scott.checkpoints.write", slow)


def test_by_the_clock_they_take_no_more_than_their_share(tmp_path, monkeypatch, clock):
    """However slow the disk is, and however often they are asked for."""
    slow_disk(monkeypatch, clock, 0.01)
    checkpoint = Checkpoints(tmp_path, minutes=0.0)
    settings = {"epochs": None, "time_budget": 2.5, "gamma": None}
    _, trainer = run(tmp_path, checkpoint=checkpoint, **settings)
    written = round(trainer.checkpoint_seconds / 0.011)
    assert written == 1 + 4 + 1, "at once, after fifty times its cost, and at the end"


def test_the_clock_of_training_stands_still_meanwhile(tmp_path, monkeypatch, clock):
    histories = []
    for seconds in (0.0, 5.0):
        slow_disk(monkeypatch, clock, seconds)
        _, trainer = run(tmp_path / str(seconds))
        histories.append(trainer.history["seconds"])
        assert trainer.checkpoint_seconds >= seconds * len(trainer.history)
    np.testing.assert_allclose(histories[0], histories[1], atol=1e-6)


# -- what can go wrong with files ------------------------------------------------------


def test_a_crash_while_writing_leaves_the_one_before(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    run(tmp_path, 20)
    before = path.read_bytes()
    save = torch.save

    def half(checkpoint, file):
        save(checkpoint, file)
        file.truncate(file.tell() // 2)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(CheckpointError, match="No space left.*the one before is kept"):
        write({"a": 1}, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["last.ckpt"]


@pytest.mark.parametrize("on_error", ["warn", "stop"])
def test_a_full_disk_is_reported_and_training_goes_on_or_stops(
    on_error, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    checkpoint = Checkpoints(tmp_path, steps=10, on_error=on_error)
    with pytest.warns(ScottWarning, match="No space left on device"):
        network, trainer = run(tmp_path, checkpoint=checkpoint, gamma=None)
    assert trainer.history["step"].iloc[-1] == (54 if on_error == "warn" else 14)
    assert all(bool(p.isfinite().all()) for p in network.parameters())
    assert not (tmp_path / "last.ckpt").exists()


def test_a_folder_that_is_a_file_is_reported(tmp_path):
    (tmp_path / "folder").write_text("")
    with pytest.warns(ScottWarning, match="cannot be written.*choose another folder"):
        run(checkpoint=Checkpoints(tmp_path / "folder" / "inside"))


def test_lightnings_own_checkpoints_are_written_in_the_same_way(tmp_path):
    best = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss", save_weights_only=False)
    run(callbacks=[best])
    checkpoint = read(best.best_model_path)
    assert checkpoint[KEY]["steps"] == checkpoint["global_step"]
    torch.load(best.best_model_path, weights_only=True)


# -- what can be wrong with a file -----------------------------------------------------


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    run(tmp_path, 20)
    return tmp_path / "last.ckpt"


def test_a_malicious_pickle_is_refused(checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    content[KEY]["latest"] = Payload(tmp_path / "owned")
    torch.save(content, checkpoint)
    with pytest.raises(UnsafeCheckpointError, match="someone else's code"):
        run(tmp_path)
    checkpoint.write_bytes(pickle.dumps(Payload(tmp_path / "owned")))
    with pytest.raises(DamagedCheckpointError, match="not a whole checkpoint"):
        run(tmp_path)
    assert not (tmp_path / "owned").exists()


def test_a_truncated_one_is_refused(checkpoint, tmp_path):
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    with pytest.raises(DamagedCheckpointError, match="Remove it to start again"):
        run(tmp_path)


def test_one_with_a_changed_byte_is_refused(checkpoint, tmp_path):
    with zipfile.ZipFile(checkpoint) as file:
        largest = max(file.infolist(), key=lambda info: info.file_size)
    content = bytearray(checkpoint.read_bytes())
    content[largest.header_offset + 400] ^= 1
    checkpoint.write_bytes(bytes(content))
    with pytest.raises(DamagedCheckpointError, match="not what was written"):
        run(tmp_path)


def test_one_of_another_version_is_refused(checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    content[KEY] |= {"format": 99, "version": "7.0"}
    torch.save(content, checkpoint)
    with pytest.raises(CheckpointVersionError, match="format 99 of pts_scott 7.0"):
        run(tmp_path)


def test_one_of_another_program_is_refused(checkpoint, tmp_path):
    torch.save({"state_dict": {}}, checkpoint)
    with pytest.raises(CheckpointError, match="not a checkpoint of ScottTrainer"):
        run(tmp_path)


def test_one_of_another_model_data_or_setting_is_refused(checkpoint, tmp_path):
    with pytest.raises(CheckpointMismatchError, match="model, network"):
        run(tmp_path, network=Dropped())
    with pytest.raises(CheckpointMismatchError, match="batch_size, is 4 in it and 5"):
        run(tmp_path, batch_size=5)
    with pytest.raises(CheckpointMismatchError, match="data, strata"):
        run(tmp_path, stratifier=Stratifier.periodic(5))
    trainer = quiet_trainer(
        learning_rate=0.01,
        batch_size=4,
        anchor_batch_size=2,
        inner_steps=7,
        num_batches_per_epoch=18,
        stratifier=Stratifier.series(),
        checkpoint=tmp_path,
        resume=True,
    )
    entries = wave_entries(seed=5)
    other = WindowIndex.from_dataset(entries, "h", 6, 2, dtype=torch.float64)
    with pytest.raises(CheckpointMismatchError, match="data, values"):
        trainer.fit(tiny_network(), other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resume": True}, "needs a folder"),
        ({"checkpoint": 3}, "expected a folder"),
        ({"resume": "yes", "checkpoint": "x"}, "True or False"),
        ({"skip_limit": 0}, "skip_limit=0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        ScottTrainer(**arguments)


@pytest.mark.parametrize(
    "arguments", [{"minutes": -1}, {"steps": 0}, {"on_error": "panic"}, {"folder": 3}]
)
def test_wrong_settings_are_refused(arguments):
    with pytest.raises(ArgumentError):
        Checkpoints(**{"folder": "x", **arguments})


# -- killed at any moment --------------------------------------------------------------


def kill_at_random(folder: Path, kills: int, seed: int) -> tuple[int, int]:
    """Kill a run again and again at random moments until it is finished.

    A child is forked for each attempt, so that it starts at once; a run that is finished
    before it is killed is started anew in another folder.

    Returns
    -------
    Kills that hit a run, and runs that were finished.
    """
    generator = np.random.default_rng(seed)
    settings = {"epochs": 12, "optimizer": "adam", "network": None}
    whole = run(**settings)
    hits = finished = 0
    while hits < kills:
        place = folder / str(finished)
        child = os.fork()
        if child == 0:
            os.setsid()
            try:
                run(place, **settings)
            except BaseException:
                os._exit(1)
            os._exit(0)
        # From before the first checkpoint to well after the last.
        time.sleep(float(generator.uniform(0.02, 0.5)))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            hits += 1
            continue
        assert os.WEXITSTATUS(status) == 0
        assert_same(run(place, crash=0, **settings), whole)
        finished += 1
    place = folder / str(finished)
    assert_same(run(place, **settings), whole)
    return hits, finished + 1


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_twenty_kills_change_nothing(tmp_path):
    hits, finished = kill_at_random(tmp_path, kills=20, seed=0)
    assert hits == 20
    assert finished >= 1


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_five_hundred_kills_change_nothing(tmp_path):
    hits, finished = kill_at_random(tmp_path, kills=500, seed=1)
    print(f"{hits} kills, {finished} runs equal to the whole one")
    assert finished >= 2
