"""Short texts for error messages: long values and foreign errors, cut to fit."""

from __future__ import annotations

from collections.abc import Sequence


def quote(value: object, limit: int = 80) -> str:
    """Return the ``repr`` of a value, truncated if it is long."""
    text = repr(value)
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text)} characters)"


def one_line(error: BaseException, limit: int = 300) -> str:
    """Return another library's error message on one line, truncated if it is long."""
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= limit else f"{text[:limit]}…"


def cause(error: BaseException) -> str:
    """Return the class and the message of another library's error on one line."""
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shorten(items: Sequence[object], limit: int = 5) -> str:
    """Return the first items of a list, quoted: ``'a', 'b', … (7 in all)``."""
    shown = ", ".join(map(quote, items[:limit]))
    return shown if len(items) <= limit else f"{shown}, … ({len(items)} in all)"
