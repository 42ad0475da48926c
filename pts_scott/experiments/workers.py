"""Work in several processes: results as they arrive, and nothing started after Ctrl-C."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pts_scott.errors import ScottError

T = TypeVar("T")
SHOW_SECONDS = 10.0


def in_processes(
    function: Callable[..., T],
    calls: Sequence[tuple[Any, ...]],
    workers: int,
    show: Callable[[], object] | None = None,
) -> Iterator[tuple[int, T]]:
    """Call a function in separate processes.

    Parameters
    ----------
    function
        A module-level function, which can be sent to a process.
    calls
        The arguments of each call.
    workers
        Maximum number of simultaneous calls.
    show
        Called every few seconds while waiting, to show progress.

    Yields
    ------
    int, T
        Index of a call and its return value, as soon as it is available.
    """
    spawn = multiprocessing.get_context("spawn")  # a fork copies torch's threads
    pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=spawn)
    try:
        waiting = list(enumerate(calls))[::-1]
        running: dict[concurrent.futures.Future[T], int] = {}
        while waiting or running:
            # Submit no more than can run: a pool starts queued calls even after Ctrl-C.
            while waiting and len(running) < workers:
                index, call = waiting.pop()
                running[pool.submit(function, *call)] = index
            done, _ = concurrent.futures.wait(
                running, SHOW_SECONDS, concurrent.futures.FIRST_COMPLETED
            )
            if not done and show is not None:
                show()
            for future in done:
                yield running.pop(future), future.result()
    except concurrent.futures.process.BrokenProcessPool:
        raise ScottError(
            "a worker process died unexpectedly (out of memory?). Everything finished so "
            "far is kept: run the same command again, with fewer --workers."
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
