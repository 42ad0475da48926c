"""Checkpoints: when a run is saved, so that it can resume exactly where it stopped.

A checkpoint holds Lightning's part (parameters, optimizer, scheduler, callbacks, its
loops) and, under the name of this package, `run_state.RunState`. `checkpoint_files`
writes the file.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from pts_scott._utils.arguments import one_of, real_number, whole_number
from pts_scott.errors import (
    ArgumentError,
    CheckpointError,
    FolderInUseError,
    ScottWarning,
)
from pts_scott.training.callbacks import Observer
from pts_scott.training.checkpoint_files import CheckpointFiles
from pts_scott.training.folder_lock import locked_folder
from pts_scott.training.lightning_module import OuterLoopModule

FILE = "last.ckpt"
SHARE = 0.02  # share of training time that timed checkpoints may take


@dataclass(frozen=True)
class Checkpoints:
    """Where and how often a run is saved.

    Parameters
    ----------
    folder
        The checkpoint is ``last.ckpt`` in it; the next one replaces it.
    minutes
        Minutes of training between two checkpoints; None for none by the clock. The
        interval is longer if writing takes more than a fiftieth of it.
    steps
        Steps between two checkpoints, in place of minutes. They are written between
        outer loops.
    on_error
        What to do if a checkpoint cannot be written, as on a full disk: "warn" and
        continue, or "stop", which ends training with the parameters so far.
    """

    folder: str | Path
    minutes: float | None = 10.0
    steps: int | None = None
    on_error: str = "warn"

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | Path):
            raise ArgumentError(f"folder={self.folder!r}: expected a path.")
        if os.path.isfile(self.path.parent):
            raise ArgumentError(
                f"folder={str(self.folder)!r} is a file; give the folder that it is in, "
                "or another one."
            )
        if self.minutes is not None:
            real_number("minutes", self.minutes)
        if self.steps is not None:
            whole_number("steps", self.steps)
        one_of("on_error", self.on_error, ("warn", "stop"))

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that GluonTS serialises, as part of an estimator."""
        return (), {**self.__dict__, "folder": str(self.folder)}

    @property
    def path(self) -> Path:
        """The file of the last checkpoint."""
        return Path(self.folder).expanduser() / FILE

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Reserve the folder for this run.

        A folder that cannot be written to is reported before training, not later.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked_folder(self.path.parent))
            except FolderInUseError:
                raise
            except CheckpointError as error:
                if self.on_error == "stop":
                    raise
                warnings.warn(
                    f"{error} Training starts anyway.", ScottWarning, stacklevel=2
                )
            yield

    @classmethod
    def of(cls, given: Any) -> Checkpoints | None:
        """Return the settings for a user's ``checkpoint=``."""
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, str | Path):
            return cls(given)
        raise ArgumentError(
            f"checkpoint={given!r}: expected a folder, or Checkpoints(folder, …)."
        )


class CheckpointWriter(Observer):
    """Writes checkpoints between outer loops, and a last one at the end.

    Parameters
    ----------
    settings
        Where and how often to save.
    files
        Writes the files.
    """

    def __init__(self, settings: Checkpoints, files: CheckpointFiles) -> None:
        self._settings = settings
        self._files = files
        self._steps = 0
        self._seconds = 0.0
        self._cost = 0.0
        self._stopped = False  # whether the last checkpoint was due to an interruption
        #: Checkpoints written, and the seconds that they took.
        self.count = 0
        self.seconds = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count from where a resumed run continues."""
        assert isinstance(pl_module, OuterLoopModule)
        self._steps, self._seconds = pl_module.steps, pl_module.seconds

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save between two outer loops, where no anchor or epoch end is in progress."""
        module: OuterLoopModule = pl_module
        if not module.epoch_is_full() and (module.interrupted or self._is_due(module)):
            self._stopped = module.interrupted
            self._save(trainer, module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Save the end of a run, so that starting it again finds it finished.

        An interrupted run is saved already, unless that was in its last loop.
        """
        if not (pl_module.interrupted and self._stopped):
            pl_module.state.finished = True
            self._save(trainer, pl_module)

    def _is_due(self, module: OuterLoopModule) -> bool:
        settings = self._settings
        if settings.steps is not None:
            return module.steps - self._steps >= settings.steps
        if settings.minutes is None:
            return False
        wait = max(60 * settings.minutes, self._cost / SHARE)
        return module.seconds - self._seconds >= wait

    def _save(self, trainer: pl.Trainer, module: OuterLoopModule) -> None:
        module.clock.stop()
        began = time.perf_counter()
        with self._files.tolerant(), module.between_loops():
            trainer.save_checkpoint(self._settings.path, weights_only=False)
        cost = time.perf_counter() - began if module.processes.is_first else 0.0
        (self._cost,) = module.processes.sums([cost])  # so that all decide the same
        self._steps, self._seconds = module.steps, module.seconds
        self.seconds += self._cost
        self.count += self._files.error is None
        if self._files.error is not None:
            self._report(module, self._files.error)
        module.clock.start()

    def _report(self, module: OuterLoopModule, error: CheckpointError) -> None:
        stops = self._settings.on_error == "stop" and not module.state.finished
        outcome = "ends here" if stops else "continues without checkpoints"
        warnings.warn(f"{error} Training {outcome}.", ScottWarning, stacklevel=2)
        if stops:
            self._stopped = True
            module.interrupt()
