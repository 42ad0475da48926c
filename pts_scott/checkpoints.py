"""Checkpoints: a run written down, so that it goes on exactly where it was.

What a checkpoint holds is Lightning's (parameters, optimizer, scheduler, callbacks, its
loops) and, under the name of this package, the outer loops' own state. Here is how it
becomes a file: in one go, so that a crash never leaves half a file in place of a whole
one; and how it is read: without running anything that the file says.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import time
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.io import CheckpointIO

from pts_scott._arguments import one_of, real_number, whole_number
from pts_scott.errors import (
    ArgumentError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointVersionError,
    DamagedCheckpointError,
    ScottWarning,
    UnsafeCheckpointError,
)
from pts_scott.gradients import Losses
from pts_scott.lightning_loop import FORMAT, KEY, OuterLoopModule
from pts_scott.observers import Observer
from pts_scott.strata import Strata
from pts_scott.windows import WindowIndex

FILE = "last.ckpt"
SAMPLE = 4096  # values of the series by which data are told from other data
SHARE = 0.02  # of training time that checkpoints by the clock may take


@dataclass(frozen=True)
class Checkpoints:
    """Where and how often a run is written down.

    Parameters
    ----------
    folder
        The checkpoint is ``last.ckpt`` in it; the next one takes its place.
    minutes
        Minutes of training between two checkpoints; None for none by the clock. More
        pass where writing takes more than a fiftieth of them.
    steps
        Steps between two checkpoints, in place of minutes. They are written between
        outer loops.
    on_error
        What to do where a checkpoint cannot be written, as on a full disk: "warn" and
        go on, or "stop", which ends training with the parameters so far.
    """

    folder: str | Path
    minutes: float | None = 10.0
    steps: int | None = None
    on_error: str = "warn"

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | Path):
            raise ArgumentError(f"folder={self.folder!r}: expected a path.")
        if self.minutes is not None:
            real_number("minutes", self.minutes)
        if self.steps is not None:
            whole_number("steps", self.steps)
        one_of("on_error", self.on_error, ("warn", "stop"))

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """By this GluonTS writes the settings down, as part of an estimator."""
        return (), {**self.__dict__, "folder": str(self.folder)}

    @property
    def path(self) -> Path:
        """The file of the last checkpoint."""
        return Path(self.folder) / FILE

    @classmethod
    def of(cls, given: Any) -> Checkpoints | None:
        """What a user means by ``checkpoint=``: a folder, or how often."""
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, str | Path):
            return cls(given)
        raise ArgumentError(
            f"checkpoint={given!r}: expected a folder, or Checkpoints(folder, …)."
        )


def write(checkpoint: Mapping[str, Any], path: str | Path) -> None:
    """Write a file that is there as a whole, or not at all.

    Raises
    ------
    CheckpointError
        If it cannot be written; one that was there before is still there.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            torch.save(dict(checkpoint), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync(path.parent)
    except (OSError, RuntimeError) as error:  # torch has its own word for a full disk
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        before = "; the one before is kept" if path.exists() else ""
        raise CheckpointError(
            f"a checkpoint cannot be written to {path}: {reason}{before}. Make room, or "
            "choose another folder."
        ) from error


def _sync(folder: Path) -> None:
    """Let the folder itself reach the disk; systems that cannot are not asked."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read(path: str | Path, map_location: Any = None) -> dict[str, Any]:
    """Read a checkpoint of a `ScottTrainer`; nothing in it is run.

    Raises
    ------
    CheckpointError
        If there is none, or it is another program's.
    DamagedCheckpointError
        If the file is not whole.
    UnsafeCheckpointError
        If it holds anything but tensors and plain values.
    CheckpointVersionError
        If it was written by another version.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}.")
    _check_whole(path)
    try:
        checkpoint = torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsafeCheckpointError(
            f"{path} holds more than tensors and plain values, and reading it could run "
            "someone else's code; it is not read. Start again without it."
        ) from error
    except (RuntimeError, EOFError, KeyError, ValueError) as error:
        raise _damaged(path, str(error).splitlines()[0]) from error
    state = checkpoint.get(KEY) if isinstance(checkpoint, dict) else None
    if not isinstance(state, dict) or "format" not in state:
        raise CheckpointError(
            f"{path} is not a checkpoint of ScottTrainer; choose the folder of its "
            "checkpoints."
        )
    if state["format"] != FORMAT:
        raise CheckpointVersionError(
            f"{path} has format {state['format']!r} of pts_scott "
            f"{state.get('version', 'unknown')}, and this version reads format {FORMAT}; "
            "go on with the version that wrote it, or start again."
        )
    return checkpoint


