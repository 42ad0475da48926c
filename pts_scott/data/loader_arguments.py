"""Arguments of the libraries' data loaders, which have no effect without a loader."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from pts_scott.errors import ScottWarning

LOADER_ARGUMENTS = ("num_workers", "prefetch_factor", "shuffle_buffer_length")


def warn_unused_loader(given: Mapping[str, Any], stacklevel: int = 4) -> None:
    """Warn about loader arguments that were given but are not used."""
    unused = [f"{k}={given[k]!r}" for k in LOADER_ARGUMENTS if given.get(k)]
    if unused:
        warnings.warn(
            f"{', '.join(unused)} {'have' if len(unused) > 1 else 'has'} no effect: "
            "windows are drawn uniformly and gathered as tensors, without a data loader.",
            ScottWarning,
            stacklevel=stacklevel,
        )
