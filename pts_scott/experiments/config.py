"""What an experiment is: its data, its model, its optimizers, and how they are trained.

These classes are the keys and types of the YAML configs, and their docstrings the help
of the command line.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml

from pts_scott._utils.arguments import real_number, whole_number
from pts_scott._utils.text import quote
from pts_scott.errors import ConfigError
from pts_scott.strata.stratifier import Stratifier

# The paper's grids, for every optimizer alike.
LEARNING_RATES = (1e-1, 5e-2, 2.5e-2, 1e-2, 5e-3, 2.5e-3, 1e-3, 5e-4, 2.5e-4, 1e-4)
GAMMAS = (0.1, 0.125, 0.15, 0.2, 0.4, 0.8)

# What a config can say, and not Any: the parser imports and makes a class, whichever it
# is, where that is allowed and a value has the key "class_path".
Plain = bool | int | float | list | dict | str | None

LONGEST_NAME = 200  # bytes of a folder's name; file systems take 255, and ".part" follows
# Names that Windows keeps for devices, with whatever ending.
DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


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
    arguments: dict[str, Plain] = field(default_factory=dict)
    label: str | None = None


@dataclass
class OptimizerConfig:
    """One of the optimizers that are compared, as `ScottTrainer` takes it.

    Parameters
    ----------
    method
        How gradients are estimated: "scott", "scsg", "svrg", "stratified" or "plain".
    optimizer
        What makes a step of them: "sgd", "adam", "adamw" or "adagrad".
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
    optimizer: Literal["sgd", "adam", "adamw", "adagrad"]
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    gamma: float | None = 0.125
    anchor_batch_size: int = 1
    inner_steps: int = 20
    inner_length: Literal["fixed", "geometric"] = "fixed"
    coefficient: float | Literal["linear"] = 1.0
    clip_gradient: float | None = None
    betas: list[float] | None = None

    @property
    def has_anchor(self) -> bool:
        """Whether the method uses a control variate."""
        return self.method in ("scott", "scsg", "svrg")


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
        The optimizer that trains meanwhile; null for the first of SCott's method, or
        with an anchor.
    stratifiers
        Further policies to compare with the experiment's own.
    time_budget
        Seconds of training of that run; null for the experiment's.
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
    time_budget: float | None = None
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
        Sample paths of the GluonTS backtest, one for models that forecast a point; 0 for
        no backtest.
    backtest_series
        Series, evenly spread, of the backtest; null for all.
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
    backtest_series: int | None = None
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
        return folder_name(folder_name(name).strip("-.")) or "setting"

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
        if any(not 0 <= beta < 1 for beta in self.tune.betas):
            raise ConfigError(
                f"tune.betas={self.tune.betas}: expected numbers of at least 0 and less "
                "than 1."
            )
        if self.time_budget is None and self.gradient_budget is None:
            raise ConfigError(
                "time_budget and gradient_budget are both null: give one of them, or "
                "training would never end."
            )
        self._check_lengths()
        folders = {folder_name(name).lower() for name in self.optimizers}
        if len(folders) < len(self.optimizers):
            raise ConfigError(
                f"optimizers {', '.join(map(repr, self.optimizers))}: two of them would "
                "have one folder; give them names that differ in letters or digits."
            )
        self.stratifier()
        for text in self.variance.stratifiers:
            Stratifier.parse(text)
        return self

    def _check_lengths(self) -> None:
        runs = [run_name(name, max(self.seeds)) for name in self.optimizers]
        for folder in (self.setting, *runs):
            if len(folder.encode()) > LONGEST_NAME:
                raise ConfigError(
                    f"{quote(folder)} is too long for the name of a folder: expected at "
                    f"most {LONGEST_NAME} bytes. Give the experiment a shorter name, or "
                    "its optimizers."
                )

    def dump(self) -> str:
        """The config as YAML; reading it gives the same experiment."""
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, width=88)


def folder_name(name: str) -> str:
    """A name with nothing in it that a file system might mind, or take for a path."""
    name = re.sub(r"[^\w.=+-]+", "-", name)
    return f"_{name}" if DEVICES.match(name) else name


def run_name(optimizer: str, seed: int) -> str:
    """Name of the folder of a run."""
    return folder_name(f"{optimizer}-seed{seed}")


def _check_counts(experiment: Experiment) -> None:
    counts = (
        ("batch_size", experiment.batch_size, 1),
        ("gradient_budget", experiment.gradient_budget, 1),
        ("evaluations", experiment.evaluations, 1),
        ("curve_windows", experiment.curve_windows, 1),
        ("evaluation_windows", experiment.evaluation_windows, 1),
        ("backtest_samples", experiment.backtest_samples, 0),
        ("backtest_series", experiment.backtest_series, 1),
        ("tune.evaluations", experiment.tune.evaluations, 1),
        ("variance.points", experiment.variance.points, 1),
        ("variance.gradients", experiment.variance.gradients, 1),
        ("variance.sample", experiment.variance.sample, 2),
        ("variance.per_stratum", experiment.variance.per_stratum, 2),
        ("variance.seed", experiment.variance.seed, 0),
        *(("seeds", seed, 0) for seed in experiment.seeds),
        *(("tune.seeds", seed, 0) for seed in experiment.tune.seeds),
    )
    for name, value, minimum in counts:
        if value is not None:
            whole_number(name, value, minimum)
    for name, seconds in (
        ("time_budget", experiment.time_budget),
        ("tune.time_budget", experiment.tune.time_budget),
        ("variance.time_budget", experiment.variance.time_budget),
    ):
        if seconds is not None:
            real_number(name, seconds, exclusive=True)
