"""The config of an experiment: data, model, optimizers, and how they are trained.

These classes define the keys and types of the YAML configs; their docstrings are the help
texts of the command line.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml

from pts_scott.experiments.names import folder_name
from pts_scott.method.methods import METHODS
from pts_scott.strata.policy import Policy
from pts_scott.strata.stratifier import Stratifier

# The paper's grids, the same for all optimizers.
LEARNING_RATES = (1e-1, 5e-2, 2.5e-2, 1e-2, 5e-3, 2.5e-3, 1e-3, 5e-4, 2.5e-4, 1e-4)
GAMMAS = (0.1, 0.125, 0.15, 0.2, 0.4, 0.8)

# The values a config can hold. Not Any: there, the parser would import and instantiate
# any class named by the key "class_path".
Plain = bool | int | float | list | dict | str | None


@dataclass
class DataConfig:
    """The series, and how they are divided into windows and strata.

    Parameters
    ----------
    name
        Name of a known dataset (`pts-scott data` lists them), or a file: LSTNet layout
        (.txt, .txt.gz), CSV or Parquet in long or wide form.
    context_length
        Time steps that the model sees.
    prediction_length
        Time steps that it forecasts.
    stride
        Time steps between the forecast starts of consecutive windows.
    stratifier
        The policy, e.g. calendar("weekday", "season") or ranges(4) * series(); null for
        a calendar policy that suits the frequency.
    start
        First timestamp of a file in LSTNet layout, which has no dates.
    freq
        Frequency as a pandas alias; null to infer it from the timestamps.
    timestamp
        Timestamp column; null to detect it.
    item_id
        Column of series names in a long table; null for a wide table, or to detect it.
    target
        Value column of a long table; null to detect it.
    known
        Columns with features of each step that are known in advance, such as a price;
        null for none.
    past
        Columns with features of each step that are known only when it has passed.
    static
        CSV or Parquet file with features of each series, one row per series, named in
        its column item_id; null for none.
    constant
        How to handle a series with a single distinct value: "error", "drop" or "keep".
    seed
        Seed of generated data.
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
    known: list[str] | None = None
    past: list[str] | None = None
    static: str | None = None
    constant: Literal["error", "drop", "keep"] = "error"
    seed: int = 0


@dataclass
class ModelConfig:
    """The model and its arguments.

    Parameters
    ----------
    name
        "mlp" (SimpleFeedForward, NLL), "nbeats" (MAPE), "lstm" or "var" (MSE); or an
        estimator of the library: "gluonts.DeepAR", or "pts.DeepAR" with PyTorchTS.
        `pts-scott models` lists them.
    arguments
        Arguments of the estimator, e.g. {hidden_dimensions: [80, 80]}.
    label
        Name in tables and figures; null for the model's own.
    """

    name: str
    arguments: dict[str, Plain] = field(default_factory=dict)
    label: str | None = None

    def __post_init__(self) -> None:
        if self.arguments is None:  # a key of YAML without a value
            self.arguments = {}


@dataclass
class OptimizerConfig:
    """One of the compared optimizers, as arguments of `ScottTrainer`.

    Parameters
    ----------
    method
        How gradients are estimated: "auto", "scott", "scsg", "svrg", "stratified",
        "plain", "mars" or "storm"; see docs/methods.md.
    optimizer
        Update rule: "sgd", "adam", "adamw" or "adagrad".
    learning_rate
        Step size.
    weight_decay
        Weight decay; the default is the paper's.
    gamma
        γ, early stopping of the inner loop; null to disable it.
    batch_size
        M of this optimizer; null for that of the experiment.
    anchor_batch_size
        b, windows per stratum in an anchor.
    inner_steps
        K, maximum number of inner steps per anchor.
    inner_length
        Length of the inner loop: "fixed" or "geometric".
    coefficient
        c of the control variate, or "linear" for a decay from 1 to 0.
    clip_gradient
        Maximum norm of an update; null for no clipping.
    betas
        β₁ and β₂ of Adam; null for 0.9 and 0.999.
    stratifier
        The policy of this optimizer; null for that of the data.
    allocation
        Which share of a sample comes from which stratum: "proportional", "equal" or
        "spread"; null for the method's own.
    replacement
        Whether a window may be drawn again before all others of its stratum.
    """

    method: str
    optimizer: Literal["sgd", "adam", "adamw", "adagrad"]
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    gamma: float | None = 0.125
    batch_size: int | None = None
    anchor_batch_size: int = 1
    inner_steps: int = 20
    inner_length: Literal["fixed", "geometric"] = "fixed"
    coefficient: float | Literal["linear"] = 1.0
    clip_gradient: float | None = None
    betas: list[float] | None = None
    stratifier: str | None = None
    allocation: Literal["proportional", "equal", "spread"] | None = None
    replacement: bool = True

    @property
    def uses_anchor(self) -> bool:
        """Whether the method uses an anchor as a control variate."""
        return METHODS[self.method].uses_anchor


