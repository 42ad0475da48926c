"""Parser of policies in configs and on the command line: ``ranges(4) * series()``.

The text is the ``repr`` of a policy, with or without ``Stratifier.`` before each name.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping

from pts_scott._utils.arguments import nearest
from pts_scott._utils.text import quote
from pts_scott.errors import ArgumentError
from pts_scott.strata.policy import Policy

Factories = Mapping[str, Callable[..., Policy]]


def parse_policy(text: str, factories: Factories) -> Policy:
    """Return the policy that a text describes.

    Parameters
    ----------
    text
        A product of calls with literal arguments: ``calendar("weekday", "season")``,
        ``ranges(4) * series()``.
    factories
        The functions that may be called, by name.

    Raises
    ------
    ArgumentError
        If the text is not of this form. Errors about a policy's arguments pass through.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _not_a_policy(text, factories) from None
    try:
        return _build(tree, text, factories)
    except RecursionError:
        raise _not_a_policy(text, factories) from None


def _build(node: ast.expr, text: str, factories: Factories) -> Policy:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = (_build(side, text, factories) for side in (node.left, node.right))
        return left * right
    if not isinstance(node, ast.Call):
        raise _not_a_policy(text, factories)
    name = _factory_name(node.func, text, factories)
    try:
        arguments = [ast.literal_eval(argument) for argument in node.args]
        named = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    except (ValueError, TypeError):
        raise _not_a_policy(text, factories) from None
    make = factories[name]
    try:
        inspect.signature(make).bind(*arguments, **named)
    except TypeError as error:
        signature = str(inspect.signature(make)).split(" ->")[0]
        raise ArgumentError(
            f"stratifier {quote(text)}: {error}; the signature is {name}{signature}."
        ) from None
    return make(*arguments, **named)


def _factory_name(node: ast.expr, text: str, factories: Factories) -> str:
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Stratifier"
    ):
        name = node.attr
    elif isinstance(node, ast.Name):
        name = node.id
    else:
        raise _not_a_policy(text, factories)
    if name not in factories:
        raise ArgumentError(
            f"stratifier {quote(text)}: there is no policy {quote(name)}. "
            f"{nearest(name, factories)}"
        )
    return name


def _not_a_policy(text: str, factories: Factories) -> ArgumentError:
    return ArgumentError(
        f'stratifier {quote(text)}: expected a policy such as calendar("weekday", '
        f'"season") or ranges(4) * series(). Policies are {", ".join(factories)}.'
    )
