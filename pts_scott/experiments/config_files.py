"""From YAML files and options to an experiment: composed, checked, instantiated.

A config may start with ``base``, one or more files that it builds on. Each of ``data``,
``model``, ``optimizers``, ``tune`` and ``variance`` may be the name of a file with that
section, and ``model`` also the name of a model. File names are relative to the file that
contains them.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
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
from pts_scott.experiments.config_checks import check_experiment
from pts_scott.experiments.shipped_configs import find_config

MAX_VALUES = 100_000  # in one config
SECTIONS_IN_FILES = ("data", "model", "optimizers", "tune", "variance")


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read a config, apply overrides, and check the result.

    Parameters
    ----------
    path
        The YAML file, or the name of a config that comes with the package, e.g.
        ``"small-cpu/var-synthetic"``.
    overrides
        As on the command line: ``["--time_budget", "5", "--data.stride", "24"]``.

    Raises
    ------
    ConfigError
        If the file cannot be read, or has an invalid key or value; the message suggests
        the nearest known key.
    """
    return parse_tree(compose(find_config(str(path))), str(path), overrides)


def parse_tree(
    tree: Mapping[str, Any], where: str, overrides: Sequence[str] = ()
) -> Experiment:
    """Check a composed config, apply overrides, and return the experiment.

    ``where`` names the config in error messages; see `load_experiment` for the rest.
    """
    return parse_options(tree, where, overrides, experiment_parser())[0]


def parse_options(
    tree: Mapping[str, Any], where: str, given: Sequence[str], parser: ArgumentParser
) -> tuple[Experiment, Any]:
    """Parse as `parse_tree` does, and return the parser's additional options, too."""
    check_keys(tree, Experiment, where)
    given = _name_models(given)
    check_overrides(given, parser)
    _check_optimizer_names(given, tree.get("optimizers") or {})
    config = yaml.safe_dump(dict(tree), sort_keys=False)
    try:
        options = parser.parse_args(["--config", config, *given])
        values = vars(parser.instantiate(options))
        names = [f.name for f in dataclasses.fields(Experiment)]
        experiment = Experiment(**{name: values[name] for name in names})
        return check_experiment(experiment), options
    except (argparse.ArgumentError, TypeError) as error:
        raise ConfigError(f"{where}: {plain_message(error)}") from None
    except (ArgumentError, ConfigError) as error:
        raise ConfigError(f"{where}: {error}") from None


def experiment_parser(**kwargs: Any) -> ArgumentParser:
    """Return a parser that knows the keys and types of an experiment."""
    parser = ArgumentParser(exit_on_error=False, **kwargs)
    parser.add_argument("--config", action="config", help=argparse.SUPPRESS)
    parser.add_class_arguments(Experiment)
    return parser


# -- reading and composing --------------------------------------------------------------


