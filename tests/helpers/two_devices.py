"""The script that torchrun starts in two processes: each trains on its own device."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.distributed as dist

from helpers.accelerator import fit_on
from helpers.training import QUIET


class KeepBackend(pl.Callback):
    """Keeps the name of the process group's backend while there is one."""

    backend = ""

    def on_train_start(self, trainer, pl_module):
        self.backend = dist.get_backend()


def main() -> None:
    """Train, and write the parameters to the folder that is given."""
    folder, kind, method = sys.argv[1:]
    kept = KeepBackend()
    kwargs = {**QUIET, "strategy": "ddp", "devices": 2, "callbacks": [kept]}
    network, _ = fit_on(torch.device(kind), method=method, trainer_kwargs=kwargs)
    found = {
        "state": {name: value.cpu() for name, value in network.state_dict().items()},
        "device": str(next(network.parameters()).device),
        "backend": kept.backend,
    }
    torch.save(found, Path(folder) / f"{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main()
