"""A lock that allows only one run at a time to write to a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pts_scott.errors import CheckpointError, FolderInUseError

LOCK = ".lock"


@contextmanager
def locked_folder(folder: str | Path) -> Iterator[None]:
    """Prevent other runs from writing to a folder; the lock ends with its process.

    Raises
    ------
    FolderInUseError
        If another run holds the lock.
    CheckpointError
        If nothing can be written there.
    """
    path = Path(folder) / LOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise not_written(folder, error) from error
    # A lock that is a mere file would outlive a killed run and prevent its resumption.
    lock = FileLock(path, blocking=False, is_singleton=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise FolderInUseError(
            f"another run is writing its checkpoints to {folder}; wait for it, "
            "or give each run its own folder."
        ) from error
    except OSError:
        pass  # a file system without locks, where two runs are not distinguished
    try:
        yield
    finally:
        lock.release()


def not_written(path: str | Path, error: OSError, before: str = "") -> CheckpointError:
    """Return the error for a checkpoint that cannot be written."""
    return CheckpointError(
        f"a checkpoint cannot be written to {path}: {error.strerror or error}{before}. "
        "Make room, or choose another folder."
    )
