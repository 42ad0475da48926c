"""Joining of processes; `test_processes` and `tests/hosts` have more of it."""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from helpers.processes import needs_fork, run_processes, train
from helpers.training import tiny_network

from pts_scott.errors import ProcessError, ScottWarning
from pts_scott.training.joining import join_processes

pytestmark = needs_fork


class TorchrunEnvironment(pl.Callback):
    """Sets variables of torchrun once the processes are connected."""

    def __init__(self, max_restarts: int, shares_store: bool) -> None:
        self.variables = {
            "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
            "TORCHELASTIC_USE_AGENT_STORE": str(shares_store),
        }

    def setup(self, trainer, pl_module, stage):
        os.environ |= self.variables


@pytest.mark.parametrize(
    ("max_restarts", "shares_store", "warned"),
    [(2, True, True), (0, True, False), (2, False, False)],
)
def test_first_process_warns_of_restarts_with_the_store_of_dead_processes(
    max_restarts, shares_store, warned, tmp_path
):
    def work() -> list[str]:
        environment = TorchrunEnvironment(max_restarts, shares_store)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(2, callbacks=(environment,), epochs=1)
        return [str(w.message) for w in caught if w.category is ScottWarning]

    first, other = run_processes(tmp_path, 2, work)
    assert len(first) == warned
    assert all("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in message for message in first)
    assert other == []


def test_process_whose_windows_are_on_another_device_is_refused():
    windows = SimpleNamespace(device=torch.device("meta"))
    runner = SimpleNamespace(losses=tiny_network(), windows=windows, state=None)
    with pytest.raises(ProcessError, match="on cpu, but its windows are on meta"):
        join_processes(runner, {}, lambda: False)
