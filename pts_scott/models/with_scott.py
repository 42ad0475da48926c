"""The libraries' own estimators, trained by a `ScottTrainer`."""

from __future__ import annotations

import copyreg
import functools
import inspect
from typing import Any

from gluonts.core import serde
from gluonts.dataset.common import Dataset

from pts_scott._utils.arguments import check_names
from pts_scott._utils.text import quote
from pts_scott.backends import backend
from pts_scott.data.offsets import parse_offset
from pts_scott.data.validation import CheckedDataset
from pts_scott.errors import ArgumentError
from pts_scott.training.trainer import ScottTrainer


def with_scott(estimator: type) -> type:
    """An estimator class of the library that trains with SCott.

    Parameters
    ----------
    estimator
        A class of the library's torch estimators, e.g. ``DeepAREstimator``.

    Returns
    -------
    type
        A subclass with the same arguments and ``trainer``, a `ScottTrainer`. It keeps
        the model, its features, scaling and loss, and is serialised like its parent.
        Arguments about training are the trainer's; given to the estimator, they raise.

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
            f"with_scott takes a class, and this is an estimator that was made already: "
            f"write with_scott({name})(..., trainer=ScottTrainer(...))."
        )
    if not (isinstance(estimator, type) and issubclass(estimator, bases)):
        names = " or ".join(base.__name__ for base in bases)
        raise ArgumentError(
            f"with_scott takes a class of {names}, such as DeepAREstimator, not "
            f"{quote(estimator)}. The estimators of pts_scott take trainer= as they are."
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
        (_WithScott, *backend.mixins(estimator), estimator),
        {
            "__module__": __name__,
            "__doc__": f"{estimator.__name__}, trained by a `ScottTrainer`.\n\n"
            f"{inspect.getdoc(estimator) or ''}",
            "__signature__": inspect.Signature([*_arguments_of(estimator), trainer]),
            "library_estimator": estimator,
        },
    )


def _arguments_of(estimator: type) -> list[inspect.Parameter]:
    """The arguments of a class, with those that it hands on to its parents by name."""
    found: dict[str, inspect.Parameter] = {}
    by_place = True
    for cls in estimator.__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
        kinds = {parameter.kind for parameter in parameters}
        for p in parameters:
            named = p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
            if named and p.name not in ("self", "trainer", *found):
                found[p.name] = p if by_place else p.replace(kind=p.KEYWORD_ONLY)
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            break
        # What stands by place in a child stands before what its parents take.
        placed = any(p.kind is not p.KEYWORD_ONLY for p in found.values())
        by_place = inspect.Parameter.VAR_POSITIONAL in kinds and not placed
    return sorted(found.values(), key=lambda p: p.kind)


class _WithScott:
    """What `with_scott` adds to an estimator class."""

    library_estimator: type

    def __init__(
        self, *args: Any, trainer: ScottTrainer | None = None, **kwargs: Any
    ) -> None:
        if not isinstance(trainer, ScottTrainer | None):
            raise ArgumentError(
                f"trainer={trainer!r}: expected a ScottTrainer, e.g. "
                "trainer=ScottTrainer(method='scott')."
            )
        parameters = dict(inspect.signature(type(self)).parameters)
        _check_training_arguments(kwargs)
        check_names(type(self).__name__, kwargs, parameters)
        try:
            bound = inspect.signature(type(self)).bind_partial(*args, **kwargs)
        except TypeError as error:  # too many by place, or one by place and by name
            raise ArgumentError(f"{type(self).__name__}: {error}.") from None
        arguments = dict(bound.arguments)
        _check_training_arguments(arguments)
        if "freq" in arguments:
            parse_offset(arguments["freq"])
        self.arguments = arguments
        chosen = trainer if trainer is not None else ScottTrainer()
        super().__init__(**backend.with_trainer(arguments, chosen))
        self.trainer = chosen

    def train_model(
        self,
        training_data: Dataset,
        validation_data: Dataset | None = None,
        **kwargs: Any,
    ) -> Any:
        """As the library's, with the trainer in place of its loop."""
        freq = self.arguments.get("freq")
        training_data = CheckedDataset(training_data, freq)
        if validation_data is not None:
            validation_data = CheckedDataset(validation_data, freq)
        return backend.train_model(self, training_data, validation_data, **kwargs)

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
    """How an estimator with SCott is written down: its parent, and its arguments."""

    def __new__(cls, estimator: type, arguments: dict[str, Any]) -> Any:
        """The estimator again."""
        return with_scott(estimator)(**arguments)

    # By this GluonTS knows a class that it may call to read something back.
    def __getnewargs_ex__(self) -> None:
        """Nothing is ever an instance of this class."""


@serde.encode.register(_WithScott)
def _encode(estimator: _WithScott) -> Any:
    if type(estimator) is not with_scott(estimator.library_estimator):
        raise ArgumentError(
            f"{type(estimator).__name__} is made from an estimator with SCott; to be "
            "written down, make the subclass first: with_scott(YourEstimator)."
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


def _check_training_arguments(given: dict[str, Any]) -> None:
    for name, instead in backend.TRAINER_DECIDES.items():
        if name in given:
            raise ArgumentError(
                f"{name}={given[name]!r} is about training, which the trainer decides: "
                f"pass trainer=ScottTrainer({instead}=...)."
            )
