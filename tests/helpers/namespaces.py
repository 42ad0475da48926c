"""Hosts made of network namespaces: several addresses and links on one machine.

A switch, itself a namespace, holds a bridge with one port per host. Addresses and
interfaces exist only inside these namespaces; no packet leaves them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SUBNET = "10.77.0"
INTERFACE = "eth0"  # of every host
COMMAND_TIMEOUT = 20.0
DELAYED_LINK = Path(__file__).parent / "delayed_link.py"
_NUMBERS = itertools.count()  # of the networks that this process makes


class Hosts:
    """Namespaces that act as hosts; see `connected_hosts`.

    Parameters
    ----------
    size
        Number of hosts.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        prefix = f"scott{os.getpid()}-{next(_NUMBERS)}"
        self._switch = f"{prefix}-switch"
        self._names = [f"{prefix}-host{n}" for n in range(size)]
        self._started: list[subprocess.Popen[bytes]] = []

    def address(self, host: int) -> str:
        """Return the address of a host."""
        return f"{SUBNET}.{host + 1}"

    def create(self) -> None:
        """Create the namespaces, and connect each host to the switch."""
        for name in (self._switch, *self._names):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for host, name in enumerate(self._names):
            pair = ("type", "veth", "peer", "name", INTERFACE, "netns", name)
            _ip("-n", self._switch, "link", "add", self.port(host), *pair)
            _ip("-n", self._switch, "link", "set", self.port(host), "master", "bridge")
            # Without IPv6 addresses there is only one address to choose from.
            _ip("-n", name, "link", "set", INTERFACE, "addrgenmode", "none")
            address = f"{self.address(host)}/24"
            _ip("-n", name, "address", "add", address, "dev", INTERFACE)
            _ip("-n", name, "link", "set", INTERFACE, "up")
            _ip("-n", self._switch, "link", "set", self.port(host), "up")

    def port(self, host: int) -> str:
        """Return the name of the switch's port to which a host is connected."""
        return f"port{host}"

    def cut(self, host: int) -> None:
        """Take down the link of a host, as if its cable had been pulled."""
        _ip("-n", self._switch, "link", "set", self.port(host), "down")

    def reconnect(self, host: int) -> None:
        """Take up the link of a host again."""
        _ip("-n", self._switch, "link", "set", self.port(host), "up")

    def limit_rate(self, rate: str) -> None:
        """Limit what every host sends to a rate of tc, such as ``"1gbit"``."""
        bucket = ("tbf", "rate", rate, "burst", "128kb", "latency", "50ms")
        for name in self._names:
            command = ("tc", "-n", name, "qdisc", "replace", "dev", INTERFACE, "root")
            run_command(*command, *bucket)

    def add_latency(self, seconds: float, log: Path) -> None:
        """Replace the bridge between two hosts by a link with latency."""
        for host in range(2):
            _ip("-n", self._switch, "link", "set", self.port(host), "nomaster")
        arguments = (self.port(0), self.port(1), str(seconds))
        command = [sys.executable, str(DELAYED_LINK), *arguments]
        self._start(self._switch, command, {}, log)

    def start(
        self,
        host: int,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host; its output is appended to a file."""
        return self._start(self._names[host], command, env, log)

    def kill(self, host: int) -> None:
        """Kill every process on a host."""
        _kill_all(self._names[host])

    def close(self) -> None:
        """Kill everything that still runs on the hosts, and remove them."""
        for name in (*self._names, self._switch):
            with contextlib.suppress(subprocess.CalledProcessError):  # never created
                _kill_all(name)
                _ip("netns", "delete", name)
        for process in self._started:
            process.wait(COMMAND_TIMEOUT)

    def _start(
        self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        with open(log, "ab") as output:
            process = subprocess.Popen(
                ["ip", "netns", "exec", name, *command],
                env={**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        return process


@contextlib.contextmanager
def connected_hosts(size: int) -> Iterator[Hosts]:
    """Create hosts that reach each other and nothing else; remove them at the end."""
    hosts = Hosts(size)
    try:
        hosts.create()
        yield hosts
    finally:
        hosts.close()


def reason_for_no_hosts() -> str | None:
    """Return why this system cannot make hosts; None if it can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        return f"there is no command {' or '.join(missing)}; install iproute2"
    try:
        with connected_hosts(1):
            return None
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not permitted: {error.stderr.strip()}"


def run_command(*command: str) -> str:
    """Run a command and return its output."""
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT
    )
    return done.stdout


def _ip(*arguments: str) -> str:
    return run_command("ip", *arguments)


def _kill_all(name: str) -> None:
    deadline = time.monotonic() + COMMAND_TIMEOUT
    while found := _ip("netns", "pids", name).split():
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {found} do not end")
        time.sleep(0.05)
