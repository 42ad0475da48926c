"""Folders of results, and quiet libraries: what all commands do before they run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from pts_scott.errors import ScottError
from pts_scott.experiments.config import Experiment


def make_folders(experiments: Sequence[Experiment], output: Path) -> None:
    """The folder of each setting with its config, or an error that says what to do."""
    for experiment in experiments:
        folder = output / experiment.setting
        try:
            (folder / "runs").mkdir(parents=True, exist_ok=True)
            (folder / "config.yaml").write_text(experiment.dump(), encoding="utf-8")
        except OSError as error:
            raise ScottError(
                f"results cannot be written to {folder}: {error.strerror}. Choose "
                "another folder with --output."
            ) from None


def quiet() -> None:
    """Silence the lines of Lightning that nobody asked for."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
