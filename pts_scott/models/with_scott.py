"""`with_scott`: the libraries' own estimators, trained by a `ScottTrainer`."""

from __future__ import annotations

import copyreg
import functools
import inspect
from typing import Any

from gluonts.core import serde
from gluonts.dataset.common import Dataset
from gluonts.model.predictor import Predictor

from pts_scott._utils.arguments import check_names
from pts_scott._utils.text import quote
from pts_scott.backends import ScottTrainer, backend
from pts_scott.data.instance_index import InstanceIndex
from pts_scott.data.offsets import parse_offset
from pts_scott.data.validation import CheckedDataset
from pts_scott.data.window_index import WindowIndex
from pts_scott.datasets.catalogue import as_dataset
from pts_scott.errors import ArgumentError
from pts_scott.models.trainer_argument import trainer_or_default


def with_scott(estimator: type) -> type:
    """Return a subclass of a library's estimator class that trains with SCott.

    Parameters
    ----------
    estimator
        A class of the library's torch estimators, e.g. ``DeepAREstimator``.

    Returns
    -------
    type
        A subclass with the same arguments and ``trainer``, a `ScottTrainer`. It keeps
        the model, its features, scaling and loss, and is serialised like its parent.
        Arguments about training belong to the trainer; here they raise.

    Raises
    ------
    ArgumentError
        If ``estimator`` is not a class of the installed library's torch estimators.

    Examples
    --------
    >>> from gluonts.torch import DeepAREstimator            # doctest: +SKIP
    >>> estimator = with_scott(DeepAREstimator)(             # doctest: +SKIP
    ...     freq="h", prediction_length=24, trainer=ScottTrainer(optimizer="adam")
    ... )
    >>> predictor = estimator.train(dataset)                 # doctest: +SKIP
    """
    bases = backend.LIBRARY_ESTIMATORS
    if isinstance(estimator, bases):
        name = type(estimator).__name__
        raise ArgumentError(
            f"with_scott takes a class, not an instance of {name}: write "
            f"with_scott({name})(..., trainer=ScottTrainer(...))."
        )
    if not (isinstance(estimator, type) and issubclass(estimator, bases)):
        names = " or ".join(base.__name__ for base in bases)
        raise ArgumentError(
            f"with_scott takes a subclass of {names}, such as DeepAREstimator, not "
            f"{quote(estimator)}. The estimators of pts_scott take trainer= directly."
        )
    if issubclass(estimator, _WithScott):
        return estimator
    made: type = _make_class(estimator)  # type: ignore[arg-type]
    return made


@functools.cache
def _make_class(estimator: type) -> type:
    trainer = inspect.Parameter(
        "trainer", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ScottTrainer
    )
    return type(
        f"Scott{estimator.__name__}",
        (_WithScott, *backend.training_mixins(estimator), estimator),
        {
            "__module__": __name__,
            "__doc__": f"{estimator.__name__}, trained by a `ScottTrainer`.\n\n"
            f"{inspect.getdoc(estimator) or ''}",
            "__signature__": inspect.Signature([*_parameters_of(estimator), trainer]),
            "library_estimator": estimator,
        },
    )


def _parameters_of(estimator: type) -> list[inspect.Parameter]:
    """Return the parameters of a class, with those it passes to its parents by name."""
    found: dict[str, inspect.Parameter] = {}
    positional = True
    for cls in estimator.__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
        kinds = {parameter.kind for parameter in parameters}
        for p in parameters:
            named = p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
            if named and p.name not in ("self", "trainer", *found):
                found[p.name] = p if positional else p.replace(kind=p.KEYWORD_ONLY)
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            break
        # Positional parameters of a subclass come before those of its parents.
        taken = any(p.kind is not p.KEYWORD_ONLY for p in found.values())
        positional = inspect.Parameter.VAR_POSITIONAL in kinds and not taken
    return sorted(found.values(), key=lambda p: p.kind)


