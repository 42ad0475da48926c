"""Checkpoint files: written atomically, and read without executing their contents.

A crash never leaves an incomplete or unreadable file in place of a good one.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.io import CheckpointIO

from pts_scott._utils.text import cause
from pts_scott.errors import (
    CheckpointError,
    CheckpointVersionError,
    DamagedCheckpointError,
    ScottWarning,
    UnsafeCheckpointError,
)
from pts_scott.training.folder_lock import not_written
from pts_scott.training.run_state import FORMAT, KEY, STATE


class _ErrorRecorder:
    """A file that records why it could not be written; torch reports something else."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        with self._recorded():
            return self._file.write(data)

    def flush(self) -> None:
        with self._recorded():
            self._file.flush()

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = error
            raise


def write(checkpoint: Mapping[str, Any], path: str | Path, check: bool = False) -> None:
    """Write a file atomically: completely, or not at all.

    Parameters
    ----------
    checkpoint
        Tensors and plain values.
    path
        Path of the file; an existing one is replaced at the end.
    check
        Whether to check first that it can be read again.

    Raises
    ------
    CheckpointError
        If it cannot be written; an existing file is kept.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    disk: _ErrorRecorder | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            disk = _ErrorRecorder(file)
            torch.save(dict(checkpoint), disk)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        if check:
            torch.load(part, map_location="cpu", weights_only=True)
        os.replace(part, path)
        _sync(path.parent)
    except Exception as error:  # torch raises its own types
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        before = "; the previous one is kept" if os.path.exists(path) else ""
        fault = disk.error if disk is not None else None
        fault = error if isinstance(error, OSError) else fault
        if fault is None:
            raise CheckpointError(
                f"a checkpoint cannot be written to {path}: {_bad_part(checkpoint)} "
                f"holds more than tensors and plain values ({cause(error)}), which could "
                f"not be read again{before}. Store lists, dictionaries, numbers, text "
                "and tensors there."
            ) from error
        raise not_written(path, fault, before) from error


def _bad_part(checkpoint: Mapping[str, Any]) -> str:
    """Name the part of a checkpoint that cannot be written and read again."""
    for name, value in checkpoint.items():
        inner = value.items() if name == "callbacks" else [("", value)]
        for key, content in inner:
            buffer = io.BytesIO()
            try:
                torch.save(content, buffer)
                buffer.seek(0)
                torch.load(buffer, map_location="cpu", weights_only=True)
            except Exception:
                return f"its part {name!r}{f', {key},' if key else ''}"
    return "it"


def _sync(folder: Path) -> None:
    """Flush the folder itself to the disk, on systems that can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read(path: str | Path, map_location: Any = None) -> dict[str, Any]:
    """Read a checkpoint of a `ScottTrainer` without executing anything in it.

    Raises
    ------
    CheckpointError
        If there is none, it cannot be opened, or it was written by another program.
    DamagedCheckpointError
        If the file is incomplete or altered.
    UnsafeCheckpointError
        If it holds anything but tensors and plain values.
    CheckpointVersionError
        If it was written by another version.
    """
    path = Path(path)
    if not os.path.isfile(path):
        raise CheckpointError(f"there is no checkpoint {path}.")
    _verify_checksums(path)
    try:
        checkpoint = torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsafeCheckpointError(
            f"{path} holds more than tensors and plain values, and reading it could run "
            "arbitrary code; it was not read. Start again without it."
        ) from error
    except Exception as error:  # crafted files make torch raise almost anything
        raise _damaged(path, cause(error)) from error
    state = checkpoint.get(KEY) if isinstance(checkpoint, dict) else None
    if not isinstance(state, dict) or "format" not in state:
        raise CheckpointError(
            f"{path} is not a checkpoint of ScottTrainer; choose the folder of its "
            "checkpoints."
        )
    found = state["format"]
    if not isinstance(found, int) or found != FORMAT:
        raise CheckpointVersionError(
            f"{path} has format {found!r} of pts_scott "
            f"{state.get('version', 'unknown')}, and this version reads format {FORMAT}; "
            "resume with the version that wrote it, or start again."
        )
    for name, kind in STATE.items():
        if not isinstance(state.get(name), kind):
            raise _damaged(path, f"its {name!r} has changed")
    return checkpoint


def _verify_checksums(path: Path) -> None:
    """Verify the checksums, which torch does not do."""
    try:
        with zipfile.ZipFile(path) as file:
            broken = file.testzip()
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {path} cannot be opened: {error.strerror or error}. Make "
            "it readable, and start again."
        ) from error
    except Exception as error:
        raise _damaged(path, cause(error)) from error
    if broken is not None:
        raise _damaged(path, f"the checksum of {broken} is wrong")


def _damaged(path: Path, reason: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"{path} is not a complete checkpoint ({reason}); it was truncated, or changed "
        "after it was written. Remove it to start again."
    )


class CheckpointFiles(CheckpointIO):
    """Lightning's plugin for checkpoint files, also those of its callbacks.

    Parameters
    ----------
    callbacks
        Callbacks of the run. Lightning's ``ModelCheckpoint`` deletes files by paths that
        it reads from a checkpoint; only those inside its own folder are deleted.
    """

    def __init__(self, callbacks: Sequence[pl.Callback] = ()) -> None:
        self._callbacks = callbacks
        self._written: set[Path] = set()
        self._tolerant = False
        self._checked = False
        self.error: CheckpointError | None = None

    @contextlib.contextmanager
    def tolerant(self) -> Iterator[None]:
        """Store a failure in ``error`` and raise nothing.

        Lightning's processes wait for each other after one of them has written a file.
        """
        self._tolerant, self.error = True, None
        try:
            yield
        finally:
            self._tolerant = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        try:
            # Once per run: whether the state of callbacks can be read again.
            write(checkpoint, path, check=not self._checked)
            self._checked = True
            self._written.add(Path(path).resolve())
        except CheckpointError as error:
            if not self._tolerant:
                raise
            self.error = error

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return read(path, map_location="cpu")

    def remove_checkpoint(self, path: Any) -> None:
        found = Path(path).resolve()
        folders = [
            Path(folder).resolve()
            for callback in self._callbacks
            if (folder := getattr(callback, "dirpath", None))
        ]
        if found in self._written or any(map(found.is_relative_to, folders)):
            Path(path).unlink(missing_ok=True)
            return
        warnings.warn(
            f"a callback asked to delete {path}, which is neither in its own folder nor "
            "written by this run; it is left alone. Was the checkpoint changed?",
            ScottWarning,
            stacklevel=2,
        )
