"""Checkpoints: their settings, when they are written, and what they cost."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
from helpers.runs import TickingTime, run
from helpers.training import QUIET
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from pts_scott import Checkpoints, ScottTrainer
from pts_scott.errors import ArgumentError
from pts_scott.training.checkpoint_files import read, write
from pts_scott.training.run_state import KEY

# -- settings -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [{"minutes": -1}, {"steps": 0}, {"on_error": "panic"}, {"folder": 3}]
)
def test_invalid_settings_are_refused(arguments):
    with pytest.raises(ArgumentError):
        Checkpoints(**{"folder": "x", **arguments})


def test_file_instead_of_a_folder_is_refused(tmp_path):
    (tmp_path / "last.ckpt").write_text("")
    with pytest.raises(ArgumentError, match="is a file; give the folder that it is in"):
        ScottTrainer(checkpoint=tmp_path / "last.ckpt")


def test_tilde_in_the_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Checkpoints("~/runs").path == tmp_path / "runs" / "last.ckpt"


def test_callbacks_and_plugins_that_write_the_same_files_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="ModelCheckpoint and checkpoint= write"):
        run(tmp_path, callbacks=[ModelCheckpoint(dirpath=tmp_path, save_last=True)])
    kwargs = {**QUIET, "plugins": [TorchCheckpointIO()]}
    with pytest.raises(ArgumentError, match="another CheckpointIO"):
        run(tmp_path, trainer_kwargs=kwargs)


# -- when they are written ----------------------------------------------------------


class RecordWrites(pl.Callback):
    """Records the steps of the checkpoints that are written."""

    def __init__(self, path: Path) -> None:
        self.path, self.steps, self.last_modified = path, [], None

    def on_train_batch_end(self, trainer, pl_module, *_):
        modified = self.path.stat().st_mtime_ns if self.path.exists() else None
        if modified != self.last_modified:
            self.last_modified = modified
            self.steps.append(read(self.path)[KEY]["counters"]["steps"])


def test_checkpoints_are_written_at_the_interval_in_steps(tmp_path):
    recorder = RecordWrites(tmp_path / "last.ckpt")
    checkpoint = Checkpoints(tmp_path, steps=20)
    run(tmp_path, callbacks=[recorder], checkpoint=checkpoint, gamma=None)
    assert recorder.steps == [21, 42]
    assert read(recorder.path)[KEY]["finished"]


def slow_disk(monkeypatch, clock: TickingTime, seconds: float) -> None:
    """Let every checkpoint take that many seconds to write."""

    def slow(checkpoint, path, check):
        clock.now += seconds
        write(checkpoint, path, check)

    monkeypatch.setattr("pts_scott.training.checkpoint_files.write", slow)


def test_checkpoints_by_the_clock_take_a_limited_share_of_time(
    tmp_path, monkeypatch, ticking_time
):
    """A slow disk and an interval of zero do not slow down training."""
    slow_disk(monkeypatch, ticking_time, 0.01)
    checkpoint = Checkpoints(tmp_path, minutes=0.0)
    settings = {"epochs": None, "time_budget": 2.5, "gamma": None}
    _, trainer = run(tmp_path, checkpoint=checkpoint, **settings)
    written = round(trainer.checkpoint_seconds / 0.011)
    assert written == 1 + 4 + 1, "at once, after every fifty times its cost, at the end"


def test_training_clock_is_stopped_while_a_checkpoint_is_written(
    tmp_path, monkeypatch, ticking_time
):
    histories = []
    for seconds in (0.0, 5.0):
        slow_disk(monkeypatch, ticking_time, seconds)
        _, trainer = run(tmp_path / str(seconds))
        histories.append(trainer.history["seconds"])
        assert trainer.checkpoint_seconds >= seconds * len(trainer.history)
    np.testing.assert_allclose(histories[0], histories[1], atol=1e-6)
