"""The script that torchrun starts on every host: it trains, and says how that ended.

It is the same for every start, interrupted or resumed; its settings are in a JSON file.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy

from helpers.processes import train
from helpers.training import QUIET
from pts_scott import Checkpoints
from pts_scott.errors import ProcessError

LONGEST_WAIT = 60.0  # seconds that a process waits for a file of another


@dataclass
class Settings:
    """What the processes of one start do.

    Parameters
    ----------
    folder
        A folder that all hosts share; results are written to it.
    hosts
        Number of hosts, each with one process.
    methods
        The methods to train with, one after the other.
    timeout
        Seconds that torch waits for another process.
    pause_at
        Step at which all processes wait for the file ``continue``; None for none.
    die_at
        Step at which a process kills itself in its first start; None for none.
    victim
        Rank of the process that kills itself.
    """

    folder: str
    hosts: int
    methods: tuple[str, ...] = ("scott",)
    timeout: float = 60.0
    pause_at: int | None = None
    die_at: int | None = None
    victim: int = 0

    def write(self, path: Path) -> None:
        """Write the settings to a file."""
        path.write_text(json.dumps(asdict(self)))


@dataclass
class Result:
    """How training ended in one process.

    Parameters
    ----------
    parameters
        The trained parameters of each method.
    error
        The message of a ``ProcessError``.
    seconds
        Time of the error or the end, on the clock that all processes share.
    first_step
        The step at which this process started.
    """

    parameters: dict[str, list[torch.Tensor]]
    error: str | None
    seconds: float
    first_step: int | None


def wait_for(*paths: Path) -> None:
    """Wait until all files exist."""
    deadline = time.monotonic() + LONGEST_WAIT
    while not all(path.exists() for path in paths):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {', '.join(map(str, paths))}")
        time.sleep(0.02)


class Incident(pl.Callback):
    """Pauses or kills processes in the middle of a run, and records where it started."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.first_step: int | None = None
        self._has_paused = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.first_step = pl_module.steps

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        settings, folder = self.settings, Path(self.settings.folder)
        if settings.pause_at is not None and pl_module.steps >= settings.pause_at:
            if not self._has_paused:
                (folder / f"paused{trainer.global_rank}").touch()
                wait_for(folder / "continue")
            self._has_paused = True
        if settings.die_at is not None and pl_module.steps >= settings.die_at:
            is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
            if is_first and trainer.global_rank == settings.victim:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train with the settings of a file, and write a `Result`."""
    settings = Settings(**json.loads(Path(sys.argv[1]).read_text()))
    folder, rank = Path(settings.folder), int(os.environ["RANK"])
    # Torch counts restarts only on the hosts where a process failed.
    start = len(list(folder.glob(f"ready{rank}-*")))
    # Imports take longer on some hosts, and the timeout is for training.
    (folder / f"ready{rank}-{start}").touch()
    wait_for(*(folder / f"ready{n}-{start}" for n in range(settings.hosts)))
    incident = Incident(settings)
    strategy = DDPStrategy(timeout=timedelta(seconds=settings.timeout))
    kwargs = {**QUIET, "callbacks": [incident], "strategy": strategy}
    kwargs |= {"devices": 1, "num_nodes": settings.hosts}
    parameters: dict[str, list[torch.Tensor]] = {}
    error = None
    try:
        for method in settings.methods:
            network, _ = train(
                method=method,
                checkpoint=Checkpoints(folder / method, steps=5),
                resume=True,
                trainer_kwargs=kwargs,
            )
            parameters[method] = [p.detach() for p in network.parameters()]
    except ProcessError as caught:
        error = str(caught)
        raise
    finally:
        result = Result(parameters, error, time.monotonic(), incident.first_step)
        path = folder / f"result{rank}-{start}"
        path.with_suffix(".part").write_bytes(pickle.dumps(asdict(result)))
        path.with_suffix(".part").rename(path)


if __name__ == "__main__":
    main()
