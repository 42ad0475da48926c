"""Measure the window index and strata at scale: memory, build time and draw rates.

Values are generated. The sizes are those of Exchange-Rate, of the full Traffic data, and
of a shop with 500,000 products over 300 days; the shop also with thirty different starts
and, if pyarrow is installed, from a memory-mapped Arrow file. Memory is reported beyond
the series themselves and excludes pages of mapped files.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gluonts.dataset.common import ListDataset

from pts_scott import ArrowDataset, Strata, Stratifier, WindowIndex
from pts_scott.strata.policy import Policy

ROUNDS, DRAWS = 5, 1000


def resident_megabytes() -> float:
    """Return the resident memory of this process, without file-backed pages."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1e3


@dataclass
class Built:
    """An index with its strata, and the cost of building them."""

    name: str
    windows: WindowIndex
    strata: Strata
    megabytes: float
    seconds: float

    def draws(self) -> dict[str, Callable[[], object]]:
        """Return functions that draw 32 windows each, so that rates are comparable."""
        generator = torch.Generator().manual_seed(0)
        places = torch.randint(len(self.windows), (32,), generator=generator)
        locate, order = self.windows.locate, self.strata.sorted
        return {
            "uniform": lambda: locate(self.windows.draw(32, generator)),
            "stratified": lambda: locate(order.windows(places)),
        }


def rates(built: list[Built]) -> list[dict[str, float]]:
    """Return draws per second of each, as medians of interleaved rounds."""
    found: list[dict[str, list[float]]] = [defaultdict(list) for _ in built]
    draws = [one.draws() for one in built]
    for _ in range(ROUNDS):
        for own, results in zip(draws, found):
            for kind, draw in own.items():
                began = time.perf_counter()
                for _ in range(DRAWS):
                    draw()
                results[kind].append(DRAWS / (time.perf_counter() - began))
    return [{k: statistics.median(v) for k, v in own.items()} for own in found]


def measure(
    name: str,
    shape: tuple[int, int],
    freq: str,
    lengths: tuple[int, int],
    policy: Policy,
    starts: int = 1,
) -> Built:
    """Measure series in memory."""
    values = np.random.default_rng(0).random(shape, dtype=np.float32)
    # A start of the type that the backend uses, shifted for some of the series.
    entry = {"start": "2015-01-01", "target": [0.0]}
    first = next(iter(ListDataset([entry], freq=freq)))["start"]
    step = getattr(first, "freq", None)
    shifted = [first + k * step for k in range(starts)]
    entries = (
        {"item_id": f"item {i}", "start": shifted[i % starts], "target": row}
        for i, row in enumerate(values)
    )
    return build(name, entries, freq, lengths, policy, values.nbytes / 1e6)


def measure_mapped(
    name: str, shape: tuple[int, int], freq: str, lengths: tuple[int, int], policy: Policy
) -> Built:
    """Measure the same from an Arrow file, written batch by batch."""
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
        # The mapping stays valid after the file is deleted.
        return build(name, ArrowDataset(path, freq), freq, lengths, policy, 0.0)


def build(
    name: str,
    entries: Any,
    freq: str,
    lengths: tuple[int, int],
    policy: Policy,
    megabytes: float,
) -> Built:
    """Build index and strata; ``megabytes`` is the size of the series themselves."""
    gc.collect()
    before, began = resident_megabytes(), time.perf_counter()
    windows = WindowIndex.from_dataset(entries, freq, *lengths)
    strata = policy.stratify(windows)
    seconds = time.perf_counter() - began
    gc.collect()
    more = resident_megabytes() - before - megabytes
    return Built(name, windows, strata, more, seconds)


def main() -> None:
    """Run all measurements and print them."""
    torch.set_num_threads(1)
    by_series = Stratifier.ranges(4) * Stratifier.series()
    by_season = Stratifier.calendar("weekday", "season")
    weekends = Stratifier.calendar("weekend") * Stratifier.series()
    shop = ((500_000, 300), "D", (28, 7), weekends)
    built = [
        measure("exchange 8 x 6070", (8, 6070), "D", (8, 1), by_series),
        measure("traffic 862 x 17544", (862, 17544), "h", (72, 24), by_season),
        measure("shop 500000 x 300", *shop),
        measure("the same, 30 starts", *shop, starts=30),
    ]
    if find_spec("pyarrow") is not None:
        built.append(measure_mapped("the same, mapped", *shop))
    print(
        f"{'':22s} {'windows':>12s} {'strata':>9s} {'MB more':>8s} {'seconds':>8s} "
        f"{'uniform/s':>10s} {'stratified/s':>12s}"
    )
    for one, rate in zip(built, rates(built)):
        print(
            f"{one.name:22s} {len(one.windows):>12,d} {len(one.strata):>9,d} "
            f"{one.megabytes:>8.0f} {one.seconds:>8.2f} {rate['uniform']:>10.0f} "
            f"{rate['stratified']:>12.0f}"
        )


if __name__ == "__main__":
    main()
