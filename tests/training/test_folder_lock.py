"""The lock of a checkpoint folder: one run at a time, released when it ends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pts_scott.errors import CheckpointError, FolderInUseError
from pts_scott.training.folder_lock import locked_folder, not_written

HOLD_LOCK = """
import sys
from pts_scott.training.folder_lock import locked_folder
with locked_folder(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""
ROOT = Path(__file__).parents[2]


def start_holder(folder: Path) -> subprocess.Popen[str]:
    """Start a process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HOLD_LOCK, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_second_lock_in_the_same_process_is_refused(tmp_path):
    with (
        locked_folder(tmp_path),
        pytest.raises(FolderInUseError, match=f"another run is writing.*{tmp_path}"),
        locked_folder(tmp_path),
    ):
        pytest.fail("the folder was locked twice")


def test_lock_is_released_at_the_end_and_after_an_error(tmp_path):
    with locked_folder(tmp_path):
        pass
    with pytest.raises(ZeroDivisionError), locked_folder(str(tmp_path)):
        raise ZeroDivisionError
    with locked_folder(tmp_path):
        pass


def test_refused_lock_leaves_the_first_one_in_place(tmp_path):
    with locked_folder(tmp_path):
        for _ in range(2):
            with pytest.raises(FolderInUseError), locked_folder(tmp_path):
                pass


def test_locks_of_different_folders_are_independent(tmp_path):
    with locked_folder(tmp_path / "a"), locked_folder(tmp_path / "b"):
        pass


def test_missing_folders_are_made(tmp_path):
    with locked_folder(tmp_path / "runs" / "traffic"):
        assert (tmp_path / "runs" / "traffic" / ".lock").exists()


@pytest.mark.parametrize("ending", ["normal", "killed"])
def test_lock_of_another_process_is_respected_until_that_process_ends(tmp_path, ending):
    process = start_holder(tmp_path)
    try:
        with pytest.raises(FolderInUseError), locked_folder(tmp_path):
            pass
        if ending == "killed":
            process.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
    finally:
        process.communicate("", timeout=60)
    with locked_folder(tmp_path):
        pass


def test_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(CheckpointError, match="cannot be written.*choose another folder"),
        locked_folder(tmp_path / "file" / "inside"),
    ):
        pass


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EINVAL])
def test_file_systems_without_locks_are_used_without(tmp_path, monkeypatch, code):
    def flock(file, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)
    with locked_folder(tmp_path), locked_folder(tmp_path):
        pass


def test_error_of_a_write_states_cause_and_remedy():
    error = not_written("runs", OSError(28, "No space left on device"), "; kept")
    assert str(error) == (
        "a checkpoint cannot be written to runs: No space left on device; kept. Make "
        "room, or choose another folder."
    )
