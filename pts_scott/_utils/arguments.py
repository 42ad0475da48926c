"""Checks of user arguments, made once, where the value enters."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pts_scott.errors import ArgumentError, UnknownArgumentError

F = TypeVar("F", bound=Callable[..., Any])


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a sentence that suggests the name most similar to ``name``, or lists all.

    ``otherwise`` replaces the list, where that would be too long.
    """
    known = list(known)
    names = otherwise or f"Known names: {', '.join(map(repr, known))}."
    return _suggestion(name, known) or names


def _suggestion(name: str, known: list[str]) -> str | None:
    plain = {word.lower(): word for word in known}
    initials = {"".join(part[0] for part in w.split("_")): w for w in known}
    close = difflib.get_close_matches(name.lower(), plain, n=1, cutoff=0.5)
    if close or name in initials:
        word = plain[close[0]] if close else initials[name]
        return f"Did you mean {word!r}?"
    return None


def check_names(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise if an argument name does not exist, and suggest the most similar one."""
    known = list(known)
    for name in given:
        if name not in known:
            raise UnknownArgumentError(
                f"{owner} has no argument {name!r}. {nearest(name, known)}"
            )


def named_arguments(init: F) -> F:
    """Make an ``__init__`` check argument names, and suggest the most similar one.

    When ``init`` is called, ``self.given_arguments`` holds the arguments that were given.
    """
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        check_names(type(self).__name__, kwargs, known)
        self.given_arguments = dict(zip(known, args, strict=False)) | kwargs
        init(self, *args, **kwargs)

    return wrapper  # type: ignore[return-value]


def one_of(name: str, value: object, allowed: Iterable[str]) -> str:
    """Return ``value`` if it is one of the allowed words; raise otherwise."""
    allowed = list(allowed)
    if not isinstance(value, str) or value not in allowed:
        words = ", ".join(map(repr, allowed))
        hint = _suggestion(value, allowed) if isinstance(value, str) else None
        raise ArgumentError(
            f"{name}={value!r}: expected one of {words}.{f' {hint}' if hint else ''}"
        )
    return value


def whole_number(
    name: str, value: object, minimum: int = 1, maximum: int | None = None
) -> int:
    """Return ``value`` as an int from ``minimum`` to ``maximum``; raise otherwise."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    number = int(value) if whole else minimum - 1  # type: ignore[call-overload]
    if number < minimum or (maximum is not None and number > maximum):
        upper = "" if maximum is None else f" and at most {maximum}"
        raise ArgumentError(
            f"{name}={value!r}: expected a whole number of at least {minimum}{upper}."
        )
    return number


def whole_numbers(name: str, values: object) -> list[int]:
    """Return ``values`` as a non-empty list of positive ints; raise otherwise."""
    if isinstance(values, str | numbers.Number) or not isinstance(values, Iterable):
        raise ArgumentError(f"{name}={values!r}: expected a list of whole numbers.")
    checked = [whole_number(name, value) for value in values]
    if not checked:
        raise ArgumentError(f"{name} is empty: give at least one number.")
    return checked


def switch(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False; raise otherwise."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name}={value!r}: expected True or False.")
    return value


def real_number(
    name: str,
    value: object,
    minimum: float = 0.0,
    maximum: float = math.inf,
    *,
    exclusive: bool = False,
) -> float:
    """Return ``value`` as a finite float in the given range; raise otherwise.

    With ``exclusive``, the minimum itself is not allowed.
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if real else math.nan  # type: ignore[arg-type]
    too_small = number <= minimum if exclusive else number < minimum
    if not math.isfinite(number) or too_small or number > maximum:
        lower = f"greater than {minimum:g}" if exclusive else f"of at least {minimum:g}"
        upper = "" if math.isinf(maximum) else f" and at most {maximum:g}"
        raise ArgumentError(f"{name}={value!r}: expected a number {lower}{upper}.")
    return number
