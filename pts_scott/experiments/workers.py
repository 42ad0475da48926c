"""Work in several processes: results as they come, and nothing begun after Ctrl-C."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pts_scott.errors import ScottError

T = TypeVar("T")


def in_processes(
    function: Callable[..., T], calls: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[tuple[int, T]]:
    """Call a function with each of some arguments, in processes of their own.

    Parameters
    ----------
    function
        A function of a module, as processes can be sent.
    calls
        The arguments of each call.
    workers
        Calls at the same time.

    Yields
    ------
    int, T
        Place of a call and what it returned, as soon as it has.
    """
    spawn = multiprocessing.get_context("spawn")  # a fork copies torch's threads
    pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=spawn)
    try:
        waiting = list(enumerate(calls))[::-1]
        running: dict[concurrent.futures.Future[T], int] = {}
        while waiting or running:
            # No more than can run: what a pool holds ready, it begins after Ctrl-C, too.
            while waiting and len(running) < workers:
                place, call = waiting.pop()
                running[pool.submit(function, *call)] = place
            done, _ = concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                yield running.pop(future), future.result()
    except concurrent.futures.process.BrokenProcessPool:
        raise ScottError(
            "a worker ended without a word, perhaps for want of memory. What was "
            "finished is kept: run the same command again, with fewer --workers."
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
