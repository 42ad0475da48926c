"""The models that a config can name: the paper's four, and the library's estimators."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pts_scott._utils.arguments import nearest
from pts_scott._utils.text import cause, quote
from pts_scott.backends import backend
from pts_scott.backends.estimators import LIBRARY, library_estimators, short_name
from pts_scott.data.window_index import WindowIndex
from pts_scott.datasets.series_data import SeriesData
from pts_scott.errors import ArgumentError, ConfigError, ScottError, ScottWarning
from pts_scott.experiments.config import DataConfig, ModelConfig
from pts_scott.models.estimator import ScottEstimator
from pts_scott.models.paper_models import (
    LSTMEstimator,
    NBEATSEstimator,
    SimpleFeedForwardEstimator,
    VAREstimator,
)
from pts_scott.models.with_scott import check_training_arguments, with_scott
from pts_scott.training.trainer import ScottTrainer

OWN_MODELS: dict[str, type[ScottEstimator]] = {
    "mlp": SimpleFeedForwardEstimator,
    "nbeats": NBEATSEstimator,
    "lstm": LSTMEstimator,
    "var": VAREstimator,
}
OWN_LOSSES = {"mlp": "NLL", "lstm": "MSE", "var": "MSE"}
#: Libraries by the first word of their models' names.
LIBRARIES = {"gluonts": "GluonTS", "pts": "PyTorchTS", "pytorchts": "PyTorchTS"}
#: Arguments that the data section defines.
FROM_DATA = ("freq", "context_length", "prediction_length")
#: Required arguments that are found from the others and the data.
DERIVED = ("input_size",)
HINT = "`pts-scott models` lists them."


def available_models() -> dict[str, type]:
    """Return the classes of all models that a config can name."""
    library = {
        name: with_scott(estimator)
        for name, estimator in library_estimators().items()
        if name.partition(".")[2] not in backend.UNSUITABLE
    }
    return {**OWN_MODELS, **library}


def find_model(name: str) -> type:
    """Return the class of a model; library models take a `ScottTrainer`.

    Nothing that a config names is imported: the name is looked up.

    Raises
    ------
    ConfigError
        If there is no such model, or a config cannot describe it.
    """
    if name in OWN_MODELS:
        return OWN_MODELS[name]
    root, _, model = name.partition(".")
    short = short_name(name)
    if short is None:
        here = LIBRARIES[LIBRARY]
        if model and LIBRARIES.get(root, here) != here:
            raise ConfigError(
                f"model.name={name!r} is a model of {LIBRARIES[root]}, but this "
                f"environment has {here}, whose models are named {LIBRARY}.…; {HINT}"
            )
        raise ConfigError(
            f"model.name={name!r}: there is no such model. {_nearest_model(name)} {HINT}"
        )
    reason = backend.UNSUITABLE.get(short.partition(".")[2])
    if reason is not None:
        raise ConfigError(
            f"model.name={name!r}: {short} {reason}, so configs cannot name it; "
            "docs/models.md describes how to train the library's models from Python."
        )
    return with_scott(library_estimators()[short])


def _nearest_model(name: str) -> str:
    """Return a sentence that suggests a model, also for initials such as TFT."""
    models = available_models()
    letters = name.rpartition(".")[2]
    for model in models:
        if letters and "".join(filter(str.isupper, model)) == letters:
            return f"Did you mean {model!r}?"
    return nearest(name, models, "Configs name models, not code.")


def check_model(config: ModelConfig) -> None:
    """Check the name of a model, and the names of its arguments.

    Raises
    ------
    ConfigError
    """
    estimator, given = find_model(config.name), config.arguments
    own = issubclass(estimator, ScottEstimator)
    for name in FROM_DATA + (("stride",) if own else ()):
        if name in given:
            raise ConfigError(
                f"model.arguments has {name!r}, which the data section defines: set it "
                "there."
            )
    if own and "context" in given:
        raise ConfigError(
            "model.arguments has 'context': experiments use windows with complete "
            "contexts, so that held-out windows do not overlap the training range."
        )
    try:
        check_training_arguments(given)
    except ArgumentError as error:
        raise ConfigError(
            f"model.arguments: {error} In a config, these are values of optimizers, "
            "batch_size, time_budget and gradient_budget."
        ) from None
    known = model_arguments(estimator)
    for name in given:
        if name not in known:
            listed = f"It takes {', '.join(known) or 'none'}."
            hint = nearest(name, known, listed)
            raise ConfigError(
                f"model.arguments has {name!r}, which {config.name} does not take. "
                f"{hint if hint == listed else f'{hint} {listed}'}"
            )
    empty = inspect.Parameter.empty
    needed = [n for n, p in known.items() if p.default is empty and n not in DERIVED]
    missing = [name for name in needed if name not in given]
    if missing:
        raise ConfigError(
            f"{config.name} needs {', '.join(missing)}; give it in model.arguments."
        )


def list_models() -> str:
    """Return a line for each model, with its class or why a config cannot name it."""
    lines = [f"{n:<36}{m.__name__} of pts_scott" for n, m in OWN_MODELS.items()]
    for name, estimator in library_estimators().items():
        reason = backend.UNSUITABLE.get(name.partition(".")[2])
        note = f"not in configs: it {reason}" if reason else estimator.__module__
        lines.append(f"{name:<36}{note}")
    return "\n".join(lines)


def describe_model(name: str) -> str:
    """Return the arguments of a model that a config may have, with their defaults."""
    empty = inspect.Parameter.empty
    lines = [f"{name}: model.arguments"]
    for argument, parameter in model_arguments(find_model(name)).items():
        required = "found from the data" if argument in DERIVED else "required"
        value = required if parameter.default is empty else quote(parameter.default)
        lines.append(f"  {argument:<34}{value}")
    return "\n".join(lines)


def model_arguments(estimator: type) -> dict[str, inspect.Parameter]:
    """Return the arguments of a model that a config may have."""
    elsewhere = {*FROM_DATA, *backend.TRAINER_DECIDES, "trainer"}
    if issubclass(estimator, ScottEstimator):
        elsewhere |= {"stride", "context"}
    parameters = inspect.signature(estimator).parameters
    return {name: p for name, p in parameters.items() if name not in elsewhere}


class Model:
    """The model of a config, for series with a frequency and features.

    Parameters
    ----------
    config, data
        The model, and the lengths and stride of its windows.
    series
        The series, for their frequency and features.

    Attributes
    ----------
    estimator
        The class of its estimators.
    arguments
        Their arguments, except for the trainer.
    """

    def __init__(self, config: ModelConfig, data: DataConfig, series: SeriesData) -> None:
        self._config, self._data = config, data
        self.estimator = find_model(config.name)
        own = {
            "freq": series.freq,
            "context_length": data.context_length,
            "prediction_length": data.prediction_length,
        }
        if self._is_own:
            own["stride"] = data.stride  # that of PatchTST is about its patches
        known = inspect.signature(self.estimator).parameters
        if "context_length" not in known:
            warnings.warn(
                f"{config.name} chooses the length of its own context; context_length "
                f"{data.context_length} determines only which windows there are.",
                ScottWarning,
                stacklevel=2,
            )
        self.arguments = {name: v for name, v in own.items() if name in known}
        self.arguments |= series.estimator_arguments(self.estimator)
        self.arguments |= config.arguments

    @property
    def _is_own(self) -> bool:
        return issubclass(self.estimator, ScottEstimator)

    def make(self, trainer: ScottTrainer) -> Any:
        """Return an estimator.

        Raises
        ------
        ConfigError
            If the library refuses the arguments.
        """
        # Some estimators of PyTorchTS change the dictionaries that they are given.
        arguments = copy.deepcopy(self.arguments)
        with self._explained():
            return self.estimator(**arguments, trainer=trainer)

    def derive_arguments(self, part: SeriesData, trainer: ScottTrainer) -> None:
        """Add the required arguments that follow from the others and the data."""
        if not self._is_own:
            arguments = copy.deepcopy(self.arguments)
            with self._explained():
                self.arguments |= backend.missing_arguments(
                    self.estimator, arguments, part.pick([0]).dataset(), trainer
                )

    def windows(
        self, estimator: Any, part: SeriesData, history: SeriesData
    ) -> WindowIndex:
        """Return the windows of a part of the series, which are the same for all models.

        Parameters
        ----------
        estimator
            What `make` returned.
        part
            The contexts and prediction ranges of the windows.
        history
            The same series with the values before the part, which only the lags of a
            library model reach.
        """
        if self._is_own:
            return estimator.create_windows(part.entries())  # type: ignore[no-any-return]
        with self._explained():
            windows = estimator.create_windows(history.dataset())
        steps = dict(zip(part.item_ids, map(len, part.targets)))
        inside = torch.tensor([steps[name] for name in windows.series.item_ids])
        firsts = windows.series.lengths - inside + self._data.context_length
        return windows.from_starts(firsts, self._data.stride)  # type: ignore[no-any-return]

    def loss_name(self, estimator: Any) -> str:
        """Return the name of the training loss."""
        if self._config.name in OWN_LOSSES:
            return OWN_LOSSES[self._config.name]
        if hasattr(estimator, "loss_function"):  # N-BEATS
            return str(estimator.loss_function)
        output = type(getattr(estimator, "distr_output", None)).__name__
        return {"NoneType": "loss", "QuantileOutput": "quantile loss"}.get(output, "NLL")

    def is_probabilistic(self, estimator: Any) -> bool:
        """Return whether the model forecasts a distribution rather than a point."""
        if self._is_own:
            return self._config.name == "mlp"
        return not hasattr(estimator, "loss_function")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise the library's errors about arguments as a `ConfigError`."""
        try:
            yield
        except ScottError:
            raise
        except Exception as error:  # the libraries check arguments in many ways
            raise ConfigError(
                f"{self._config.name} refuses model.arguments={self._config.arguments} "
                f"for these data: {_reason(error)}."
            ) from error


def _reason(error: Exception) -> str:
    """Return what a library has against some arguments, on one line."""
    if isinstance(error, ValueError) and hasattr(error, "errors"):  # pydantic's
        found = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return "; ".join(found).rstrip(".")
    return cause(error)
