"""Checkpoint files: written atomically, and read without running their content."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from helpers.runs import run
from lightning.pytorch.callbacks import ModelCheckpoint

from pts_scott import Checkpoints
from pts_scott.errors import (
    CheckpointError,
    CheckpointVersionError,
    DamagedCheckpointError,
    FolderInUseError,
    ScottError,
    ScottWarning,
    UnsafeCheckpointError,
)
from pts_scott.training.checkpoint_files import read, write
from pts_scott.training.folder_lock import locked_folder
from pts_scott.training.run_state import KEY, STATE

# -- writing ------------------------------------------------------------------------


def test_failed_write_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    run(tmp_path, 20)
    before = path.read_bytes()
    save = torch.save

    def save_to_full_disk(checkpoint, file):
        save(checkpoint, file)
        file.flush()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", save_to_full_disk)
    with pytest.raises(CheckpointError, match="No space left.*the previous one is kept"):
        write({"a": 1}, path)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == [".lock", "last.ckpt"]


@pytest.fixture
def full_disk() -> Iterator[None]:
    """A limit on the size of files, which torch reports with its own message."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("on_error", ["warn", "stop"])
def test_full_disk_gives_a_warning_and_training_continues_or_stops(
    on_error, tmp_path, full_disk
):
    checkpoint = Checkpoints(tmp_path, steps=10, on_error=on_error)
    with pytest.warns(ScottWarning, match="last.ckpt: File too large. Make room"):
        network, trainer = run(tmp_path, checkpoint=checkpoint, gamma=None)
    assert trainer.history["step"].iloc[-1] == (54 if on_error == "warn" else 14)
    assert trainer.interrupted == (on_error == "stop")
    assert all(bool(p.isfinite().all()) for p in network.parameters())
    assert os.listdir(tmp_path) == [".lock"]


def test_folder_that_cannot_be_made_is_reported_before_training(tmp_path):
    (tmp_path / "folder").write_text("")
    folder = tmp_path / "folder" / "inside"
    with pytest.warns(ScottWarning) as caught:
        run(checkpoint=Checkpoints(folder))
    first, last = (str(warning.message) for warning in caught)
    assert first.endswith("choose another folder. Training starts anyway.")
    assert last.endswith("choose another folder. Training continues without checkpoints.")
    with pytest.raises(CheckpointError, match="cannot be written.*choose another folder"):
        run(crash=0, checkpoint=Checkpoints(folder, on_error="stop"))


def test_files_of_model_checkpoint_contain_the_state_of_the_run(tmp_path):
    best = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss", save_weights_only=False)
    run(callbacks=[best])
    checkpoint = read(best.best_model_path)
    assert checkpoint[KEY]["counters"]["steps"] == checkpoint["global_step"]
    torch.load(best.best_model_path, weights_only=True)


# -- reading ------------------------------------------------------------------------


class Payload:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def checkpoint_content(tmp_path_factory) -> bytes:
    """The checkpoint of a run that crashed at step 20; it is made once."""
    folder = tmp_path_factory.mktemp("crashed")
    run(folder, 20)
    return (folder / "last.ckpt").read_bytes()


@pytest.fixture
def checkpoint(tmp_path, checkpoint_content) -> Path:
    """A copy of that checkpoint, for a test to change."""
    path = tmp_path / "last.ckpt"
    path.write_bytes(checkpoint_content)
    return path


def test_malicious_pickle_is_refused(checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    content[KEY]["latest"] = Payload(tmp_path / "owned")
    torch.save(content, checkpoint)
    with pytest.raises(UnsafeCheckpointError, match="arbitrary code"):
        run(tmp_path)
    checkpoint.write_bytes(pickle.dumps(Payload(tmp_path / "owned")))
    with pytest.raises(DamagedCheckpointError, match="not a complete checkpoint"):
        run(tmp_path)
    assert not (tmp_path / "owned").exists()


def test_truncated_checkpoint_is_refused(checkpoint, tmp_path):
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    with pytest.raises(DamagedCheckpointError, match="Remove it to start again"):
        run(tmp_path)


def test_checkpoint_with_a_changed_byte_is_refused(checkpoint, tmp_path):
    with zipfile.ZipFile(checkpoint) as file:
        largest = max(file.infolist(), key=lambda info: info.file_size)
    content = bytearray(checkpoint.read_bytes())
    content[largest.header_offset + 400] ^= 1
    checkpoint.write_bytes(bytes(content))
    with pytest.raises(DamagedCheckpointError, match="the checksum of .* is wrong"):
        run(tmp_path)


def test_checkpoint_of_another_format_is_refused(checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    content[KEY] |= {"format": 99, "version": "7.0"}
    torch.save(content, checkpoint)
    with pytest.raises(CheckpointVersionError, match="format 99 of pts_scott 7.0"):
        run(tmp_path)


def test_checkpoint_of_another_program_is_refused(checkpoint, tmp_path):
    torch.save({"state_dict": {}}, checkpoint)
    with pytest.raises(CheckpointError, match="not a checkpoint of ScottTrainer"):
        run(tmp_path)


@pytest.mark.parametrize("name", [*STATE, "history.columns", "method.anchor"])
@pytest.mark.parametrize("value", [None, 3, [], {}])
def test_forged_entry_is_refused(name, value, checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    table = content[KEY]
    *parents, last = name.split(".")
    for parent in parents:
        table = table[parent]
    if isinstance(value, type(table[last])) or table[last] == value:
        pytest.skip("a valid type or value of this entry")
    table[last] = value
    torch.save(content, checkpoint)
    with pytest.raises(ScottError, match="another run|not a complete|are invalid"):
        run(tmp_path)


def test_checkpoint_without_parameters_is_refused(checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    content["state_dict"] = {}
    torch.save(content, checkpoint)
    with pytest.raises(
        DamagedCheckpointError, match="contents of the checkpoint are invalid"
    ):
        run(tmp_path)


def test_unreadable_checkpoint_is_not_called_damaged(checkpoint, tmp_path, monkeypatch):
    def deny(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(zipfile, "ZipFile", deny)
    with pytest.raises(CheckpointError, match="cannot be opened: Permission denied") as e:
        run(tmp_path)
    assert not isinstance(e.value, DamagedCheckpointError)


class StatefulCallback(pl.Callback):
    """A callback with a value in its state."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.value}


@pytest.mark.parametrize(
    "value",
    [lambda: 3, np.datetime64("2024-01-01"), Path("a"), open],
    ids=["lambda", "date", "path", "function"],
)
def test_state_that_could_not_be_read_again_is_not_written(value, tmp_path):
    run(tmp_path, 20)
    before = (tmp_path / "last.ckpt").read_bytes()
    message = "part 'callbacks', StatefulCallback.*the previous one is"
    with pytest.warns(ScottWarning, match=message):
        run(tmp_path, callbacks=[StatefulCallback(value)])
    assert (tmp_path / "last.ckpt").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == [".lock", "last.ckpt"]


def test_two_runs_cannot_write_to_one_folder(tmp_path):
    with (
        locked_folder(tmp_path),
        pytest.raises(FolderInUseError, match="another run is writing"),
    ):
        run(tmp_path)
    run(tmp_path)
