"""A lock that allows only one run at a time to write to a folder."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pts_scott.errors import CheckpointError, FolderInUseError

LOCK = ".lock"
# Errors of file systems without locks; there, a second run is not detected. A plain file
# as a lock would outlive a killed run and prevent it from being resumed.
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


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
    lock = FileLock(
        Path(folder) / LOCK, blocking=False, is_singleton=False, fallback_to_soft=False
    )
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise FolderInUseError(
            f"another run is writing its checkpoints to {folder}; wait for it, "
            "or give each run its own folder."
        ) from error
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise not_written(folder, error) from error
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
