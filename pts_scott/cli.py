"""``pts-scott``: the command line.

Each command takes configs, and every value of a config as an option.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pts_scott import __version__
from pts_scott._utils.arguments import nearest
from pts_scott.errors import ConfigError, ScottError

# Whatever needs torch is imported by the command that needs it.
if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from pts_scott.experiments.config import Experiment

HELP = """usage: pts-scott COMMAND [CONFIG ...] [options]

Trains forecasting models with SCott (stratified sampling with a control variate) and with
the optimizers that it is compared with, for the same training time and on the same data.

commands:
  train     train one optimizer of a config; keep the model, its history and its metrics
  bench     train all optimizers and seeds of some configs; write a table, figures, a page
  tune      choose step sizes on the tuning range, and write the best config
  variance  measure the variance of gradients under several samplers along a training run
  data      list the datasets: which are there, which are missing, how to get them
  report    write the table, figures and page of a bench again

examples:
  pts-scott data
  pts-scott train configs/small-cpu/mlp-exchange_rate.yaml --optimizer S-Adam
  pts-scott bench configs/small-cpu/var-synthetic.yaml --time_budget 5 --seeds [0,1,2]
  pts-scott tune configs/small-cpu/mlp-exchange_rate.yaml --batch_size 32
  pts-scott bench results/tune/mlp-exchange_rate-M32/best.yaml

A config is YAML; configs/README.md explains it. Every value can be given as an option, a
nested one with dots: --data.context_length 48, --optimizers.SCott.learning_rate 0.01.
`pts-scott COMMAND --help` lists them all.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"pts-scott {__version__}")
        return 0
    command, *rest = arguments
    # Of the libraries, about each other; ours are shown.
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
    try:
        if command not in COMMANDS:
            raise ConfigError(f"no command {command!r}. {nearest(command, COMMANDS)}")
        return COMMANDS[command](rest)
    except KeyboardInterrupt:
        kept = command in ("bench", "tune")
        print(
            "\nstopped. What was finished is kept: the same command goes on from there."
            if kept
            else "\nstopped before the end; nothing was written.",
            file=sys.stderr,
        )
        return 130
    except (ScottError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def say(line: str) -> None:
    """A line about the progress; results go to standard output, this does not."""
    print(line, file=sys.stderr, flush=True)


# -- the commands -----------------------------------------------------------------------


def train(arguments: list[str]) -> int:
    """Train one optimizer of a config."""
    parser = _parser(
        "train CONFIG",
        "Train one optimizer of a config. Its folder gets the resolved config, versions, "
        "history, curve, metrics, and the predictor, which GluonTS can load.",
    )
    parser.add_argument(
        "--optimizer", type=str | None, help="Name; not needed if there is one only."
    )
    parser.add_argument(
        "--seed",
        type=int | None,
        help="Of weights and draws; null for the first of the config's.",
    )
    parser.add_argument("--output", type=str, default="results/train", help="Folder.")
    (experiment,), options = _parse(parser, arguments, most=1)

    from pts_scott.experiments.train import train_one

    folder = train_one(
        experiment, options.optimizer, options.seed, Path(options.output), say
    )
    print(folder)
    return 0


def bench(arguments: list[str]) -> int:
    """Train all optimizers and seeds of some configs."""
    parser = _parser(
        "bench CONFIG [CONFIG ...]",
        "Train all optimizers and seeds of some configs for the same time, runs "
        "interleaved, evaluation and compilation apart. Started again, it goes on where "
        "it stopped. The folder gets runs.csv, table.md, backtest.md, figures and "
        "report.html, which holds it all.",
    )
    parser.add_argument("--output", type=str, default="results/bench", help="Folder.")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="Runs at the same time. They slow each other down: compare runs of one "
        "bench only, and leave a core for each.",
    )
    parser.add_argument(
        "--only", type=list[str], default=[], help="Optimizers to run; empty for all."
    )
    parser.add_argument(
        "--samplers",
        type=bool,
        default=True,
        help="Whether to measure the variance of the samplers in a run of its own.",
    )
    experiments, options = _parse(parser, arguments)

    from pts_scott.experiments.bench import bench as make_runs
    from pts_scott.experiments.report.build import write_report

    output = Path(options.output)
    try:
        outcome = make_runs(
            experiments,
            output,
            workers=options.workers,
            only=options.only,
            samplers=options.samplers,
            say=say,
        )
    finally:
        page = write_report(output) if any(output.glob("*/runs/*/run.json")) else None
    print((output / "table.md").read_text(encoding="utf-8"))
    print(f"the page: {page}")
    for failure in outcome.failed:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if outcome.failed else 0


