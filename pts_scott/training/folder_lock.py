"""A lock that allows only one run at a time to write to a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pts_scott.errors import CheckpointError, FolderInUseError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def locked_folder(folder: str | Path) -> Iterator[None]:
    """Prevent other runs from writing to a folder; the lock ends with its process.

    On file systems without locks, and on Windows, a second run is not detected. (A lock
    file that merely exists, as libraries fall back to there, would outlive a killed run
    and prevent it from being resumed.)

    Raises
    ------
    FolderInUseError
        If another run holds the lock.
    CheckpointError
        If nothing can be written there.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = open(Path(folder) / LOCK, "w")  # noqa: SIM115 (it is closed below)
    except OSError as error:
        raise not_written(folder, error) from error
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise FolderInUseError(
                    f"another run is writing its checkpoints to {folder}; wait for it, "
                    "or give each run its own folder."
                ) from error
            except OSError:
                pass  # a file system without locks
        yield


def not_written(path: str | Path, error: OSError, before: str = "") -> CheckpointError:
    """Return the error for a checkpoint that cannot be written."""
    return CheckpointError(
        f"a checkpoint cannot be written to {path}: {error.strerror or error}{before}. "
        "Make room, or choose another folder."
    )
