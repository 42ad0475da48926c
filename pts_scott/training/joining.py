"""Joining of several processes in one run: same model, same data, same step."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import astuple

import torch

from pts_scott._utils.rng import offset_global_seed
from pts_scott.engine.processes import ProcessGroup
from pts_scott.engine.tensors import finest_type
from pts_scott.errors import ProcessError, ScottWarning
from pts_scott.training.fingerprint import Fingerprint
from pts_scott.training.runner import OuterLoopRunner


def join_processes(
    runner: OuterLoopRunner,
    fingerprint: Fingerprint,
    stop_requested: Callable[[], bool],
    reduced_dtype: torch.dtype | None = None,
) -> ProcessGroup:
    """Check that all processes train the same run, and return the process group.

    Parameters
    ----------
    runner
        The run of this process; its generators become those of the first process.
    fingerprint
        The fingerprint that all processes must share.
    stop_requested
        Returns whether this process was asked to stop; it is shared with the others.
    reduced_dtype
        Type in which directions are sent; None for their own.

    Raises
    ------
    ProcessError
    """
    state = runner.state
    _check_device(runner)
    group = ProcessGroup(
        finest_type(runner.losses.trainable().values()),
        runner.windows.device,
        lambda: (state.clock.seconds, stop_requested()),
        seconds=state.clock.seconds,
        reduced_dtype=reduced_dtype,
    )
    for rank, other in enumerate(group.gather(fingerprint)):
        if other != fingerprint:
            raise ProcessError(
                f"process {rank} has a different model or different data than process "
                f"{group.rank}; start all with the same script and data."
            )
    counters = list(astuple(state.counters))
    if any(other != counters for other in group.gather(counters)):
        raise ProcessError(
            "the processes do not start at the same step: they found different "
            "checkpoints, or some found none. All hosts must share the checkpoint "
            "folder."
        )
    # Without a given seed, each process drew one: use that of the first.
    generators = runner.generators
    generators.load_state_dict(group.gather(generators.state_dict())[0])
    offset_global_seed(group.rank, runner.windows.device)  # dropout masks differ
    if group.is_first:
        _warn_unreliable_restarts()
    return group


def _check_device(runner: OuterLoopRunner) -> None:
    """Check that Lightning has left the network where the windows are."""
    network, windows = next(runner.losses.parameters()).device, runner.windows.device
    if network != windows:
        raise ProcessError(
            f"Lightning trains this process on {network}, but its windows are on "
            f"{windows}: its number on this host is not in LOCAL_RANK. Start the "
            "processes with torchrun, or let Lightning start them."
        )


def _warn_unreliable_restarts() -> None:
    """Warn if torchrun may restart processes with a store that knows the dead ones.

    They find the addresses of the processes before them, depending on the order in which
    they start (https://github.com/pytorch/pytorch/issues/135712).
    """
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))
    if restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        warnings.warn(
            f"torchrun has --max-restarts {restarts}, but restarted processes may not "
            "find each other, because torchrun keeps the addresses of the previous ones; "
            "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all hosts where it is started.",
            ScottWarning,
            stacklevel=2,
        )