def report(arguments: list[str]) -> int:
    """Write the report of a bench again."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(
        prog="pts-scott report",
        usage="pts-scott report [FOLDER]",
        description="Write the table, figures and page of a bench again.",
        exit_on_error=False,
    )
    parser.add_argument(
        "folder", type=str, nargs="?", default="results/bench", help="Of a bench."
    )
    folder = Path(_parse_plain(parser, arguments).folder)

    from pts_scott.experiments.report.build import write_report

    if not any(folder.glob("*/runs/*/run.json")):
        raise ScottError(f"{folder} holds no runs; `pts-scott bench` makes them.")
    print(write_report(folder))
    return 0


def tune(arguments: list[str]) -> int:
    """Choose step sizes on the tuning range."""
    parser = _parser(
        "tune CONFIG [CONFIG ...]",
        "Choose step size, and γ for methods with an anchor, for every optimizer of a "
        "config from the same grids, by the loss on the last tenth of the training "
        "range; the test range is never used. Hopeless trials are pruned. Started "
        "again, it goes on where it stopped. The best config is written as YAML.",
    )
    parser.add_argument("--output", type=str, default="results/tune", help="Folder.")
    parser.add_argument(
        "--workers", type=int, default=1, help="Optimizers tuned at the same time."
    )
    parser.add_argument(
        "--only", type=list[str], default=[], help="Optimizers to tune; empty for all."
    )
    parser.add_argument(
        "--storage",
        type=str | None,
        help="Of Optuna, for several machines that tune together, e.g. "
        "postgresql://user@host/db; null for a SQLite file in the folder.",
    )
    experiments, options = _parse(parser, arguments)

    from pts_scott.experiments.tune import tune as choose_best

    for experiment in experiments:
        best = choose_best(
            experiment,
            Path(options.output),
            workers=options.workers,
            only=options.only,
            storage=options.storage,
            say=say,
        )
        print(best)
    return 0


def variance(arguments: list[str]) -> int:
    """Measure the variance of the samplers along a training run."""
    parser = _parser(
        "variance CONFIG",
        "Train one optimizer and measure, along the way, the variance of the gradient "
        "under uniform, stratified and control-variate sampling at equal cost, for the "
        "config's stratifier and for those of --variance.stratifiers. Writes a table and "
        "a picture.",
    )
    parser.add_argument("--output", type=str, default="results/variance", help="Folder.")
    (experiment,), options = _parse(parser, arguments, most=1)

    from pts_scott.experiments.sampler_variance import command

    print(command(experiment, Path(options.output), say))
    return 0


def data(arguments: list[str]) -> int:
    """List the datasets, or describe one."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(
        prog="pts-scott data",
        usage="pts-scott data [NAME or FILE] [options]",
        description="Without a name: the datasets that are known, which of them are "
        "there, and how to get the others. With one: its series, gaps and zeros, and "
        "how it is split by time.",
        exit_on_error=False,
    )
    parser.add_argument("name", type=str, nargs="?", default="", help="Or a file.")
    for key, text in (
        ("start", "First moment of a file in LSTNet layout."),
        ("freq", "Frequency, as pandas spells it."),
        ("timestamp", "Column of the timestamps."),
        ("item_id", "Column that names the series of a long table."),
        ("target", "Column of the values of a long table."),
    ):
        parser.add_argument(f"--{key}", type=str | None, help=text)
    parser.add_argument(
        "--constant", type=str, default="keep", help="Series of one value: keep or drop."
    )
    parser.add_argument("--context_length", type=int, default=72, help="Of a window.")
    parser.add_argument("--prediction_length", type=int, default=24, help="Of a window.")
    options = vars(_parse_plain(parser, arguments))

    from pts_scott import datasets

    name = options.pop("name")
    lengths = options.pop("context_length"), options.pop("prediction_length")
    if not name:
        print(datasets.available().to_string(index=False))
        return 0
    series = datasets.load(name, **options)
    print(series.report())
    print(series.split(*lengths))
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "bench": bench,
    "tune": tune,
    "variance": variance,
    "data": data,
    "report": report,
}


# -- arguments --------------------------------------------------------------------------


def _parser(usage: str, description: str) -> ArgumentParser:
    from pts_scott.experiments.config_files import experiment_parser

    command = usage.split(" ")[0]
    return experiment_parser(
        prog=f"pts-scott {command}",
        usage=f"pts-scott {usage} [options]",
        description=description,
    )


def _parse(
    parser: ArgumentParser, arguments: list[str], most: int | None = None
) -> tuple[list[Experiment], Any]:
    """The experiments of the configs before the first option, and the options."""
    if {"-h", "--help"} & set(arguments):
        parser.print_help()
        raise SystemExit(0)
    from pts_scott.experiments.config_files import compose, parse_options

    options = next((i for i, a in enumerate(arguments) if a.startswith("-")), None)
    configs = arguments[:options]
    overrides = arguments[len(configs) :]
    if not configs:
        raise ConfigError(f"a config is missing: {parser.usage}")
    if most is not None and len(configs) > most:
        raise ConfigError(f"{len(configs)} configs, expected {most}: {parser.usage}")
    made = [
        parse_options(compose(Path(path)), path, overrides, parser) for path in configs
    ]
    return [experiment for experiment, _ in made], made[0][1]


def _parse_plain(parser: ArgumentParser, arguments: list[str]) -> Any:
    from pts_scott.experiments.config_files import plain_message

    try:
        return parser.parse_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{plain_message(error)}: {parser.usage}") from None


if __name__ == "__main__":
    sys.exit(main())
