"""Folder names of settings and runs: valid on every file system, and never a path."""

from __future__ import annotations

import re

from pts_scott._utils.text import quote
from pts_scott.errors import ConfigError

MAX_NAME_BYTES = 200  # file systems allow 255, and ".part" may be appended
# Windows reserves these names for devices, with any extension.
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


def folder_name(name: str) -> str:
    """Return a name without characters that a file system rejects or reads as a path."""
    name = re.sub(r"[^\w.=+-]+", "-", name)
    return f"_{name}" if RESERVED.match(name) else name


def run_name(optimizer: str, seed: int) -> str:
    """Return the name of a run's folder."""
    return folder_name(f"{optimizer}-seed{seed}")


def check_name_length(folder: str) -> None:
    """Raise if a folder name is too long for a file system."""
    if len(folder.encode()) > MAX_NAME_BYTES:
        raise ConfigError(
            f"{quote(folder)} is too long for a folder name: expected at most "
            f"{MAX_NAME_BYTES} bytes. Shorten the name of the experiment or of its "
            "optimizers."
        )
