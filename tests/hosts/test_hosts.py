"""Several hosts, started by torchrun: equal steps, lost hosts, and elastic restarts.

The hosts are network namespaces of this machine, and share its file system.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.host_script import Result, Settings
from helpers.namespaces import Hosts, connected_hosts, reason_for_no_hosts
from helpers.processes import train
from helpers.torchrun import TorchRun

from pts_scott.training.checkpoint_files import read
from pts_scott.training.run_state import KEY

METHODS = ("plain", "scott")
PAUSE = 21  # steps, of 40; checkpoints are written before it
SLACK = 10.0  # seconds for a busy machine


@pytest.fixture(scope="module", autouse=True)
def _needs_hosts(request: pytest.FixtureRequest) -> None:
    # An expression such as "not slow" selects them, too, and replaces pyproject's.
    if "hosts" not in request.config.getoption("markexpr"):
        pytest.skip("hosts are made on request only; run with -m hosts")
    reason = reason_for_no_hosts()
    if reason is not None:
        pytest.skip(reason)


pytestmark = pytest.mark.hosts


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return the results of a run over a number of hosts, which is made once."""
    known: dict[int, list[Result]] = {}

    def results(size: int) -> list[Result]:
        if size not in known:
            folder = tmp_path_factory.mktemp("uninterrupted") / str(size)
            with connected_hosts(size) as hosts:
                run = TorchRun(hosts, Settings(str(folder), size, methods=METHODS))
                known[size] = run.results()
        return known[size]

    return results


def assert_close(found: Result, expected: list[torch.Tensor], method: str, atol: float):
    for x, y in zip(found.parameters[method], expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=atol)


@pytest.mark.parametrize("size", [2, 3])
def test_several_hosts_take_the_steps_of_one_process(size, uninterrupted):
    found = uninterrupted(size)
    for method in METHODS:
        network, _ = train(method=method)
        alone = [p.detach() for p in network.parameters()]
        first = found[0].parameters[method]
        for result in found:
            assert_close(result, alone, method, atol=1e-6)
            assert_close(result, first, method, atol=0)


def assert_resumes(hosts: Hosts, folder: Path, expected: list[Result]) -> None:
    """Start the script again on all hosts, and compare the end bit by bit."""
    steps = read(folder / "scott" / "last.ckpt")[KEY]["counters"]["steps"]
    assert 0 < steps <= PAUSE, "the checkpoint is of the middle of the run"
    results = TorchRun(hosts, Settings(str(folder), hosts.size)).results()
    for found, wanted in zip(results, expected, strict=True):
        assert found.first_step == steps
        assert_close(found, wanted.parameters["scott"], "scott", atol=0)


def test_cut_off_host_ends_the_run_at_the_timeout_and_it_resumes(tmp_path, uninterrupted):
    timeout, size, folder = 6.0, 3, tmp_path / "run"
    with connected_hosts(size) as hosts:
        settings = Settings(str(folder), size, timeout=timeout, pause_at=PAUSE)
        run = TorchRun(hosts, settings)
        run.wait_until_paused()
        hosts.cut(2)
        began = run.resume_paused()
        for host in range(size):  # the one that was cut off has lost the others
            found = run.wait_for_result(host)
            assert found.error is not None
            assert f"process {host} of {size} lost another process" in found.error
            assert "cannot be reached" in found.error
            assert "resume=True" in found.error
            assert timeout - 1 < found.seconds - began < timeout + SLACK
        for host in (0, 1):
            assert run.wait_for_exit(host) != 0
            assert "ProcessError: process" in run.log(host).read_text()
        hosts.kill(2)  # its torchrun still waits for the others
        hosts.reconnect(2)
        assert_resumes(hosts, folder, uninterrupted(size))


def test_killed_host_ends_the_run_at_once_and_it_resumes(tmp_path, uninterrupted):
    """The killed host writes the checkpoints and has torchrun's endpoint."""
    timeout, size, folder = 60.0, 2, tmp_path / "run"
    with connected_hosts(size) as hosts:
        settings = Settings(str(folder), size, timeout=timeout, pause_at=PAUSE)
        run = TorchRun(hosts, settings)
        run.wait_until_paused()
        hosts.kill(0)
        began = run.resume_paused()
        found = run.wait_for_result(1)
        assert found.error is not None
        assert "process 1 of 2 lost another process" in found.error
        assert found.seconds - began < SLACK, "it does not wait for the timeout"
        assert run.wait_for_exit(1) != 0
        assert run.wait_for_exit(0) == -9
        assert_resumes(hosts, folder, uninterrupted(size))


@pytest.mark.parametrize("victim", [0, 1])
def test_restart_by_torchrun_resumes_from_the_last_checkpoint(
    victim, tmp_path, uninterrupted
):
    size = 2
    settings = Settings(str(tmp_path / "run"), size, die_at=PAUSE, victim=victim)
    with connected_hosts(size) as hosts:
        run = TorchRun(hosts, settings, max_restarts=2)
        assert [run.wait_for_exit(host) for host in range(size)] == [0, 0]
        lost = run.wait_for_result(1 - victim, start=0)
        assert lost.error is not None, "the other process has lost the victim"
        for host in range(size):
            found = run.wait_for_result(host, start=1)
            assert found.first_step is not None
            assert 0 < found.first_step <= PAUSE, "it resumed in the middle"
            expected = uninterrupted(size)[host].parameters["scott"]
            assert_close(found, expected, "scott", atol=0)
