"""Arguments of the commands: configs first, then any of their values as options."""

from __future__ import annotations

import argparse
from typing import Any

from jsonargparse import ArgumentParser

from pts_scott.errors import ConfigError
from pts_scott.experiments.config import Experiment
from pts_scott.experiments.config_files import (
    compose,
    experiment_parser,
    parse_options,
    plain_message,
)
from pts_scott.experiments.shipped_configs import find_config


def experiment_command(usage: str, description: str, output: str) -> ArgumentParser:
    """Return the parser of a command that takes configs.

    Parameters
    ----------
    usage
        The command and its positional arguments.
    description
        Description of the command in its help.
    output
        Default folder of the results.
    """
    command = usage.split(" ")[0]
    parser = experiment_parser(
        prog=f"pts-scott {command}",
        usage=f"pts-scott {usage} [options]",
        description=description,
    )
    parser.add_argument(
        "--output", type=str, default=output, help="Folder of the results."
    )
    return parser


def parse_experiments(
    parser: ArgumentParser, arguments: list[str], max_configs: int | None = None
) -> tuple[list[Experiment], Any]:
    """Return the experiments of the configs before the first option, and the options.

    The options override values in each of the configs.
    """
    if {"-h", "--help"} & set(arguments):
        parser.print_help()
        raise SystemExit(0)
    options = next((i for i, a in enumerate(arguments) if a.startswith("-")), None)
    configs = arguments[:options]
    overrides = arguments[len(configs) :]
    if not configs:
        order = "; it comes before the options" if overrides else ""
        raise ConfigError(f"a config is missing{order}: {parser.usage}")
    if max_configs is not None and len(configs) > max_configs:
        raise ConfigError(
            f"{len(configs)} configs, expected {max_configs}: {parser.usage}"
        )
    parsed = [
        parse_options(compose(find_config(name)), name, overrides, parser)
        for name in configs
    ]
    return [experiment for experiment, _ in parsed], parsed[0][1]


def parse_arguments(parser: ArgumentParser, arguments: list[str]) -> Any:
    """Return the options of a command without configs."""
    try:
        return parser.parse_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{plain_message(error)}: {parser.usage}") from None
