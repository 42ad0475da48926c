"""Runs of torchrun over hosts that are network namespaces."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from pathlib import Path

from helpers.host_script import Result, Settings, wait_for
from helpers.namespaces import Hosts

PORT = 29500
LONGEST_RUN = 90.0  # seconds
TESTS = Path(__file__).parent.parent
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": f"{TESTS.parent}:{TESTS}",
    "PYTHONWARNINGS": "ignore",
    # Otherwise restarted processes find addresses of dead ones (pytorch issue 135712).
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


class TorchRun:
    """One start of a script on every host.

    Parameters
    ----------
    hosts
        The hosts.
    settings
        What the script does; its folder gets one log per host.
    max_restarts
        How often torchrun restarts the processes when one of them fails.
    """

    def __init__(self, hosts: Hosts, settings: Settings, max_restarts: int = 0) -> None:
        self._hosts, self._folder = hosts, Path(settings.folder)
        self._folder.mkdir(exist_ok=True)
        for pattern in ("ready*", "paused*", "continue", "result*"):
            for path in self._folder.glob(pattern):
                path.unlink()
        path = self._folder / "settings.json"
        settings.write(path)
        self._agents = [
            hosts.start(
                host,
                [*self._command(host, max_restarts), str(path)],
                ENVIRONMENT,
                self.log(host),
            )
            for host in range(hosts.size)
        ]

    def _command(self, host: int, max_restarts: int) -> list[str]:
        # By default, torchrun asks the name service for the address of this host, and
        # whether this host has the endpoint's.
        rendezvous = {"is_host": int(host == 0), "read_timeout": 10, "join_timeout": 60}
        conf = ",".join(f"{name}={value}" for name, value in rendezvous.items())
        return [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", str(self._hosts.size), "--nproc-per-node", "1"),
            *("--rdzv-backend", "c10d", "--rdzv-id", "test"),
            *("--rdzv-endpoint", f"{self._hosts.address(0)}:{PORT}"),
            *("--rdzv-conf", conf, "--local-addr", self._hosts.address(host)),
            *("--max-restarts", str(max_restarts)),
            *("-m", "helpers.host_script"),
        ]

    def log(self, host: int) -> Path:
        """Return the path of a host's log."""
        return self._folder / f"host{host}.log"

    def wait_until_paused(self) -> None:
        """Wait until all processes have paused in the middle of the run."""
        ranks = range(self._hosts.size)
        self._wait_for([self._folder / f"paused{rank}" for rank in ranks])

    def resume_paused(self) -> float:
        """Let paused processes continue, and return the time."""
        (self._folder / "continue").touch()
        return time.monotonic()

    def wait_for_result(self, host: int, start: int = 0) -> Result:
        """Return how the process of a host ended, once it has."""
        path = self._folder / f"result{host}-{start}"
        self._wait_for([path])
        return Result(**pickle.loads(path.read_bytes()))

    def wait_for_exit(self, host: int) -> int:
        """Return the exit code of a host's torchrun, once it has ended."""
        try:
            return self._agents[host].wait(LONGEST_RUN)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"host {host} hangs:\n{self._logs()}") from None

    def results(self) -> list[Result]:
        """Return how a run without incidents ended on each host."""
        codes = [self.wait_for_exit(host) for host in range(self._hosts.size)]
        assert not any(codes), self._logs()
        return [self.wait_for_result(host) for host in range(self._hosts.size)]

    def _wait_for(self, paths: list[Path]) -> None:
        try:
            wait_for(*paths)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self._logs()}") from None

    def _logs(self) -> str:
        logs = (self.log(host) for host in range(self._hosts.size))
        return "\n".join(f"{log.name}:\n{log.read_text()}" for log in logs)
