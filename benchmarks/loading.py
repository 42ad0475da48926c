"""Time reading and stratifying a file as large as Traffic: 862 series of 17,544 hours.

Run it with ``python benchmarks/loading.py``; the values are generated.
"""

from __future__ import annotations

import gzip
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from pts_scott import Stratifier, WindowIndex
from pts_scott.datasets import load

SERIES, STEPS = 862, 17_544


def write(path: Path) -> None:
    """Write occupancies between 0 and 1 with four digits, in LSTNet layout."""
    values = np.random.default_rng(0).integers(0, 10_000, (STEPS, SERIES))
    words = np.array([f"{value / 10_000:.4f}" for value in range(10_000)])
    with gzip.open(path, "wt", compresslevel=1) as file:
        for row in values:
            file.write(",".join(words[row]) + "\n")


def main() -> None:
    """Time each stage and print it."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traffic-size.txt.gz"
        write(path)
        print(f"{path.stat().st_size / 1e6:.0f} MB of text, packed")
        marks = [("", time.perf_counter())]

        def mark(name: str) -> None:
            marks.append((name, time.perf_counter()))
            print(f"{name:10s} {marks[-1][1] - marks[-2][1]:6.2f} s")

        data = load(path, start="2015-01-01", freq="h")
        mark("load")
        data.report()
        mark("report")
        parts = data.split(72, 24)
        mark("split")
        windows = WindowIndex.from_dataset(parts.train.entries(), "h", 72, 24)
        mark("windows")
        strata = Stratifier.calendar("weekday", "season").stratify(windows)
        mark("stratify")
        print(f"all        {marks[-1][1] - marks[0][1]:6.2f} s\n{strata}")


if __name__ == "__main__":
    main()
