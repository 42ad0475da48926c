"""Memory use of a script in its own process, measured by the kernel's resident pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
RESET = Path("/proc/self/clear_refs")

#: Runs before each script: imports, a function that reads /proc, and small windows.
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

# Sixteen layers of 4 MB: with small batches, parameters take nearly all of the memory.
DEEP = """
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [6, *[1000] * 17, 2]
        self.layers = nn.Sequential(*[nn.Linear(m, n) for m, n in zip(sizes, sizes[1:])])

    def loss(self, past_target, future_target):
        return (self.layers(past_target) - future_target).square().mean(dim=1)
"""


def run(script: str, *arguments: str) -> float:
    """Run a script after SETUP and return the number that it prints last."""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SETUP + script, *arguments],
        cwd=TESTS,  # "python -c" imports from here, which is where ``helpers`` is
        # Return freed blocks to the system, so that only memory in use is counted.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(result.stdout.split()[-1])
