"""An extension of griffe, which reads docstrings for the API reference."""

from __future__ import annotations

from typing import Any

import griffe

VARIADIC = (griffe.ParameterKind.var_positional, griffe.ParameterKind.var_keyword)


class SharedParameters(griffe.Extension):
    """Give each of several parameters that share a description its own type and default.

    For ``learning_rate, weight_decay``, griffe shows the type and default of the first.
    Where a description is "See `Base`.", that of the base class takes its place.
    """

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Correct the parsed docstrings of all classes and functions."""
        _correct(pkg)


def _correct(obj: griffe.Object) -> None:
    for member in obj.members.values():
        if not member.is_alias:
            _correct(member)
    if obj.docstring is None or not (obj.is_class or obj.is_function):
        return
    declared = {parameter.name: parameter for parameter in obj.parameters}
    if not declared:  # a named tuple, whose fields griffe does not take for parameters
        return
    for documented in _documented(obj):
        own = declared.get(documented.name.lstrip("*"))
        if own is not None:
            documented.annotation = own.annotation
            documented.value = None if own.kind in VARIADIC else own.default
        if obj.is_class and documented.description.startswith("See `"):
            documented.description = _inherited(obj, documented.name)


def _documented(obj: griffe.Object) -> list[griffe.DocstringParameter]:
    sections = [] if obj.docstring is None else obj.docstring.parsed
    kind = griffe.DocstringSectionKind.parameters
    return [entry for part in sections if part.kind is kind for entry in part.value]


def _inherited(obj: griffe.Class, name: str) -> str:
    """Return the description of a parameter in the nearest base class that has it."""
    bases = (entry for base in obj.mro() for entry in _documented(base))
    return next(entry.description for entry in bases if entry.name == name)
