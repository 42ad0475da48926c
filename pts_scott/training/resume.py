"""The choice of the checkpoint from which a run resumes."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from pts_scott.errors import CheckpointMismatchError, ScottWarning
from pts_scott.training.checkpoint_files import read
from pts_scott.training.checkpoints import Checkpoints
from pts_scott.training.fingerprint import check_same_run
from pts_scott.training.lightning_module import OuterLoopModule
from pts_scott.training.run_state import KEY


def checkpoint_to_resume(
    checkpoints: Checkpoints | None, resume: bool, module: OuterLoopModule
) -> Path | None:
    """Return the checkpoint that Lightning resumes from; None to start from scratch.

    The result of a finished run is loaded into the module immediately.

    Raises
    ------
    CheckpointError
    """
    if checkpoints is None or not os.path.exists(checkpoints.path):
        return None
    path = checkpoints.path
    if not resume:
        warnings.warn(
            f"there is a checkpoint of an earlier run in {path.parent}, which this "
            "one will replace; to resume from it, pass resume=True.",
            ScottWarning,
            stacklevel=5,
        )
        return None
    checkpoint = read(path, map_location="cpu")
    state = checkpoint[KEY]
    check_same_run(state["fingerprint"], module.fingerprint)
    if not state["between"]:
        raise CheckpointMismatchError(
            f"{path} was written by a callback in the middle of an epoch, where a run "
            "cannot be resumed; remove it to start again."
        )
    if module.state.is_same_end(state) or module.state.has_used_up(state):
        module.restore(checkpoint)
        return None
    return path
