"""The index of windows and strata at scale: memory beyond the series, seconds, draws.

Values are generated. The sizes are those of Exchange-Rate, of the full Traffic data, and
of a shop with 500,000 products over 300 days, there also with thirty different starts,
and from an Arrow file that is mapped and not read (where pyarrow is installed). Memory is
what the process holds of its own; pages of a mapped file are the operating system's.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gluonts.dataset.common import ListDataset

from pts_scott import ArrowDataset, Stratifier, WindowIndex
from pts_scott.stratifier import Stratifier as Policy

ROUNDS, DRAWS = 5, 1000


def resident_megabytes() -> float:
    """Memory that this process holds now, without pages of files."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1e3


def per_second(draw: Callable[[], object]) -> float:
    """Calls a second: the median of a few rounds."""
    rates = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(DRAWS):
            draw()
        rates.append(DRAWS / (time.perf_counter() - began))
    return statistics.median(rates)


def measure(
    name: str,
    shape: tuple[int, int],
    freq: str,
    lengths: tuple[int, int],
    policy: Policy,
    starts: int = 1,
) -> None:
    """Series in memory."""
    values = np.random.default_rng(0).random(shape, dtype=np.float32)
    # A start of the stack's own kind, moved on for some of the series.
    entry = {"start": "2015-01-01", "target": [0.0]}
    first = next(iter(ListDataset([entry], freq=freq)))["start"]
    step = getattr(first, "freq", None)
    moved = [first + k * step for k in range(starts)]
    entries = (
        {"item_id": f"item {i}", "start": moved[i % starts], "target": row}
        for i, row in enumerate(values)
    )
    build_and_draw(name, entries, freq, lengths, policy, values.nbytes / 1e6)


def measure_mapped(
    name: str, shape: tuple[int, int], freq: str, lengths: tuple[int, int], policy: Policy
) -> None:
    """The same from an Arrow file, written batch by batch."""
    import pyarrow as pa

    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "series.arrow"
        kinds = [pa.list_(pa.float32()), pa.timestamp("us"), pa.string()]
        schema = pa.schema(list(zip(("target", "start", "item_id"), kinds)))
        with pa.RecordBatchFileWriter(str(path), schema) as writer:
            for first in range(0, shape[0], 10_000):
                size = min(10_000, shape[0] - first)
                values = generator.random((size, shape[1]), dtype=np.float32)
                rows = [
                    list(values),
                    [np.datetime64("2015-01-01", "us")] * size,
                    [f"item {i}" for i in range(first, first + size)],
                ]
                columns = [pa.array(r, k) for r, k in zip(rows, kinds)]
                writer.write_batch(pa.record_batch(columns, schema=schema))
        build_and_draw(name, ArrowDataset(path, freq), freq, lengths, policy, 0.0)


def build_and_draw(
    name: str,
    entries: Any,
    freq: str,
    lengths: tuple[int, int],
    policy: Policy,
    megabytes: float,
) -> None:
    """Build index and strata, draw from them, print a row."""
    gc.collect()
    before, began = resident_megabytes(), time.perf_counter()
    windows = WindowIndex.from_dataset(entries, freq, *lengths)
    strata = policy.stratify(windows)
    seconds = time.perf_counter() - began
    gc.collect()
    memory = resident_megabytes() - before - megabytes

    generator = torch.Generator().manual_seed(0)
    uniform = per_second(lambda: windows.locate(windows.draw(32, generator)))
    # As many windows from each size, so that the rates can be compared.
    places = torch.randint(len(windows), (32,), generator=generator)
    stratified = per_second(lambda: windows.locate(strata.sorted.windows(places)))
    print(
        f"{name:22s} {len(windows):>12,d} {len(strata):>9,d} {memory:>8.0f} "
        f"{seconds:>8.2f} {uniform:>10.0f} {stratified:>12.0f}"
    )


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    print(
        f"{'':22s} {'windows':>12s} {'strata':>9s} {'MB more':>8s} {'seconds':>8s} "
        f"{'uniform/s':>10s} {'stratified/s':>12s}"
    )
    by_series = Stratifier.ranges(4) * Stratifier.series()
    by_season = Stratifier.calendar("weekday", "season")
    weekends = Stratifier.calendar("weekend") * Stratifier.series()
    measure("exchange 8 x 6070", (8, 6070), "D", (8, 1), by_series)
    measure("traffic 862 x 17544", (862, 17544), "h", (72, 24), by_season)
    measure("shop 500000 x 300", (500_000, 300), "D", (28, 7), weekends)
    measure("the same, 30 starts", (500_000, 300), "D", (28, 7), weekends, starts=30)
    if find_spec("pyarrow") is not None:
        measure_mapped("the same, mapped", (500_000, 300), "D", (28, 7), weekends)


if __name__ == "__main__":
    main()