@dataclass
class TuneConfig:
    """Tuning of step sizes on the tuning range.

    Parameters
    ----------
    time_budget
        Seconds of training per trial; null for the experiment's.
    learning_rate
        Grid of step sizes.
    gamma
        Grid of γ, for methods with an anchor; empty to leave γ unchanged.
    betas
        Grid of Adam's β₁ and of its β₂; empty to leave them unchanged.
    own
        Grids of single optimizers: for each name those that differ from the ones above,
        and with an anchor also anchor_batch_size and inner_steps, e.g. {SCott: {gamma:
        [], anchor_batch_size: [4, 16], inner_steps: [50, 200]}}.
    search
        "grid": every combination. "coordinate": first all step sizes, then γ at the best
        step size (then β, then b and K): 16 trials instead of 60. "climb": the same, but
        of the step sizes those next to the optimizer's own, and further in the direction
        in which the loss falls: about four trials instead of ten, which can be longer.
    evaluations
        Measurements per trial, after each of which it may be pruned.
    average
        Number of last measurements whose mean is the loss of a trial; 1 for the loss at
        its end, on all evaluation windows. With constant step sizes and small M the loss
        at one moment depends on the last few steps, and favours step sizes that were
        lucky there.
    seeds
        Seeds per trial; trials are ranked by the mean loss.
    """

    time_budget: float | None = None
    learning_rate: list[float] = field(default_factory=lambda: list(LEARNING_RATES))
    gamma: list[float] = field(default_factory=lambda: list(GAMMAS))
    betas: list[float] = field(default_factory=list)
    own: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    search: Literal["grid", "coordinate", "climb"] = "grid"
    evaluations: int = 5
    average: int = 1
    seeds: list[int] = field(default_factory=lambda: [1000])


@dataclass
class VarianceConfig:
    """Measurement of the variance of the samplers during a training run.

    Parameters
    ----------
    optimizer
        The optimizer to train during the measurement; null for the first with SCott's
        method, or else the first with an anchor.
    stratifiers
        Additional policies to compare with the experiment's own.
    time_budget
        Seconds of training in that run; null for the experiment's.
    points
        Number of measurements during the run.
    gradients
        Gradients per step at which the samplers are compared; null for the cost of a
        step of SCott: 2 M + B b / K.
    sample
        Windows drawn to measure the variance under uniform sampling.
    per_stratum
        Windows drawn from each stratum.
    seed
        Seed of the run and of these draws.
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
    """One setting: a model on a dataset, trained with several optimizers and seeds.

    Parameters
    ----------
    data
        The series, windows and strata.
    model
        The model.
    optimizers
        The optimizers by name; override a value on the command line with, e.g.,
        --optimizers.SCott.learning_rate 0.01.
    name
        Name of the setting; null to compose it from model, dataset and M.
    batch_size
        M, windows in a uniform mini-batch.
    time_budget
        Seconds of training per run, the same for all; null to use only gradient_budget.
    gradient_budget
        Gradients per run, the same for all; null to use only time_budget.
    seeds
        Seeds; there is one run per optimizer and seed.
    evaluations
        Points of a loss curve, evenly spaced over the budget.
    curve_windows
        Number of evenly spaced windows for the losses of a curve; null for all.
    evaluation_windows
        Number of evenly spaced windows for the losses of the table; null for all.
    backtest_samples
        Sample paths of the GluonTS backtest (point forecasts need one); 0 for no
        backtest.
    backtest_series
        Number of evenly spaced series in the backtest; null for all.
    compile
        Whether to compile the training steps; "auto" to do so where it saves time.
    threads
        CPU threads per run.
    device
        "auto", "cpu", "cuda" or "cuda:1".
    tune
        Tuning of step sizes.
    variance
        Measurement of the variance of the samplers.
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
        """Name of the setting, usable as a folder name."""
        data = Path(self.data.name).name
        name = self.name or f"{self.model_label.lower()}-{data}-M{self.batch_size}"
        return folder_name(folder_name(name).strip("-.")) or "setting"

    @property
    def model_label(self) -> str:
        """Name of the model in tables and figures."""
        own = {"mlp": "MLP", "nbeats": "N-BEATS", "lstm": "LSTM", "var": "VAR"}
        name = self.model.name
        library = name.rpartition(".")[2].removesuffix("Estimator")
        return self.model.label or own.get(name, library)

    def stratifier(self, optimizer: OptimizerConfig | None = None) -> Policy | None:
        """Return the policy, or an optimizer's own; None for the frequency's default."""
        text = self.data.stratifier
        if optimizer is not None:
            text = optimizer.stratifier or text
        return None if text is None else Stratifier.parse(text)

    def windows_per_step(self, optimizer: OptimizerConfig) -> int:
        """Return M of an optimizer: its own, or that of the experiment."""
        own = optimizer.batch_size
        return self.batch_size if own is None else own

    def dump(self) -> str:
        """Return the config as YAML; loading it gives the same experiment."""
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, width=88)
