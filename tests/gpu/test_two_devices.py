"""Two processes with a device each train what one process would have trained."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.accelerator import assert_same_parameters, fit_on, gpu_tests
from helpers.training import tiny_network

pytestmark = gpu_tests

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("method", ["scott", "plain"])
def test_two_devices_equal_one(device, method, tmp_path):
    if device.type not in ("cuda", "cpu"):
        pytest.skip("Lightning shares work between CUDA devices only")
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("there is one device")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "helpers.two_devices"]
    path = os.pathsep.join(map(str, (TESTS.parent, TESTS)))
    done = subprocess.run(
        [*command, str(tmp_path), device.type, method],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert not done.returncode, done.stderr
    expected, _ = fit_on(device, method=method)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        if device.type == "cuda":
            assert (found["device"], found["backend"]) == (f"cuda:{rank}", "nccl")
        network = tiny_network(next(iter(found["state"].values())).dtype)
        network.load_state_dict(found["state"])
        assert_same_parameters(network, expected)