def compose(path: Path, ancestors: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the config in a file, merged with everything that it builds on."""
    if "\0" in str(path):
        raise ConfigError(f"{str(path)!r} cannot be read: it is not a file name.")
    if path.resolve() in ancestors:
        raise ConfigError(f"{path} builds on itself; remove it from its 'base'.")
    ancestors = (*ancestors, path.resolve())
    tree = read_config(path)
    bases = tree.pop("base", None) or []
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list):
        raise ConfigError(f"{path}: base={quote(bases)}: expected file names.")
    merged: dict[str, Any] = {}
    for base in bases:
        merged = _merge(merged, compose(path.parent / str(base), ancestors))
    _resolve_data_file(tree, path)
    for key in SECTIONS_IN_FILES:
        if isinstance(tree.get(key), str):
            merged.pop(key, None)  # the file replaces the whole section
            if key == "model" and not tree[key].endswith((".yaml", ".yml")):
                tree[key] = {"name": tree[key]}
            else:
                tree[key] = compose(path.parent / tree[key], ancestors)
    return _merge(merged, tree)


def _resolve_data_file(tree: dict[str, Any], path: Path) -> None:
    """Make the paths of data files in the config's folder absolute."""
    # A file with the data section alone has neither of the two keys.
    data = tree.get("data") if {"data", "model"} & tree.keys() else tree
    if not isinstance(data, dict):
        return
    for key in ("name", "static"):
        if isinstance(data.get(key), str) and (path.parent / data[key]).is_file():
            data[key] = str((path.parent / data[key]).resolve())


def read_config(path: Path) -> dict[str, Any]:
    """Return the keys and values of one file; raise if it is not a config."""
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
    """Raise if nested YAML references expand a few lines without bound."""
    stack, count = [tree], 0
    while stack:
        node, count = stack.pop(), count + 1
        if count > MAX_VALUES:
            raise ConfigError(
                f"{path} has more than {MAX_VALUES} values, or refers to itself; write "
                "values instead of YAML references (&, *)."
            )
        if isinstance(node, dict | list):
            stack += node.values() if isinstance(node, dict) else node


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


# -- messages for mistakes --------------------------------------------------------------


def check_keys(tree: Mapping[str, Any], kind: Any, where: str, prefix: str = "") -> None:
    """Raise on an unknown key, with the nearest known one."""
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
    """Raise on an unknown option, with the nearest known one."""
    own = [o[2:] for action in parser._actions for o in action.option_strings]
    known = [*_dotted_keys(Experiment), *(o for o in own if o not in ("config", ""))]
    for option in overrides:
        if not option.startswith("--"):
            continue
        key = option[2:].split("=")[0].rstrip("+")
        if re.fullmatch(r"optimizers\.[^.]+\.\w+", key):
            words, name = list(typing.get_type_hints(OptimizerConfig)), key.split(".")[-1]
            otherwise = ""
        elif key.startswith("model.arguments."):
            continue  # checked by the estimator
        else:
            words, name, otherwise = known, key, "--help lists all options."
        if name not in words:
            hint = nearest(name, words, otherwise)
            raise ConfigError(f"there is no option --{key}. {hint}")


def _check_optimizer_names(overrides: Sequence[str], known: Mapping[str, Any]) -> None:
    """Raise if an option is about an optimizer that nothing defines."""
    given = [re.split(r"[=\s]", option)[0] for option in overrides]
    for option in given:
        match = re.fullmatch(r"--optimizers\.([^.]+)\.\w+", option)
        if match is None or match[1] in known:
            continue
        if f"--optimizers.{match[1]}.method" not in given:
            raise ConfigError(
                f"{option}: the config has no optimizer {match[1]!r}. "
                f"{nearest(match[1], known)}"
            )


def _name_models(overrides: Sequence[str]) -> list[str]:
    """Read ``--model NAME`` as ``--model.name NAME``, as in a config."""
    options = [re.sub(r"^--model=(?!{)", "--model.name=", o) for o in overrides]
    for place, (option, value) in enumerate(itertools.pairwise(options)):
        if option == "--model" and not value.startswith("{"):
            options[place] = "--model.name"
    return options


def _dotted_keys(kind: Any, prefix: str = "") -> list[str]:
    keys = []
    for name, inner in typing.get_type_hints(kind).items():
        keys.append(prefix + name)
        if dataclasses.is_dataclass(inner):
            keys += _dotted_keys(inner, f"{prefix}{name}.")
    return keys


def plain_message(error: Exception) -> str:
    """Return a parser's message in one line, without the names of our classes."""
    message = re.sub(r"Problem with given class_path '[^']*':", "", str(error))
    message = re.sub(r"<class '(\w+)'>", r"\1", message)
    message = re.sub(
        r"Expected a typing\.Literal\[([^]]*)\]", r"Expected one of \1", message
    )
    message = re.sub(r"typing\.Literal\[([^]]*)\]", r"\1", message)
    message = re.sub(r'Parser key "([^"]*)":', r"\1:", message)
    message = message.replace("Expected a list.", "Expected a list, as in [1,2].")
    message = " ".join(message.split())
    return re.sub(
        r"Does not validate against any of the Union subtypes Subtypes: \[(.*)\] "
        r"Errors: .* Given value: ",
        lambda match: f"expected one of {match[1].replace('NoneType', 'null')}; given: ",
        message,
    )
