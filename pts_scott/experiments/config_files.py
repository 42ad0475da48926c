"""From YAML files and options to an experiment: composed, checked, then made.

A config may begin with ``base``, one or several files on which it builds, and ``data``,
``model``, ``optimizers``, ``tune`` and ``variance`` may be the name of a file that holds
them; file names are relative to the file they stand in.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from pts_scott._utils.arguments import nearest
from pts_scott._utils.text import quote
from pts_scott.errors import ArgumentError, ConfigError
from pts_scott.experiments.config import Experiment, OptimizerConfig

LARGEST = 100_000  # values of a config
FILES_FOR = ("data", "model", "optimizers", "tune", "variance")


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read a config, put overrides over it, and check it.

    Parameters
    ----------
    path
        The YAML file.
    overrides
        As on the command line: ``["--time_budget", "5", "--data.stride", "24"]``.

    Raises
    ------
    ConfigError
        If the file cannot be read, or has a key or value that it cannot have; the
        nearest key is named.
    """
    return parse_tree(compose(Path(path)), str(path), overrides)


def parse_tree(
    tree: Mapping[str, Any], where: str, overrides: Sequence[str] = ()
) -> Experiment:
    """Check a composed config, put overrides over it, and make it an experiment.

    ``where`` is its name, for messages; for the rest see `load_experiment`.
    """
    return parse_options(tree, where, overrides, experiment_parser())[0]


def parse_options(
    tree: Mapping[str, Any], where: str, given: Sequence[str], parser: ArgumentParser
) -> tuple[Experiment, Any]:
    """As `parse_tree`, with a parser that knows more options, which come back, too."""
    check_keys(tree, Experiment, where)
    check_overrides(given, parser)
    config = yaml.safe_dump(dict(tree), sort_keys=False)
    try:
        options = parser.parse_args(["--config", config, *given])
        made = vars(parser.instantiate(options))
        names = [f.name for f in dataclasses.fields(Experiment)]
        return Experiment(**{name: made[name] for name in names}).check(), options
    except (argparse.ArgumentError, TypeError) as error:
        raise ConfigError(f"{where}: {plain_message(error)}") from None
    except (ArgumentError, ConfigError) as error:
        raise ConfigError(f"{where}: {error}") from None


def experiment_parser(**kwargs: Any) -> ArgumentParser:
    """A parser that knows the keys and types of an experiment."""
    parser = ArgumentParser(exit_on_error=False, **kwargs)
    parser.add_argument("--config", action="config", help=argparse.SUPPRESS)
    parser.add_class_arguments(Experiment)
    return parser


def compose(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The config of a file with everything that it builds on."""
    if "\0" in str(path):
        raise ConfigError(f"{str(path)!r} cannot be read: it is no name of a file.")
    if path.resolve() in seen:
        raise ConfigError(f"{path} builds on itself; take it out of its 'base'.")
    seen = (*seen, path.resolve())
    tree = read_config(path)
    bases = tree.pop("base", None) or []
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list):
        raise ConfigError(f"{path}: base={quote(bases)}: expected files.")
    merged: dict[str, Any] = {}
    for base in bases:
        merged = _merge(merged, compose(path.parent / str(base), seen))
    # The series of a config, or a config of series alone, which has neither.
    data = tree.get("data") if {"data", "model"} & tree.keys() else tree
    if isinstance(data, dict) and isinstance(data.get("name"), str):
        beside = path.parent / data["name"]
        if beside.is_file():
            data["name"] = str(beside.resolve())
    for key in FILES_FOR:
        if isinstance(tree.get(key), str):
            merged.pop(key, None)  # a file stands for the whole of it
            tree[key] = compose(path.parent / tree[key], seen)
    return _merge(merged, tree)


def read_config(path: Path) -> dict[str, Any]:
    """The keys and values of one file, or what is wrong with it."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ConfigError(f"{path} cannot be read: it is a device, not a file.")
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML: {plain_message(error)}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} is not a config: expected keys with values.")
    _check_size(tree, path)
    return tree


def _check_size(tree: Any, path: Path) -> None:
    """Refuse references to references, which a few lines make endless."""
    left, count = [tree], 0
    while left:
        node, count = left.pop(), count + 1
        if count > LARGEST:
            raise ConfigError(
                f"{path} has more than {LARGEST} values, or refers to itself; write "
                "values in place of YAML's references (&, *)."
            )
        if isinstance(node, dict | list):
            left += node.values() if isinstance(node, dict) else node


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def check_keys(tree: Mapping[str, Any], kind: Any, where: str, prefix: str = "") -> None:
    """Refuse keys that do not exist, with the nearest known one."""
    known = typing.get_type_hints(kind)
    for key, value in tree.items():
        if key not in known:
            raise ConfigError(
                f"{where}: there is no key {prefix + str(key)!r}. "
                f"{nearest(str(key), [*known, 'base'] if not prefix else known)}"
            )
        inner = known[key]
        if dataclasses.is_dataclass(inner):
            _require_mapping(value, where, prefix + key)
            check_keys(value, inner, where, f"{prefix}{key}.")
        elif key == "optimizers":
            _require_mapping(value, where, prefix + key)
            for name, optimizer in value.items():
                _require_mapping(optimizer, where, f"{key}.{name}")
                check_keys(optimizer, OptimizerConfig, where, f"{key}.{name}.")


def _require_mapping(value: Any, where: str, key: str) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {key}={value!r}: expected keys with values.")


def check_overrides(overrides: Sequence[str], parser: ArgumentParser) -> None:
    """Refuse options that do not exist, with the nearest known one."""
    own = [o[2:] for action in parser._actions for o in action.option_strings]
    known = [*_dotted(Experiment), *(o for o in own if o not in ("config", ""))]
    for option in overrides:
        if not option.startswith("--"):
            continue
        key = option[2:].split("=")[0].rstrip("+")
        if re.fullmatch(r"optimizers\.[^.]+\.\w+", key):
            words, name = list(typing.get_type_hints(OptimizerConfig)), key.split(".")[-1]
        elif key.startswith("model.arguments."):
            continue  # which the estimator checks
        else:
            words, name = known, key
        if name not in words:
            raise ConfigError(f"there is no option --{key}. {nearest(name, words)}")


def _dotted(kind: Any, prefix: str = "") -> list[str]:
    words = []
    for name, inner in typing.get_type_hints(kind).items():
        words.append(prefix + name)
        if dataclasses.is_dataclass(inner):
            words += _dotted(inner, f"{prefix}{name}.")
    return words


def plain_message(error: Exception) -> str:
    """A parser's message in one line, without the names of our classes."""
    message = re.sub(r"Problem with given class_path '[^']*':", "", str(error))
    message = re.sub(r"<class '(\w+)'>", r"\1", message)
    message = re.sub(r'Parser key "([^"]*)":', r"\1:", message)
    return " ".join(message.split())
