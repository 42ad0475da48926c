"""Checkpoints as files: whole or not at all, and never run."""

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

# -- what can go wrong with files ------------------------------------------------------


def test_a_crash_while_writing_leaves_the_one_before(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    run(tmp_path, 20)
    before = path.read_bytes()
    save = torch.save

    def half(checkpoint, file):
        save(checkpoint, file)
        file.flush()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(CheckpointError, match="No space left.*the previous one is kept"):
        write({"a": 1}, path)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == [".lock", "last.ckpt"]


@pytest.fixture
def full_disk() -> Iterator[None]:
    """A limit of the system on the size of files; torch has its own words for it."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("on_error", ["warn", "stop"])
def test_a_full_disk_is_reported_and_training_goes_on_or_stops(
    on_error, tmp_path, full_disk
):
    checkpoint = Checkpoints(tmp_path, steps=10, on_error=on_error)
    with pytest.warns(ScottWarning, match="last.ckpt: File too large. Make room"):
        network, trainer = run(tmp_path, checkpoint=checkpoint, gamma=None)
    assert trainer.history["step"].iloc[-1] == (54 if on_error == "warn" else 14)
    assert trainer.interrupted == (on_error == "stop")
    assert all(bool(p.isfinite().all()) for p in network.parameters())
    assert os.listdir(tmp_path) == [".lock"]


def test_a_folder_that_is_a_file_is_reported_before_training(tmp_path):
    (tmp_path / "folder").write_text("")
    folder = tmp_path / "folder" / "inside"
    with pytest.warns(ScottWarning) as caught:
        run(checkpoint=Checkpoints(folder))
    first, last = (str(warning.message) for warning in caught)
    assert first.endswith("choose another folder. Training starts anyway.")
    assert last.endswith("choose another folder. Training continues without checkpoints.")
    with pytest.raises(CheckpointError, match="cannot be written.*choose another folder"):
        run(crash=0, checkpoint=Checkpoints(folder, on_error="stop"))


def test_lightnings_own_checkpoints_are_written_in_the_same_way(tmp_path):
    best = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss", save_weights_only=False)
    run(callbacks=[best])
    checkpoint = read(best.best_model_path)
    assert checkpoint[KEY]["counters"]["steps"] == checkpoint["global_step"]
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
    with pytest.raises(UnsafeCheckpointError, match="arbitrary code"):
        run(tmp_path)
    checkpoint.write_bytes(pickle.dumps(Payload(tmp_path / "owned")))
    with pytest.raises(DamagedCheckpointError, match="not a complete checkpoint"):
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
    with pytest.raises(DamagedCheckpointError, match="the checksum of .* is wrong"):
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


@pytest.mark.parametrize("name", [*STATE, "history.columns", "method.anchor"])
@pytest.mark.parametrize("value", [None, 3, [], {}])
def test_one_that_was_made_on_purpose_is_refused(name, value, checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    table = content[KEY]
    *parents, last = name.split(".")
    for parent in parents:
        table = table[parent]
    if isinstance(value, type(table[last])) or table[last] == value:
        pytest.skip("of this type it may be")
    table[last] = value
    torch.save(content, checkpoint)
    with pytest.raises(ScottError, match="another run|not a complete|are invalid"):
        run(tmp_path)


def test_one_without_parameters_is_refused(checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    content["state_dict"] = {}
    torch.save(content, checkpoint)
    with pytest.raises(
        DamagedCheckpointError, match="contents of the checkpoint are invalid"
    ):
        run(tmp_path)


def test_one_that_may_not_be_opened_is_not_called_damaged(
    checkpoint, tmp_path, monkeypatch
):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(zipfile, "ZipFile", refused)
    with pytest.raises(CheckpointError, match="cannot be opened: Permission denied") as e:
        run(tmp_path)
    assert not isinstance(e.value, DamagedCheckpointError)


class Keeps(pl.Callback):
    """A callback that keeps something."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.value}


@pytest.mark.parametrize(
    "value",
    [lambda: 3, np.datetime64("2024-01-01"), Path("a"), open],
    ids=["lambda", "date", "path", "function"],
)
def test_what_could_not_be_read_again_is_named_and_takes_no_files_place(value, tmp_path):
    run(tmp_path, 20)
    before = (tmp_path / "last.ckpt").read_bytes()
    with pytest.warns(ScottWarning, match="part 'callbacks', Keeps.*the previous one is"):
        run(tmp_path, callbacks=[Keeps(value)])
    assert (tmp_path / "last.ckpt").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == [".lock", "last.ckpt"]


def test_one_run_at_a_time_writes_to_a_folder(tmp_path):
    with (
        locked_folder(tmp_path),
        pytest.raises(FolderInUseError, match="another run is writing"),
    ):
        run(tmp_path)
    run(tmp_path)