def _check_whole(path: Path) -> None:
    """Look at the check sums, which torch does not."""
    try:
        with zipfile.ZipFile(path) as file:
            broken = file.testzip()
    except (zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if broken is not None:
        raise _damaged(path, f"{broken} is not what was written")


def _damaged(path: Path, reason: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"{path} is not a whole checkpoint ({reason}); it was cut off or changed after "
        "it was written. Remove it to start again."
    )


class CheckpointFiles(CheckpointIO):
    """How Lightning writes and reads checkpoints here, its own callbacks' included."""

    def __init__(self) -> None:
        self._tolerant = False
        self._checked = False
        self.error: CheckpointError | None = None

    @contextlib.contextmanager
    def tolerant(self) -> Iterator[None]:
        """A block in which a failure is kept in ``error``, and nothing is raised.

        Lightning's processes wait for each other after one of them has written.
        """
        self._tolerant, self.error = True, None
        try:
            yield
        finally:
            self._tolerant = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        try:
            write(checkpoint, path)
            if not self._checked:  # once: whether what callbacks keep can be read again
                read(path)
                self._checked = True
        except CheckpointError as error:
            if not self._tolerant:
                raise
            self.error = error

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return read(path, map_location="cpu")

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


class WriteCheckpoints(Observer):
    """Writes checkpoints between outer loops, and a last one at the end.

    Parameters
    ----------
    settings
        Where and how often.
    files
        How.
    """

    def __init__(self, settings: Checkpoints, files: CheckpointFiles) -> None:
        self._settings = settings
        self._files = files
        self._steps = 0
        self._seconds = 0.0
        self._cost = 0.0
        #: Checkpoints written, and the seconds that they took.
        self.count = 0
        self.seconds = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count from what a resumed run has behind it."""
        assert isinstance(pl_module, OuterLoopModule)
        self._steps, self._seconds = pl_module.steps, pl_module.seconds

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Between two outer loops nothing is under way: neither anchor nor epoch end."""
        module: OuterLoopModule = pl_module
        if not module.epoch_is_full() and (module.interrupted or self._is_due(module)):
            self._save(trainer, module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Write the end of a run, so that starting it again finds it finished."""
        if not pl_module.interrupted:
            pl_module.finished = True
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
        with self._files.tolerant():
            trainer.save_checkpoint(self._settings.path, weights_only=False)
        cost = time.perf_counter() - began if module.processes.first else 0.0
        (self._cost,) = module.processes.sums([cost])  # by which all decide alike
        self._steps, self._seconds = module.steps, module.seconds
        self.seconds += self._cost
        self.count += self._files.error is None
        if self._files.error is not None:
            self._report(module, self._files.error)
        module.clock.start()

    def _report(self, module: OuterLoopModule, error: CheckpointError) -> None:
        stops = self._settings.on_error == "stop" and not module.finished
        goes_on = "Training ends here" if stops else "Training goes on without"
        warnings.warn(f"{error} {goes_on}.", ScottWarning, stacklevel=2)
        if stops:
            module.interrupt()


Identity = dict[str, dict[str, Any]]


def identity_of(
    losses: Losses, windows: WindowIndex, strata: Strata | None, settings: dict[str, Any]
) -> Identity:
    """What tells a run from another: model, data and settings, each a table."""
    series = windows.series
    # Some values, spread evenly: to read all would take long on large data.
    places = torch.linspace(0, len(series.values) - 1, SAMPLE, dtype=torch.float64)
    places = places.long().to(series.values.device)
    return {
        "model": {
            name: f"{str(p.dtype).removeprefix('torch.')} {list(p.shape)}"
            for name, p in losses.named_parameters()
        },
        "data": {
            "windows": len(windows),
            "series": len(series.item_ids),
            "context_length": windows.context_length,
            "prediction_length": windows.prediction_length,
            "lengths": _digest(series.lengths),
            "values": _digest(series.values[places]),
            "strata": "none" if strata is None else _digest(strata.sizes),
        },
        "settings": settings,
    }


def _digest(tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().numpy().tobytes()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def check_same_run(found: Identity, expected: Identity) -> None:
    """Refuse the checkpoint of another run.

    Parameters
    ----------
    found, expected
        What identifies the run of the checkpoint, and the one that begins.

    Raises
    ------
    CheckpointMismatchError
        With the first thing that differs.
    """
    for part, table in expected.items():
        theirs = found.get(part, {})
        for name in sorted({*table, *theirs}):
            if table.get(name) != theirs.get(name):
                raise CheckpointMismatchError(
                    f"the checkpoint is of another run: {part}, {name}, is "
                    f"{theirs.get(name, 'not there')} in it and "
                    f"{table.get(name, 'not there')} here. Choose another folder, or "
                    "train with what it was written with."
                )
