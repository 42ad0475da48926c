"""Lightning inside a command: no log lines, and Ctrl-C ends the command."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pts_scott.training.trainer import ScottTrainer


def silence_lightning() -> None:
    """Silence Lightning's log lines about devices, models and tips."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C, which Lightning turns into an exit."""
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None


def raise_if_interrupted(trainer: ScottTrainer) -> None:
    """Raise KeyboardInterrupt if Ctrl-C has ended the training gracefully."""
    if trainer.interrupted:
        raise KeyboardInterrupt
