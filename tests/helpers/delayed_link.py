"""A link with latency: forward frames between two interfaces after a delay.

    python delayed_link.py INTERFACE INTERFACE SECONDS

It needs no kernel module, unlike tc's netem. Frames keep the header with which the kernel
postpones checksums and segmentation, so that a large send stays one frame.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import sys
import time

ETH_P_ALL = 3
PACKET_OUTGOING = 4
SOL_PACKET, PACKET_VNET_HDR = 263, 15
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
LARGEST_FRAME = 1 << 17


def open_interface(name: str) -> socket.socket:
    """Open an interface for all frames that it receives."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    opened.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 26)
    opened.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 26)
    opened.bind((name, ETH_P_ALL))
    opened.setblocking(False)
    return opened


def forward(first: str, second: str, delay: float) -> None:
    """Forward frames in both directions for as long as the process runs."""
    one, other = open_interface(first), open_interface(second)
    peers = {one: other, other: one}
    waiting: collections.deque[tuple[float, socket.socket, bytes]] = collections.deque()
    poll = select.epoll()
    sockets = {opened.fileno(): opened for opened in peers}
    for number in sockets:
        poll.register(number, select.EPOLLIN)
    while True:
        due = max(0.0, waiting[0][0] - time.monotonic()) if waiting else -1
        for number, _ in poll.poll(due):
            source = sockets[number]
            with contextlib.suppress(BlockingIOError):
                while True:
                    frame, address = source.recvfrom(LARGEST_FRAME)
                    if address[2] != PACKET_OUTGOING:
                        at = time.monotonic() + delay
                        waiting.append((at, peers[source], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, target, frame = waiting.popleft()
            with contextlib.suppress(OSError):  # TCP sends it again
                target.send(frame)


if __name__ == "__main__":
    forward(sys.argv[1], sys.argv[2], float(sys.argv[3]))
