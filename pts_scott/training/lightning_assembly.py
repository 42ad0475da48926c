"""Lightning's trainer for one run: devices, strategy, plugins and callbacks."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.io import CheckpointIO

from pts_scott.errors import ArgumentError
from pts_scott.training.checkpoint_files import CheckpointFiles
from pts_scott.training.ddp_strategy import SharedGradients, is_distributed
from pts_scott.training.trainer_checks import MIXED, lightning_accelerator


@contextmanager
def without_tips() -> Iterator[None]:
    """Leave out Lightning's advertisements; everything else that it logs stays."""
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addFilter(_is_no_tip)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_tip)


def _is_no_tip(record: logging.LogRecord) -> bool:
    return "💡 Tip" not in record.getMessage()


class LightningOptions:
    """A user's ``trainer_kwargs``, and the properties of them that a run needs.

    Parameters
    ----------
    given
        The arguments, as returned by `check_trainer_kwargs`.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    @property
    def callbacks(self) -> list[pl.Callback]:
        """The user's callbacks, as a new list."""
        given = self._given.get("callbacks") or []
        return [given] if isinstance(given, pl.Callback) else list(given)

    @property
    def plugins(self) -> list[Any]:
        """The user's plugins, as a new list."""
        given = self._given.get("plugins") or []
        return list(given) if isinstance(given, list | tuple) else [given]

    @property
    def is_mixed_precision(self) -> bool:
        """Whether passes are in half precision, by Lightning's autocast."""
        return self._given.get("precision") in MIXED or any(
            isinstance(plugin, MixedPrecision) for plugin in self.plugins
        )

    @property
    def is_distributed(self) -> bool:
        """Whether several processes share the work."""
        return is_distributed(self._given.get("strategy"))

    def process_device(self, device: torch.device) -> torch.device:
        """Return the device of this process: each of several processes has its own.

        Lightning gives it to a process only when training starts, and the windows have to
        be there before.
        """
        if not self.is_distributed or device.type in ("cpu", "mps"):
            return device
        rank = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", 0)))
        given = self._given.get("devices")
        if isinstance(given, str) and "," in given:
            given = [int(number) for number in given.split(",") if number.strip()]
        return torch.device(device.type, given[rank] if isinstance(given, list) else rank)

    def make_trainer(
        self,
        device: torch.device,
        max_epochs: int | None,
        callbacks: list[pl.Callback],
        files: CheckpointFiles,
        *,
        validates: bool,
    ) -> pl.Trainer:
        """Make Lightning's trainer.

        Parameters
        ----------
        device
            Where to train.
        max_epochs
            Epochs; None for no limit.
        callbacks
            Callbacks of the user and of this package.
        files
            How checkpoints are written, unless the user has a plugin for that.
        validates
            Whether there are validation windows.

        Raises
        ------
        ArgumentError
        """
        plugins = self.plugins
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            plugins.append(files)
        arguments: dict[str, Any] = {
            "accelerator": lightning_accelerator(device),
            "devices": [device.index] if device.index is not None else 1,
            "logger": False,
            "enable_checkpointing": any(isinstance(c, Checkpoint) for c in callbacks),
            "enable_model_summary": False,
            **self._given,
            "callbacks": callbacks,
            "plugins": plugins,
            "max_epochs": -1 if max_epochs is None else max_epochs,
            "num_sanity_val_steps": 0,
        }
        if self.is_distributed:
            arguments["strategy"] = SharedGradients.like(self._given["strategy"])
        if not validates:
            arguments["limit_val_batches"] = 0
        with without_tips():
            lightning = pl.Trainer(**arguments)
        if lightning.world_size > 1 and not self.is_distributed:
            raise ArgumentError(
                "trainer_kwargs ask for several processes; they train one network "
                "together with trainer_kwargs={'strategy': 'ddp', 'devices': 2}."
            )
        return lightning
