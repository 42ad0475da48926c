"""Ctrl-C: once ends training in good order, twice at once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger(__name__)


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """A block in which the first Ctrl-C calls ``stop``, and the second interrupts.

    Elsewhere than in the main thread, which alone hears of it, nothing changes; nor where
    it is ignored, as by a program that was started in the background.
    """
    before = signal.getsignal(signal.SIGINT)
    here = threading.current_thread() is threading.main_thread()
    if not here or before in (signal.SIG_IGN, None):
        yield
        return

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        logger.warning(
            "Ctrl-C: training ends with the current outer loop and returns what it has; "
            "press it again to end at once."
        )
        stop()

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
