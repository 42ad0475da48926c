"""Warnings of a command: one line each, and only those that its user can act on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from pts_scott.errors import ScottWarning


@contextmanager
def warnings_as_lines(say: Callable[[str], None]) -> Iterator[None]:
    """Pass warnings to ``say``, without those of the libraries about each other."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        ours = issubclass(category, ScottWarning)
        say(f"{'warning' if ours else category.__name__}: {message}")

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
        warnings.filterwarnings("ignore", message="Using a non-tuple sequence")
        warnings.showwarning = show
        yield
