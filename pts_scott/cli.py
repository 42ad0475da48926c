"""The command line ``pts-scott``.

Each command takes configs, and every value of a config as an option.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tqdm import tqdm

from pts_scott import __version__
from pts_scott._utils.arguments import nearest
from pts_scott._utils.warning_lines import warnings_as_lines
from pts_scott.errors import ConfigError, ScottError

# Modules that need torch are imported by the command that needs them, so that the help
# and most error messages appear without delay.

HELP = """usage: pts-scott COMMAND [CONFIG ...] [options]

Train forecasting models with SCott (stratified sampling with a control variate) and with
baseline optimizers, for the same training time and on the same data.

commands:
  train     train one optimizer of a config; save the model, its history and its metrics
  bench     train all optimizers and seeds of some configs; write tables and a report
  tune      choose step sizes on the tuning range, and write the best config
  diagnose  in under a minute: would strata, spread allocation or a control variate help?
  variance  measure the variance of gradients under several samplers along a SCott run
  models    list the models that a config can name, or the arguments of one
  configs   list the configs that come with the package
  data      list the datasets: available, missing, and how to get them
  report    rewrite the tables, figures and HTML report of a benchmark

examples:
  pts-scott data
  pts-scott diagnose small-cpu/mlp-exchange_rate
  pts-scott train small-cpu/mlp-exchange_rate --optimizer S-Adam
  pts-scott bench small-cpu/var-synthetic --time_budget 5 --seeds [0,1,2]
  pts-scott tune small-cpu/mlp-exchange_rate --batch_size 32
  pts-scott bench results/tune/mlp-exchange_rate-M32/best.yaml

A config is a YAML file, or the name of one that comes with the package. Every value can
be overridden by an option, nested values with dots: --data.context_length 48,
--optimizers.SCott.learning_rate 0.01. `pts-scott COMMAND --help` lists all options.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"pts-scott {__version__}")
        return 0
    command, *rest = arguments
    try:
        if command not in COMMANDS:
            raise ConfigError(f"no command {command!r}. {nearest(command, COMMANDS)}")
        with warnings_as_lines(say):
            return COMMANDS[command](rest)
    except KeyboardInterrupt:
        say(
            "\ninterrupted. Everything finished so far is kept; run the same command "
            "again to resume."
            if command in ("bench", "tune")
            else "\ninterrupted; nothing was written."
        )
        return 130
    except (ScottError, OSError) as error:
        say(f"error: {error}")
        return 1


def say(line: str) -> None:
    """Write a progress line to standard error, above any progress bar."""
    tqdm.write(line, file=sys.stderr)


# -- the commands -----------------------------------------------------------------------


def train(arguments: list[str]) -> int:
    """Train one optimizer of a config."""
    from pts_scott.experiments.command_line import experiment_command, parse_experiments
    from pts_scott.experiments.train import train_one

    parser = experiment_command(
        "train CONFIG",
        "Train one optimizer of a config. Write a folder with the resolved config, "
        "versions, history, curve, metrics, and the predictor, which GluonTS can load.",
        output="results/train",
    )
    parser.add_argument(
        "--optimizer",
        type=str | None,
        help="Name of the optimizer; optional if the config has only one.",
    )
    parser.add_argument(
        "--seed",
        type=int | None,
        help="Seed of weights and draws; null for the config's first.",
    )
    (experiment,), options = parse_experiments(parser, arguments, max_configs=1)
    folder = train_one(
        experiment, options.optimizer, options.seed, Path(options.output), say
    )
    print(folder)
    return 0


def bench(arguments: list[str]) -> int:
    """Train all optimizers and seeds of some configs."""
    from pts_scott.experiments.bench import bench as make_runs
    from pts_scott.experiments.command_line import experiment_command, parse_experiments
    from pts_scott.experiments.report.build import write_report

    parser = experiment_command(
        "bench CONFIG [CONFIG ...]",
        "Train all optimizers and seeds of some configs for the same time, excluding "
        "evaluation and compilation. Runs are interleaved; started again, the command "
        "resumes where it stopped. Write report.html, which contains everything, and the "
        "tables (CSV, Markdown) and figures that it is made of.",
        output="results/bench",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="Number of parallel runs. They slow each other down: compare only runs of "
        "one benchmark, and use no more workers than cores.",
    )
    parser.add_argument(
        "--only", type=list[str], default=[], help="Optimizers to run; empty for all."
    )
    parser.add_argument(
        "--samplers",
        type=bool,
        default=True,
        help="Whether to measure the variance of the samplers, in a separate run.",
    )
    experiments, options = parse_experiments(parser, arguments)
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
    print(f"report: {page}")
    for failure in outcome.failed:
        say(f"failed: {failure}")
    return 1 if outcome.failed else 0


def report(arguments: list[str]) -> int:
    """Rewrite the report of a benchmark."""
    from jsonargparse import ArgumentParser

    from pts_scott.experiments.command_line import parse_arguments
    from pts_scott.experiments.report.build import write_report

    parser = ArgumentParser(
        prog="pts-scott report",
        usage="pts-scott report [FOLDER]",
        description="Rewrite the tables, figures and HTML report of a benchmark.",
        exit_on_error=False,
    )
    parser.add_argument(
        "folder",
        type=str,
        nargs="?",
        default="results/bench",
        help="Folder of the benchmark.",
    )
    folder = Path(parse_arguments(parser, arguments).folder)
    if not any(folder.glob("*/runs/*/run.json")):
        raise ScottError(
            f"{folder} holds no runs; pass the folder of a benchmark, e.g. "
            "results/bench, or create one with `pts-scott bench`."
        )
    print(write_report(folder))
    return 0


