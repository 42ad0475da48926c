"""What all commands share: folders of results, quiet libraries, and Ctrl-C."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pts_scott.errors import ScottError
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.results import refuse_links
from pts_scott.training.trainer import ScottTrainer


def make_folders(experiments: Sequence[Experiment], output: Path) -> None:
    """The folder of each setting with its config, or an error that says what to do."""
    for experiment in experiments:
        folder = output / experiment.setting
        refuse_links(folder, output)
        try:
            (folder / "runs").mkdir(parents=True, exist_ok=True)
            (folder / "config.yaml").write_text(experiment.dump(), encoding="utf-8")
        except OSError as error:
            raise ScottError(
                f"results cannot be written to {folder}: {error.strerror}. Choose "
                "another folder with --output."
            ) from None


@contextmanager
def stoppable() -> Iterator[None]:
    """Training that Ctrl-C ends as usual, though Lightning answers it with an exit."""
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None


def check_not_stopped(trainer: ScottTrainer) -> None:
    """End the command where Ctrl-C has ended its training in good order."""
    if trainer.interrupted:
        raise KeyboardInterrupt


def quiet() -> None:
    """Silence the lines of Lightning that nobody asked for."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
