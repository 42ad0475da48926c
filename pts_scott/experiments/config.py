"""Configs of experiments: YAML that is composed, checked and made into dataclasses.

A config names its data, its model and its optimizers, and how long and how often they
are trained. It may begin with ``base``, one or several files on which it builds, and
``data``, ``model``, ``optimizers``, ``tune`` and ``variance`` may be the name of a file
that holds them; file names are relative to the file they stand in.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentParser

from pts_scott._arguments import nearest, real_number, whole_number
from pts_scott.errors import ArgumentError, ConfigError
from pts_scott.stratifier import Stratifier

# The paper's grids, for every optimizer alike.
LEARNING_RATES = (1e-1, 5e-2, 2.5e-2, 1e-2, 5e-3, 2.5e-3, 1e-3, 5e-4, 2.5e-4, 1e-4)
GAMMAS = (0.1, 0.125, 0.15, 0.2, 0.4, 0.8)


@dataclass
class DataConfig:
    """The series, and how they are cut into windows and strata.

    Parameters
    ----------
    name
        A dataset known by name (`pts-scott data` lists them), or a file: LSTNet layout
        (.txt, .txt.gz), CSV or Parquet in long or wide form.
    context_length
        Steps that the model sees.
    prediction_length
        Steps that it forecasts.
    stride
        Steps between the forecast starts of neighbouring windows.
    stratifier
        The policy, e.g. calendar("weekday", "season") or ranges(4) * series(); null for
        a calendar policy that suits the frequency.
    start
        First moment of a file in LSTNet layout, which has no dates.
    freq
        Frequency as pandas spells it; null to read it from the timestamps.
    timestamp
        Column of the timestamps; null to find it.
    item_id
        Column that names the series of a long table; null for a wide table, or to find
        it.
    target
        Column of the values of a long table; null to find it.
    constant
        What to do with a series of one value only: "error", "drop" or "keep".
    seed
        Of data that are generated.
    """

    name: str
    context_length: int = 72
    prediction_length: int = 24
    stride: int = 1
    stratifier: str | None = None
    start: str | None = None
    freq: str | None = None
    timestamp: str | None = None
    item_id: str | None = None
    target: str | None = None
    constant: Literal["error", "drop", "keep"] = "error"
    seed: int = 0


@dataclass
class ModelConfig:
    """The model and its arguments.

    Parameters
    ----------
    name
        "mlp" (SimpleFeedForward, NLL), "nbeats" (MAPE), "lstm" or "var" (MSE).
    arguments
        Of the estimator, e.g. {hidden_dimensions: [80, 80]}.
    label
        Name in tables and pictures; null for the model's own.
    """

    name: Literal["mlp", "nbeats", "lstm", "var"]
    arguments: dict[str, Any] = field(default_factory=dict)
    label: str | None = None


@dataclass
class OptimizerConfig:
    """One of the optimizers that are compared, as `ScottTrainer` takes it.

    Parameters
    ----------
    method
        How gradients are estimated: "scott", "scsg", "svrg", "stratified" or "plain".
    optimizer
        What makes a step of them: "sgd", "adam" or "adagrad".
    learning_rate
        Step size.
    weight_decay
        As in the paper.
    gamma
        γ, early stop of the inner loop; null for none.
    anchor_batch_size
        b, windows from each stratum.
    inner_steps
        K, the most inner steps between two anchors.
    inner_length
        "fixed" or "geometric".
    coefficient
        c of the control variate, or "linear".
    clip_gradient
        Largest norm of an update; null for no clipping.
    betas
        β₁ and β₂ of Adam; null for 0.9 and 0.999.
    """

    method: Literal["scott", "scsg", "svrg", "stratified", "plain"]
    optimizer: Literal["sgd", "adam", "adagrad"]
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    gamma: float | None = 0.125
    anchor_batch_size: int = 1
    inner_steps: int = 20
    inner_length: Literal["fixed", "geometric"] = "fixed"
    coefficient: float | Literal["linear"] = 1.0
    clip_gradient: float | None = None
    betas: list[float] | None = None


@dataclass
class TuneConfig:
    """How step sizes are chosen, on the tuning range.

    Parameters
    ----------
    time_budget
        Seconds of training of one trial; null for the experiment's.
    learning_rate
        The grid of step sizes.
    gamma
        The grid of γ, for methods with an anchor; empty to leave γ as it is.
    betas
        The grid of β₁ and β₂ of Adam, each; empty to leave them as they are.
    search
        "grid": every combination. "coordinate": all step sizes first, then γ at the best
        of them (then β): 16 trials in place of 60.
    evaluations
        Times at which a trial is measured, and pruned if it is hopeless.
    seeds
        Seeds of a trial; the mean of their losses counts.
    """

    time_budget: float | None = None
    learning_rate: list[float] = field(default_factory=lambda: list(LEARNING_RATES))
    gamma: list[float] = field(default_factory=lambda: list(GAMMAS))
    betas: list[float] = field(default_factory=list)
    search: Literal["grid", "coordinate"] = "grid"
    evaluations: int = 5
    seeds: list[int] = field(default_factory=lambda: [1000])


@dataclass
class VarianceConfig:
    """How the variance of the samplers is measured along a training run.

    Parameters
    ----------
    optimizer
        The optimizer that trains meanwhile; null for the first that has an anchor.
    stratifiers
        Further policies to compare with the experiment's own.
    points
        Measurements along the run.
    gradients
        Gradients a step at which the samplers are compared; null for what a step of
        SCott costs here: 2 M + B b / K.
    sample
        Windows drawn to measure the variance under uniform sampling.
    per_stratum
        Windows drawn from each stratum.
    seed
        Of the run and of these draws.
    """

    optimizer: str | None = None
    stratifiers: list[str] = field(default_factory=list)
    points: int = 10
    gradients: int | None = None
    sample: int = 1024
    per_stratum: int = 8
    seed: int = 0


@dataclass
class Experiment:
    """One setting: a model on a dataset, trained by several optimizers and seeds.

    Parameters
    ----------
    data
        The series, windows and strata.
    model
        The model.
    optimizers
        The optimizers by name; change one on the command line with
        --optimizers.SCott.learning_rate 0.01.
    name
        Of the setting; null for model, dataset and M.
    batch_size
        M, windows in a uniform mini-batch.
    time_budget
        Seconds of training, the same for all; null for a budget of gradients alone.
    gradient_budget
        Gradients of a run, the same for all; null for a budget of seconds alone.
    seeds
        One run for each optimizer and seed.
    evaluations
        Points of a curve, equally spaced over the budget.
    curve_windows
        Windows, evenly spread, on which the points of a curve are measured; null for
        all.
    evaluation_windows
        Windows, evenly spread, on which the losses of the table are measured; null for
        all.
    backtest_samples
        Sample paths of the GluonTS backtest; 0 for no backtest.
    compile
        Whether to compile the steps; "auto" for where it repays.
    threads
        Threads of a run on the CPU.
    device
        "auto", "cpu", "cuda" or "cuda:1".
    tune
        How step sizes are chosen.
    variance
        How the variance of the samplers is measured.
    """

    data: DataConfig
    model: ModelConfig
    optimizers: dict[str, OptimizerConfig]
    name: str | None = None
    batch_size: int = 1
    time_budget: float | None = 30.0
    gradient_budget: int | None = None
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4])
    evaluations: int = 20
    curve_windows: int | None = 1024
    evaluation_windows: int | None = None
    backtest_samples: int = 100
    compile: bool | Literal["auto"] = "auto"
    threads: int | Literal["auto"] = 1
    device: str = "auto"
    tune: TuneConfig = field(default_factory=TuneConfig)
    variance: VarianceConfig = field(default_factory=VarianceConfig)

    @property
    def setting(self) -> str:
        """Name of the setting, good for a folder."""
        data = Path(self.data.name).name
        name = self.name or f"{self.model_label.lower()}-{data}-M{self.batch_size}"
        return re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "setting"

    @property
    def model_label(self) -> str:
        """Name of the model in tables and pictures."""
        own = {"mlp": "MLP", "nbeats": "N-BEATS", "lstm": "LSTM", "var": "VAR"}
        return self.model.label or own[self.model.name]

    def stratifier(self) -> Stratifier | None:
        """The policy; None for the default of the frequency."""
        text = self.data.stratifier
        return None if text is None else Stratifier.parse(text)

    def check(self) -> Experiment:
        """Look at what types cannot say, before anything runs.

        Raises
        ------
        ArgumentError, ConfigError
        """
        _check_counts(self)
        if not self.optimizers:
            raise ConfigError("optimizers is empty: name at least one.")
        for name in ("seeds", "tune.seeds", "tune.learning_rate"):
            owner = self.tune if name.startswith("tune.") else self
            values = getattr(owner, name.removeprefix("tune."))
            if not values or len(set(values)) < len(values):
                raise ConfigError(f"{name}={values}: expected one or more, each once.")
        if self.time_budget is None and self.gradient_budget is None:
            raise ConfigError(
                "time_budget and gradient_budget are both null: give one of them, or "
                "training would never end."
            )
        folders = {re.sub(r"\W+", "-", n).lower() for n in self.optimizers}
        if len(folders) < len(self.optimizers):
            raise ConfigError(
                f"optimizers {', '.join(map(repr, self.optimizers))}: two of them would "
                "have one folder; give them names that differ in letters or digits."
            )
        self.stratifier()
        for text in self.variance.stratifiers:
            Stratifier.parse(text)
        return self

    def dump(self) -> str:
        """The config as YAML; reading it gives the same experiment."""
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, width=88)


def _check_counts(experiment: Experiment) -> None:
    counts = (
        ("batch_size", experiment.batch_size, 1),
        ("gradient_budget", experiment.gradient_budget, 1),
        ("evaluations", experiment.evaluations, 1),
        ("curve_windows", experiment.curve_windows, 1),
        ("evaluation_windows", experiment.evaluation_windows, 1),
        ("backtest_samples", experiment.backtest_samples, 0),
        ("tune.evaluations", experiment.tune.evaluations, 1),
        ("variance.points", experiment.variance.points, 1),
    )
    for name, value, minimum in counts:
        if value is not None:
            whole_number(name, value, minimum)
    for name, seconds in (
        ("time_budget", experiment.time_budget),
        ("tune.time_budget", experiment.tune.time_budget),
    ):
        if seconds is not None:
            real_number(name, seconds, exclusive=True)


# -- from files to an experiment ------------------------------------------------------

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
    if path.resolve() in seen:
        raise ConfigError(f"{path} builds on itself; take it out of its 'base'.")
    seen = (*seen, path.resolve())
    tree = _read(path)
    bases = tree.pop("base", None) or []
    merged: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        merged = _merge(merged, compose(path.parent / str(base), seen))
    for key in FILES_FOR:
        if isinstance(tree.get(key), str):
            merged.pop(key, None)  # a file stands for the whole of it
            tree[key] = compose(path.parent / tree[key], seen)
    return _merge(merged, tree)


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {plain_message(error)}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} is not a config: expected keys with values.")
    return tree


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
