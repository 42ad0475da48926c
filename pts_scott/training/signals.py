"""Ctrl-C and SIGTERM: once ends training in good order, twice at once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger(__name__)

Stop = Callable[[], None]


@contextmanager
def interruptible(stop: Stop) -> Iterator[None]:
    """A block in which the first Ctrl-C calls ``stop``, and the second interrupts.

    Elsewhere than in the main thread, which alone hears of it, nothing changes; nor where
    it is ignored, as by a program that was started in the background.
    """
    before = signal.getsignal(signal.SIGINT)
    if not _is_heard(signal.SIGINT):
        yield
        return
    _hear(signal.SIGINT, "Ctrl-C", stop, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def hear_termination(stop: Stop) -> None:
    """Let the first SIGTERM call ``stop``; the second ends the process.

    Batch systems send it some time before they kill. To be called when Lightning has
    installed its own answer, in which processes wait for each other in the midst of what
    they do; it puts back what was before when its trainer ends.
    """
    if _is_heard(signal.SIGTERM):
        _hear(signal.SIGTERM, "SIGTERM", stop, signal.SIG_DFL)


def _is_heard(number: signal.Signals) -> bool:
    here = threading.current_thread() is threading.main_thread()
    return here and signal.getsignal(number) not in (signal.SIG_IGN, None)


def _hear(
    number: signal.Signals,
    name: str,
    stop: Stop,
    afterwards: Callable[[int, FrameType | None], object] | signal.Handlers,
) -> None:
    def first(_: int, __: FrameType | None) -> None:
        signal.signal(number, afterwards)
        logger.warning(
            "%s: training ends with the current outer loop and returns what it has; the "
            "second one ends it at once.",
            name,
        )
        stop()

    signal.signal(number, first)