class _WithScott:
    """Mixin that `with_scott` puts before an estimator class."""

    library_estimator: type

    def __init__(
        self, *args: Any, trainer: ScottTrainer | None = None, **kwargs: Any
    ) -> None:
        chosen = trainer_or_default(trainer)
        parameters = dict(inspect.signature(type(self)).parameters)
        check_training_arguments(kwargs)
        check_names(type(self).__name__, kwargs, parameters)
        try:
            bound = inspect.signature(type(self)).bind_partial(*args, **kwargs)
        except TypeError as error:  # too many, or one both by position and by name
            raise ArgumentError(f"{type(self).__name__}: {error}.") from None
        arguments = dict(bound.arguments)
        check_training_arguments(arguments)
        if "freq" in arguments:
            parse_offset(arguments["freq"])
        self.arguments = arguments
        super().__init__(**backend.estimator_arguments(arguments, chosen))
        self.trainer = chosen

    def train_model(
        self,
        training_data: Dataset,
        validation_data: Dataset | None = None,
        **kwargs: Any,
    ) -> Any:
        """Train as the library's method does, with the trainer in place of its loop."""
        freq = self.arguments.get("freq")
        training_data = CheckedDataset(as_dataset(training_data, freq), freq)
        if validation_data is not None:
            validation_data = CheckedDataset(as_dataset(validation_data, freq), freq)
        return backend.train_model(self, training_data, validation_data, **kwargs)

    def create_windows(self, dataset: Dataset) -> InstanceIndex:
        """Return the windows of a dataset that this estimator trains on."""
        freq = self.arguments.get("freq")
        return backend.create_windows(
            self, CheckedDataset(as_dataset(dataset, freq), freq)
        )

    def train_windows(
        self, windows: WindowIndex, validation: WindowIndex | None = None
    ) -> Predictor:
        """Train on windows that `create_windows` returned.

        Parameters
        ----------
        windows
            The windows to train on; several runs can share them.
        validation
            Windows on which ``val_loss`` is measured, all of them.
        """
        if not isinstance(windows, InstanceIndex):
            raise ArgumentError(
                "windows are those of another estimator; pass what create_windows of "
                f"{type(self).__name__} returned."
            )
        return backend.train_windows(self, windows, validation)

    def __repr__(self) -> str:
        arguments = {**self.arguments, "trainer": self.trainer}
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        return f"with_scott({self.library_estimator.__name__})({given})"

    def __reduce__(self) -> tuple[Any, ...]:
        if type(self) is not with_scott(self.library_estimator):  # a user's subclass
            return copyreg.__newobj__, (type(self),), self.__dict__  # type: ignore[attr-defined]
        arguments = {**self.arguments, "trainer": self.trainer}
        return SavedEstimator, (self.library_estimator, arguments), self.__dict__


class SavedEstimator:
    """Serialised form of an estimator with SCott: its parent class and its arguments."""

    def __new__(cls, estimator: type, arguments: dict[str, Any]) -> Any:
        """Return the estimator, not an instance of this class."""
        return with_scott(estimator)(**arguments)

    # GluonTS calls only classes with this method when it deserialises.
    def __getnewargs_ex__(self) -> None:
        """Do nothing: this class has no instances."""


@serde.encode.register(_WithScott)
def _encode(estimator: _WithScott) -> Any:
    if type(estimator) is not with_scott(estimator.library_estimator):
        raise ArgumentError(
            f"{type(estimator).__name__} is a subclass of an estimator with SCott, which "
            "cannot be serialised; make the subclass first: with_scott(YourEstimator)."
        )
    function, (parent, arguments), _ = estimator.__reduce__()
    return {
        "__kind__": "instance",
        "class": f"{function.__module__}.{function.__qualname__}",
        "kwargs": {
            "estimator": serde.encode(parent),
            "arguments": serde.encode(arguments),
        },
    }


def check_training_arguments(given: dict[str, Any]) -> None:
    """Raise if an argument of an estimator belongs to the trainer."""
    for name, instead in backend.TRAINER_DECIDES.items():
        if name in given:
            raise ArgumentError(
                f"{name}={given[name]!r} is about training, which the trainer controls: "
                f"pass trainer=ScottTrainer({instead}=...)."
            )
