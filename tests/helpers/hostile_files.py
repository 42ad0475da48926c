"""Files that would run code if they were read carelessly."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

DAYS = pd.date_range("2024-01-01", periods=40, freq="D")
WAVE = 5 + np.sin(np.arange(40))


class CreatesFile:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def hostile_field(name: str, values: Any, created: Path) -> Any:
    """Return an Arrow field whose type old versions of pyarrow unpickled."""
    import pyarrow as pa

    metadata = {
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": pickle.dumps(CreatesFile(created)),
    }
    return pa.field(name, values.type, metadata=metadata)
