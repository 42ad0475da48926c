"""Ctrl-C and SIGTERM: the first ends training gracefully, the second immediately."""

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
    """Make the first Ctrl-C call ``stop``, and the second interrupt.

    Nothing changes outside the main thread, because other threads receive no signals,
    or if Ctrl-C is ignored, as in a program that was started in the background.
    """
    before = signal.getsignal(signal.SIGINT)
    if not _is_handled(signal.SIGINT):
        yield
        return
    _handle(signal.SIGINT, "Ctrl-C", stop, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def stop_on_termination(stop: Stop) -> None:
    """Make the first SIGTERM call ``stop``, and the second end the process.

    Batch systems send it some time before they kill a job. Call this after Lightning has
    installed its own handler, in which processes would wait for each other in the middle
    of a step; Lightning restores the previous handler when its trainer ends.
    """
    if _is_handled(signal.SIGTERM):
        _handle(signal.SIGTERM, "SIGTERM", stop, signal.SIG_DFL)


def _is_handled(number: signal.Signals) -> bool:
    here = threading.current_thread() is threading.main_thread()
    return here and signal.getsignal(number) not in (signal.SIG_IGN, None)


def _handle(
    number: signal.Signals,
    name: str,
    stop: Stop,
    afterwards: Callable[[int, FrameType | None], object] | signal.Handlers,
) -> None:
    def first(_: int, __: FrameType | None) -> None:
        signal.signal(number, afterwards)
        logger.warning(
            "%s: training ends with the current outer loop and returns its result; a "
            "second one ends it immediately.",
            name,
        )
        stop()

    signal.signal(number, first)
