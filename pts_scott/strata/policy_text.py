"""Policies as text, for configs and the command line: ``ranges(4) * series()``.

The text is what a policy prints as, with or without ``Stratifier.`` before each name.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any

from pts_scott._utils.arguments import nearest
from pts_scott._utils.text import quote
from pts_scott.errors import ArgumentError
from pts_scott.strata.stratifier import Stratifier

NAMES = ("calendar", "periodic", "ranges", "series", "random", "finest", "kmeans")


def parse_policy(text: str) -> Stratifier:
    """The policy that a text names.

    Parameters
    ----------
    text
        Calls of policies with plain arguments, multiplied: ``calendar("weekday",
        "season")``, ``ranges(4) * series()``.

    Raises
    ------
    ArgumentError
        If it is no such text; an error of the policy's own arguments passes through.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _not_a_policy(text) from None
    try:
        return _build(tree, text)
    except RecursionError:
        raise _not_a_policy(text) from None


def _build(node: ast.expr, text: str) -> Stratifier:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _build(node.left, text) * _build(node.right, text)
    if not isinstance(node, ast.Call):
        raise _not_a_policy(text)
    name = _name(node.func, text)
    try:
        arguments = [ast.literal_eval(argument) for argument in node.args]
        named = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    except (ValueError, TypeError):
        raise _not_a_policy(text) from None
    make: Any = getattr(Stratifier, name)
    try:
        inspect.signature(make).bind(*arguments, **named)
    except TypeError as error:
        signature = str(inspect.signature(make)).split(" ->")[0]
        raise ArgumentError(
            f"stratifier {quote(text)}: {error}; it is {name}{signature}."
        ) from None
    policy: Stratifier = make(*arguments, **named)
    return policy


def _name(node: ast.expr, text: str) -> str:
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Stratifier"
    ):
        name = node.attr
    elif isinstance(node, ast.Name):
        name = node.id
    else:
        raise _not_a_policy(text)
    if name not in NAMES:
        raise ArgumentError(
            f"stratifier {quote(text)}: there is no policy {quote(name)}. "
            f"{nearest(name, NAMES)}"
        )
    return name


def _not_a_policy(text: str) -> ArgumentError:
    return ArgumentError(
        f'stratifier {quote(text)}: expected a policy such as calendar("weekday", '
        f'"season") or ranges(4) * series(). Policies are {", ".join(NAMES)}.'
    )
