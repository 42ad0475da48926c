"""The fingerprint of a run: one table each for model, data and settings.

A checkpoint can be resumed only by the run that wrote it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from pts_scott._utils.spacing import evenly_spaced
from pts_scott.data.offsets import nanoseconds
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.losses import Losses
from pts_scott.engine.update_rules import INDIFFERENT
from pts_scott.errors import CheckpointMismatchError
from pts_scott.strata.partition import Strata

SAMPLE = 4096  # number of windows that identify strata
CHUNK = 2**20  # values that are read together

Fingerprint = dict[str, dict[str, Any]]


def fingerprint_of(
    losses: Losses,
    windows: WindowIndex,
    strata: Strata | None,
    validation: WindowIndex | None,
    settings: dict[str, Any],
) -> Fingerprint:
    """Return the fingerprint of a new run."""
    parameters = {
        name: f"{str(p.dtype).removeprefix('torch.')} {list(p.shape)}"
        for name, p in losses.named_parameters()
    }
    modules = {
        f"the module {name}": type(module).__name__
        for name, module in losses.named_modules()
    }
    data = _table(windows)
    data["strata"] = "none" if strata is None else _membership(strata)
    held_out = {} if validation is None else _table(validation)
    return {
        "model": parameters | modules,
        "training data": data,
        "validation data": held_out,
        "settings": settings,
    }


def _table(windows: WindowIndex) -> dict[str, Any]:
    series = windows.series
    timeline, firsts = series.timeline, windows.firsts.cpu().numpy()
    return {
        "windows": len(windows),
        "series": len(series.item_ids),
        "context_length": windows.context_length,
        "prediction_length": windows.prediction_length,
        "lengths": _digest([series.lengths.cpu().numpy().tobytes()]),
        "values": _digest(  # in pieces, because a mapped file may exceed the memory
            values.detach().cpu().contiguous().numpy().tobytes()
            for values in series.values.split(CHUNK)
        ),
        "names": _digest(map(_bytes, series.item_ids)),
        "dates": _digest(
            numbers.tobytes()
            for numbers in (nanoseconds(timeline.moments), timeline.origins, firsts)
        ),
        "stride": windows.stride,
    }


def _membership(strata: Strata) -> str:
    """Return a digest of the strata's sizes and some of their windows."""
    places = evenly_spaced(int(strata.sizes.sum()), SAMPLE).to(strata.sizes.device)
    tensors = (strata.sizes, strata.sorted.windows(places))
    return _digest(np.ascontiguousarray(t.cpu().numpy()).tobytes() for t in tensors)


def _bytes(name: object) -> bytes:
    return str(name).encode(errors="surrogatepass")


def _digest(pieces: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return f"#{digest.hexdigest()}"


def describe_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Return the class and options of an optimizer that a user's function made.

    Not its kernels, which depend on the device: a run may be resumed on another one.
    """
    groups = [
        {k: x for k, x in group.items() if k not in INDIFFERENT}
        | {"params": len(group["params"])}
        for group in optimizer.param_groups
    ]
    return f"{type(optimizer).__name__} {groups}"


def check_same_run(found: Fingerprint, expected: Fingerprint) -> None:
    """Refuse the checkpoint of another run.

    Parameters
    ----------
    found, expected
        Fingerprints of the checkpoint's run, and of the new one.

    Raises
    ------
    CheckpointMismatchError
        With the first difference.
    """
    for part, table in expected.items():
        theirs = found.get(part, {})
        theirs = theirs if isinstance(theirs, dict) else {}
        for name in sorted({*table, *theirs}):
            here, there = table.get(name, "absent"), theirs.get(name, "absent")
            if here == there:
                continue
            differs = f"is {there} there and {here} here"
            if str(here).startswith("#"):  # a digest, which is meaningless to users
                differs = "differ from those that it was written with"
            raise CheckpointMismatchError(
                f"the checkpoint belongs to another run: {part}, {name}, {differs}. "
                "Choose another folder, or restore the model, data and settings of that "
                "run."
            )
