"""Memory: what training holds at most, and that it does not grow.

Both are measured in a process of their own, by the kernel's count of resident pages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RESET = Path("/proc/self/clear_refs")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not RESET.exists(), reason="needs Linux' counts of memory"),
]

SETUP = """
import sys, warnings
from pathlib import Path
import torch
from torch import nn
from pts_scott import Stratifier
from helpers.series import wave_windows
from helpers.training import quiet_trainer, tiny_network

def kilobytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

windows = wave_windows(torch.float32)
"""

# Sixteen layers of 4 MB and small batches: parameters are all that counts.
DEEP = """
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [6, *[1000] * 17, 2]
        self.layers = nn.Sequential(*[nn.Linear(m, n) for m, n in zip(sizes, sizes[1:])])

    def loss(self, past_target, future_target):
        return (self.layers(past_target) - future_target).square().mean(dim=1)
"""
PEAK = f"""
{DEEP}
network = Deep()
trainer = lambda: quiet_trainer(
    method=sys.argv[1], optimizer="adam", batch_size=4, anchor_batch_size=2,
    inner_steps=3, num_batches_per_epoch=6, gamma=None, clip_gradient=10.0,
)
trainer().fit(tiny_network(torch.float32), windows)  # loads what is loaded once
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
trainer().fit(network, windows)
size = sum(4 * p.numel() for p in network.parameters()) / 1024
print((kilobytes("VmHWM") - before) / size)
"""

GROWTH = """
network = tiny_network(torch.float32)
sizes, loops = {}, 0

def weigh(module, inputs):
    global loops
    loops += len(inputs[0]) == 18  # an anchor: 9 strata, b = 2
    if loops in (1000, 20000):
        sizes.setdefault(loops, kilobytes("VmRSS"))

network.layers.register_forward_pre_hook(weigh)
quiet_trainer(
    stratifier=Stratifier.periodic(3) * Stratifier.series(),
    batch_size=4, anchor_batch_size=2, inner_steps=1, num_batches_per_epoch=20_100,
).fit(network, windows)
print(sizes[20000] - sizes[1000])
"""


def run(script: str, *arguments: str) -> float:
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SETUP + script, *arguments],
        cwd=Path(__file__).parent,
        # Blocks go back to the system when they are freed: what is counted is in use.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(result.stdout.split()[-1])


@pytest.mark.parametrize(
    ("method", "sets"),
    [
        # A gradient and two of Adam; with an anchor also snapshot and anchor, but no
        # second gradient: both passes add to one.
        ("plain", 1 + 2),
        ("scott", 1 + 2 + 2),
    ],
)
def test_training_holds_no_more_copies_of_the_parameters_than_it_needs(method, sets):
    copies = run(PEAK, method)
    assert sets - 0.5 < copies < sets + 0.3


def test_twenty_thousand_outer_loops_need_no_more_than_one_thousand():
    # The history itself is ten numbers of eight bytes for each outer loop.
    history = 19_000 * 80 / 1024
    assert run(GROWTH) < history + 1024
