"""Helpers for tests of experiments: records on disk, and changed configs."""

from __future__ import annotations

import json
from pathlib import Path


def read_records(output: Path) -> dict[str, dict]:
    """Return the records of all runs in a folder of results, by the run's folder name."""
    return {
        path.parent.name: json.loads(path.read_text())
        for path in sorted(output.glob("*/runs/*/run.json"))
    }


def replace_in_records(output: Path, pattern: str, old: str, new: str) -> None:
    """Replace a text in the records of the runs whose folder matches a pattern."""
    for path in output.glob(f"*/runs/{pattern}/run.json"):
        path.write_text(path.read_text().replace(old, new))


def replace_in_config(path: Path, old: str, new: str) -> Path:
    """Replace the first occurrence of a text in a config, and return its path."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


def ignore(line: str) -> None:
    """Discard a progress line."""
