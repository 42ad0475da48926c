"""Measure when a second host pays: steps per second over links with limits.

    python benchmarks/hosts.py

The hosts are network namespaces of this machine, with one process on one thread each; it
needs root and iproute2. tc's token bucket (tbf) limits the bandwidth, and a relay between
the two hosts adds latency. Beside each measured figure is, in parentheses, the one
calculated by the formula of docs/scaling.md from the measurements with one host and
without limits. Every figure is the fastest of three, except for N-BEATS at 100 Mbit/s.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))  # the tests make hosts in the same way

from helpers.namespaces import Hosts, connected_hosts, reason_for_no_hosts  # noqa: E402

NETWORKS = {"LSTM": "LSTM 2 × 100", "N-BEATS": "N-BEATS 30 × 512"}
METHODS = ("plain", "scott")
BATCH = 64
STEPS = {"LSTM": 16, "N-BEATS": 6}
FEWEST_STEPS = 4  # where one step takes many seconds
REPEATS = 3  # the fastest counts: other work on this machine only ever slows one down
LONGEST_MEASUREMENT = 400.0  # seconds


@dataclass(frozen=True)
class Link:
    """Limits of the link between two hosts.

    Parameters
    ----------
    name
        Its name in the table.
    latency
        Seconds from one host to the other.
    rate
        Bits per second that each host can send; None for no limit.
    """

    name: str
    latency: float = 0.0
    rate: float | None = None

    def apply(self, hosts: Hosts, folder: Path) -> None:
        """Limit the link between two hosts."""
        if self.rate is not None:
            hosts.limit_rate(f"{self.rate:.0f}bit")
        if self.latency:
            hosts.add_latency(self.latency, folder / "link.log")

    def reduction_seconds(self, values: int, hosts: int) -> float:
        """Calculate what the limits add to a ring all-reduce of single-precision values.

        Each host sends 2 (n - 1) messages, one after the other, of 1/n of the values.
        """
        bits = 32 * values / hosts
        transfer = 0.0 if self.rate is None else bits / self.rate
        return 2 * (hosts - 1) * (self.latency + transfer)


LINKS = (
    Link("no limit"),
    Link("1 ms", latency=1e-3),
    Link("10 ms", latency=1e-2),
    Link("1 Gbit/s", rate=1e9),
    Link("100 Mbit/s", rate=1e8),
)


def data() -> Any:
    """Return eight waves, each over a year of hours."""
    import numpy as np
    from gluonts.dataset.common import ListDataset

    hours = np.arange(24 * 365)
    rows = [5 + np.sin(2 * np.pi * hours / 24 + shift) for shift in range(8)]
    return ListDataset([{"start": "2024-01-01", "target": row} for row in rows], freq="h")


def train(network: str, method: str, hosts: int, steps: int) -> dict[str, float]:
    """Train on one of the hosts, and return the seconds and all-reduces per step."""
    from pts_scott import LSTMEstimator, NBEATSEstimator, ScottTrainer, Stratifier

    kwargs: dict[str, Any] = {"enable_progress_bar": False}
    if hosts > 1:
        kwargs |= {"strategy": "ddp", "devices": 1, "num_nodes": hosts}
    trainer = ScottTrainer(
        method=method,
        optimizer="adam",
        clip_gradient=None,
        batch_size=BATCH,
        anchor_batch_size=2,
        stratifier=Stratifier.calendar("weekday", "season"),
        epochs=1,
        num_batches_per_epoch=steps,
        gamma=None,
        compile=False,
        device="cpu",
        threads=1,
        seed=0,
        trainer_kwargs=kwargs,
    )
    estimator = {"N-BEATS": NBEATSEstimator, "LSTM": LSTMEstimator}[network]
    estimator(freq="h", prediction_length=24, context_length=72, trainer=trainer).train(
        data()
    )
    last = trainer.history.iloc[-1]
    module = trainer.lightning.lightning_module
    return {
        "seconds": float(last["seconds"]) / steps,
        "reductions": 1 + float(last["anchors"]) / steps,
        "values": sum(p.numel() for p in module.parameters() if p.requires_grad),
    }


def reduction(values: int) -> float:
    """Return the seconds of an all-reduce between the hosts."""
    import torch
    import torch.distributed as dist

    tensor, times = torch.ones(values), []
    for _ in range(4):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def work(path: str, hosts: int, steps: dict[str, int]) -> None:
    """Measure all networks in the process of one host; the first one writes a file."""
    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for network in NETWORKS:
        repeats = REPEATS if steps[network] > FEWEST_STEPS else 1
        train(network, "plain", hosts, 2)  # the first run is slower
        found[network] = {
            method: min(
                (train(network, method, hosts, steps[network]) for _ in range(repeats)),
                key=lambda run: run["seconds"],
            )
            for method in METHODS
        }
        if hosts > 1:
            found[network]["reduction"] = reduction(found[network]["plain"]["values"])
    if os.environ["RANK"] == "0":
        Path(path).write_text(json.dumps(found))


def measure(size: int, link: Link, steps: dict[str, int]) -> dict[str, Any]:
    """Start the processes of all hosts, and return what the first one measured."""
    with tempfile.TemporaryDirectory() as name, connected_hosts(size) as hosts:
        folder = Path(name)
        link.apply(hosts, folder)
        arguments = (str(folder / "found.json"), str(size), json.dumps(steps))
        command = [sys.executable, __file__, *arguments]
        shared = {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": "29500"}
        shared |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        shared |= {"TORCHELASTIC_RUN_ID": "benchmark", "OMP_NUM_THREADS": "1"}
        if size == 1:
            del shared["TORCHELASTIC_RUN_ID"]  # an ordinary run
        started = []
        for host in range(size):
            ranks = {"RANK": str(host), "GROUP_RANK": str(host)}
            log = folder / f"host{host}.log"
            started.append(hosts.start(host, command, {**shared, **ranks}, log))
        for host, process in enumerate(started):
            if process.wait(LONGEST_MEASUREMENT):
                sys.exit((folder / f"host{host}.log").read_text())
        return json.loads((folder / "found.json").read_text())  # type: ignore[no-any-return]


def main() -> None:
    """Run all measurements and print a table."""
    if (reason := reason_for_no_hosts()) is not None:
        sys.exit(reason)
    alone = measure(1, Link("none"), STEPS)
    found = {}
    for link in LINKS:
        is_slow = link.rate is not None and link.rate < 1e9
        steps = STEPS | ({"N-BEATS": FEWEST_STEPS} if is_slow else {})
        found[link] = measure(2, link, steps)
    print("| network | hosts | link | all-reduce, ms | plain, steps/s | SCott, steps/s |")
    print("|---|---|---|---|---|---|")
    for network, title in NETWORKS.items():
        rates = [f"{1 / alone[network][method]['seconds']:.2f}" for method in METHODS]
        print(f"| {title} | 1 | | | {' | '.join(rates)} |")
        unlimited = found[LINKS[0]][network]["reduction"]
        for link in LINKS:
            own = found[link][network]
            added = link.reduction_seconds(own["plain"]["values"], 2)
            cells = [f"{1000 * own['reduction']:.3g} ({1000 * (unlimited + added):.3g})"]
            for method in METHODS:
                share = alone[network][method]["seconds"] / 2
                total = share + own[method]["reductions"] * (unlimited + added)
                cells.append(f"{1 / own[method]['seconds']:.2f} ({1 / total:.2f})")
            print(f"| | 2 | {link.name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        main()
