"""Execution of one run: Lightning, checkpoints, signals, and lost processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from pts_scott.engine.processes import raise_on_lost_process
from pts_scott.training.checkpoint_files import CheckpointFiles
from pts_scott.training.checkpoints import CheckpointWriter
from pts_scott.training.lightning_assembly import LightningOptions, without_tips
from pts_scott.training.lightning_module import OuterLoopModule
from pts_scott.training.resume import checkpoint_to_resume
from pts_scott.training.signals import interruptible
from pts_scott.training.trainer_checks import check_other_writers

if TYPE_CHECKING:
    from pts_scott.training.trainer import ScottTrainer


class RunExecution:
    """Lightning's trainer for one run, with checkpoints and signals.

    Parameters
    ----------
    trainer
        The options.
    module
        The run. The result of a finished one is loaded into it immediately.

    Raises
    ------
    ArgumentError, CheckpointError
    """

    def __init__(self, trainer: ScottTrainer, module: OuterLoopModule) -> None:
        self._module, self._checkpoints = module, trainer.checkpoint
        options = LightningOptions(trainer.trainer_kwargs)
        self._is_distributed = options.is_distributed
        callbacks = options.callbacks
        files = CheckpointFiles(callbacks)
        self._writer: CheckpointWriter | None = None
        if self._checkpoints is not None:
            folder = self._checkpoints.path.parent
            check_other_writers(folder, callbacks, options.plugins)
            self._writer = CheckpointWriter(self._checkpoints, files)
            callbacks.append(self._writer)
        self._start = checkpoint_to_resume(self._checkpoints, trainer.resume, module)
        self.lightning = options.make_trainer(
            trainer.device,
            trainer.epochs,
            callbacks,
            files,
            validates=module.validation is not None,
        )

    @property
    def checkpoint_seconds(self) -> float:
        """Seconds that checkpoints took."""
        return 0.0 if self._writer is None else self._writer.seconds

    def fit(self) -> None:
        """Train, from the checkpoint if there is one to resume."""
        module, lightning = self._module, self.lightning
        folder: AbstractContextManager[None] = nullcontext()
        if self._checkpoints is not None and lightning.is_global_zero:
            folder = self._checkpoints.locked()
        interrupt = interruptible(module.interrupt)
        with warnings.catch_warnings(), without_tips(), interrupt, folder:
            # Lightning's own, about its use of torch, which users cannot change.
            warnings.filterwarnings("ignore", ".*treespec, LeafSpec.*", FutureWarning)
            # And about layers that stay in evaluation mode on purpose.
            warnings.filterwarnings("ignore", "Found .* in eval mode at the start")
            with raise_on_lost_process() if self._is_distributed else nullcontext():
                data = _Iterable(module.outer_loops)
                lightning.fit(module, data, [0], ckpt_path=self._start)


class _Iterable:
    """A new iterator for each epoch."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()