def tune(arguments: list[str]) -> int:
    """Choose step sizes on the tuning range."""
    from pts_scott.experiments.command_line import experiment_command, parse_experiments
    from pts_scott.experiments.tune import tune as choose_best

    parser = experiment_command(
        "tune CONFIG [CONFIG ...]",
        "Choose the step size, and γ for methods with an anchor, from the same grids "
        "for all optimizers of a config, by the loss on the last tenth of the training "
        "range; the test range is never used. Poor trials are pruned; started again, "
        "the command resumes where it stopped. Write the best config as YAML.",
        output="results/tune",
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="Number of optimizers tuned in parallel."
    )
    parser.add_argument(
        "--only", type=list[str], default=[], help="Optimizers to tune; empty for all."
    )
    parser.add_argument(
        "--storage",
        type=str | None,
        help="Optuna's storage URL, to tune on several machines together, e.g. "
        "postgresql://user@host/db; null for a SQLite file in the folder.",
    )
    experiments, options = parse_experiments(parser, arguments)
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


def diagnose(arguments: list[str]) -> int:
    """Measure what samplers would do to the variance of gradients."""
    from pts_scott.experiments.command_line import experiment_command, parse_experiments
    from pts_scott.experiments.diagnose import command

    parser = experiment_command(
        "diagnose CONFIG",
        "Train the model of a config briefly with Adam, and measure its gradients at the "
        "start, after a tenth of the steps and at the end: the noise scale, and the "
        "variance of mini-batches from several strata with proportional and spread "
        "allocation, and of a control variate, relative to uniform mini-batches. Print a "
        "table and one sentence of advice; write diagnosis.csv and diagnosis.png.",
        output="results/diagnose",
    )
    parser.add_argument("--steps", type=int, default=500, help="Steps of training.")
    parser.add_argument(
        "--windows",
        type=int,
        default=1024,
        help="Windows whose gradients are measured, three times.",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="Seed of weights, draws and sketches."
    )
    (experiment,), options = parse_experiments(parser, arguments, max_configs=1)
    diagnosis, folder = command(
        experiment,
        options.steps,
        options.windows,
        options.seed,
        Path(options.output),
        say,
    )
    print(f"{diagnosis}\n\n{folder}")
    return 0


def variance(arguments: list[str]) -> int:
    """Measure the variance of the samplers during a training run."""
    from pts_scott.experiments.command_line import experiment_command, parse_experiments
    from pts_scott.experiments.sampler_variance import command

    parser = experiment_command(
        "variance CONFIG",
        "Train one optimizer and, during training, measure the variance of the gradient "
        "under uniform, stratified and control-variate sampling at equal cost, for the "
        "config's stratifier and those in --variance.stratifiers. Write a table and a "
        "figure. `pts-scott diagnose` is the short answer: it needs no such run.",
        output="results/variance",
    )
    (experiment,), options = parse_experiments(parser, arguments, max_configs=1)
    print(command(experiment, Path(options.output), say))
    return 0


def models(arguments: list[str]) -> int:
    """List the models that a config can name, or the arguments of one."""
    from jsonargparse import ArgumentParser

    from pts_scott.experiments.command_line import parse_arguments
    from pts_scott.experiments.models import describe_model, list_models

    parser = ArgumentParser(
        prog="pts-scott models",
        usage="pts-scott models [NAME]",
        description="Without a name: list the models that a config can name. With a "
        "name: list the arguments that model.arguments may have.",
        exit_on_error=False,
    )
    parser.add_argument("name", type=str, nargs="?", default="", help="Name of a model.")
    name = parse_arguments(parser, arguments).name
    print(describe_model(name) if name else list_models())
    return 0


def configs(arguments: list[str]) -> int:
    """List the configs that come with the package."""
    from pts_scott.experiments.shipped_configs import shipped_configs

    if arguments:
        raise ConfigError("usage: pts-scott configs")
    for name, path in shipped_configs().items():
        print(f"{name:<40}  {path}")
    return 0


def data(arguments: list[str]) -> int:
    """List the datasets, or describe one."""
    from jsonargparse import ArgumentParser

    from pts_scott import datasets
    from pts_scott.experiments.command_line import parse_arguments

    parser = ArgumentParser(
        prog="pts-scott data",
        usage="pts-scott data [NAME or FILE] [options]",
        description="Without a name: list the known datasets, which of them are "
        "available, and how to get the others. With a name: describe its series, gaps "
        "and zeros, and its split by time.",
        exit_on_error=False,
    )
    parser.add_argument(
        "name", type=str, nargs="?", default="", help="Name of a dataset, or a file."
    )
    for key, text in (
        ("start", "First timestamp of a file in LSTNet layout."),
        ("freq", "Frequency, as a pandas alias."),
        ("timestamp", "Timestamp column."),
        ("item_id", "Column of series names in a long table."),
        ("target", "Value column of a long table."),
    ):
        parser.add_argument(f"--{key}", type=str | None, help=text)
    parser.add_argument(
        "--constant",
        type=str,
        default="keep",
        help="How to handle series with a single distinct value: keep, drop or error.",
    )
    for key, length, text in (
        ("context_length", 72, "Time steps of a window before the forecast start."),
        ("prediction_length", 24, "Time steps of a window to be forecast."),
    ):
        parser.add_argument(f"--{key}", type=int, default=length, help=text)
    options = vars(parse_arguments(parser, arguments))
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
    "diagnose": diagnose,
    "variance": variance,
    "models": models,
    "configs": configs,
    "data": data,
    "report": report,
}


if __name__ == "__main__":
    sys.exit(main())
