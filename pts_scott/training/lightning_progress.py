"""Lightning's counts of steps and epochs, where an outer loop makes several of them."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.loops.progress import _ProcessedTracker


def advance_steps(trainer: pl.Trainer, steps: int) -> None:
    """Count steps that the optimizer did not make, for Lightning and schedulers."""
    if steps:
        trainer.optimizers[0]._opt_called = True  # type: ignore[attr-defined]
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    for part in (progress.total, progress.current):
        part.ready += steps
        part.completed += steps


def skip_epochs(trainer: pl.Trainer, made: int) -> int:
    """Skip epochs whose steps were all made within this one.

    The end of an epoch interrupts neither the inner steps of an anchor nor a loop whose
    epochs nothing observes. To callbacks and schedulers, an epoch without a step would
    look like one without progress.

    Parameters
    ----------
    trainer
        At the end of an epoch.
    made
        Epochs whose steps have been made.

    Returns
    -------
    Number of epochs that were skipped.
    """
    progress = trainer.fit_loop.epoch_progress
    total, current = progress.total, progress.current
    assert isinstance(total, _ProcessedTracker)
    assert isinstance(current, _ProcessedTracker)
    skipped = max(0, made - current.processed)
    for part in (total, current):
        part.ready += skipped
        part.started += skipped
        part.processed += skipped
        part.completed += skipped
    return skipped
