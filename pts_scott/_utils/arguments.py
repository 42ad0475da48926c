"""Checks of a user's arguments, made once, where the value enters."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pts_scott.errors import ArgumentError, ScottWarning, UnknownArgumentError

F = TypeVar("F", bound=Callable[..., Any])


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence naming the known word nearest to ``name``, or all of them."""
    known = list(known)
    plain = {word.lower(): word for word in known}
    initials = {"".join(part[0] for part in w.split("_")): w for w in known}
    close = difflib.get_close_matches(name.lower(), plain, n=1, cutoff=0.5)
    if close or name in initials:
        word = plain[close[0]] if close else initials[name]
        return f"Did you mean {word!r}?"
    return f"Known are: {', '.join(map(repr, known))}."


def check_names(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments that do not exist, with the nearest known name."""
    known = list(known)
    for name in given:
        if name not in known:
            raise UnknownArgumentError(
                f"{owner} has no argument {name!r}. {nearest(name, known)}"
            )


def named_arguments(init: F) -> F:
    """Make an ``__init__`` refuse unknown arguments with the nearest known name.

    The arguments that were given are in ``given_arguments`` when it is called.
    """
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        check_names(type(self).__name__, kwargs, known)
        self.given_arguments = dict(zip(known, args, strict=False)) | kwargs
        init(self, *args, **kwargs)

    return wrapper  # type: ignore[return-value]


#: Arguments of the libraries' data loaders that mean nothing where nothing is loaded.
LOADER_ARGUMENTS = ("num_workers", "prefetch_factor", "shuffle_buffer_length")


def warn_unused_loader(given: Mapping[str, Any], stacklevel: int = 4) -> None:
    """Warn of loader arguments that have no effect, in one sentence."""
    unused = [f"{k}={given[k]!r}" for k in LOADER_ARGUMENTS if given.get(k)]
    if unused:
        warnings.warn(
            f"{', '.join(unused)} {'have' if len(unused) > 1 else 'has'} no effect: "
            "windows are drawn uniformly and gathered as tensors, without a data loader.",
            ScottWarning,
            stacklevel=stacklevel,
        )


def one_of(name: str, value: object, allowed: Iterable[str]) -> str:
    """``value`` if it is one of the allowed words."""
    allowed = list(allowed)
    if not isinstance(value, str) or value not in allowed:
        words = ", ".join(map(repr, allowed))
        hint = f" {nearest(value, allowed)}" if isinstance(value, str) else ""
        hint = "" if "Known are" in hint else hint
        raise ArgumentError(f"{name}={value!r}: expected one of {words}.{hint}")
    return value


def whole_number(
    name: str, value: object, minimum: int = 1, maximum: int | None = None
) -> int:
    """``value`` as an int of at least ``minimum``."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    number = int(value) if whole else minimum - 1  # type: ignore[call-overload]
    if number < minimum or (maximum is not None and number > maximum):
        upper = "" if maximum is None else f" and at most {maximum}"
        raise ArgumentError(
            f"{name}={value!r}: expected a whole number of at least {minimum}{upper}."
        )
    return number


def whole_numbers(name: str, values: object) -> list[int]:
    """``values`` as a list of at least one int of at least one."""
    if isinstance(values, str | numbers.Number) or not isinstance(values, Iterable):
        raise ArgumentError(f"{name}={values!r}: expected a list of whole numbers.")
    numbers_given = [whole_number(name, value) for value in values]
    if not numbers_given:
        raise ArgumentError(f"{name} is empty: give at least one number.")
    return numbers_given


def switch(name: str, value: object) -> bool:
    """``value`` if it is True or False."""
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
    """``value`` as a finite float between ``minimum`` and ``maximum``.

    With ``exclusive`` the minimum itself is refused.
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if real else math.nan  # type: ignore[arg-type]
    too_small = number <= minimum if exclusive else number < minimum
    if not math.isfinite(number) or too_small or number > maximum:
        lower = f"more than {minimum:g}" if exclusive else f"at least {minimum:g}"
        upper = "" if math.isinf(maximum) else f" and at most {maximum:g}"
        raise ArgumentError(f"{name}={value!r}: expected a number of {lower}{upper}.")
    return number
