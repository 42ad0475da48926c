"""Optimizers: by name, as a class, or from a user's function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pts_scott._utils.arguments import one_of
from pts_scott._utils.text import cause
from pts_scott.engine.tensors import is_dense
from pts_scott.errors import ArgumentError

OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]

# LBFGS needs a closure that recomputes the loss, SparseAdam sparse gradients.
UNSUPPORTED: tuple[type[Optimizer], ...] = (torch.optim.LBFGS, torch.optim.SparseAdam)


def _known() -> dict[str, Any]:
    first = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
    others = sorted(
        (c for c in vars(torch.optim).values() if _is_class(c) and c is not Optimizer),
        key=lambda c: str(c.__name__),
    )
    return {c.__name__.lower(): c for c in (*first, *others) if c not in UNSUPPORTED}


def _is_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Optimizer)


#: The optimizers of ``torch.optim``, by their names in lower case.
OPTIMIZERS: dict[str, Any] = _known()

#: Optimizers with a fused kernel for all parameters, and the devices that have it.
FUSED: dict[type[Optimizer], tuple[str, ...]] = {
    torch.optim.SGD: ("cpu", "cuda"),
    torch.optim.Adam: ("cpu", "cuda"),
    torch.optim.AdamW: ("cpu", "cuda"),
    torch.optim.Adagrad: ("cpu",),
}


def check_optimizer(given: Any, arguments: Mapping[str, Any]) -> Any:
    """Return ``optimizer`` if it names, is, or makes an optimizer.

    Parameters
    ----------
    given
        A name, a class or a function.
    arguments
        The ``learning_rate`` and ``weight_decay`` that the user passed. A function sets
        its own, so it must not be given any.

    Raises
    ------
    ArgumentError
    """
    if isinstance(given, Optimizer):
        raise ArgumentError(
            "optimizer is an instance of an optimizer; pass its class, e.g. "
            "optimizer=torch.optim.AdamW, or a function that makes one, e.g. "
            "optimizer=lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3)."
        )
    if isinstance(given, str) or not callable(given):
        return one_of("optimizer", given, OPTIMIZERS)
    if _is_class(given):
        _check_step(given)
        accepted = inspect.signature(given).parameters
        refused = [n for n in arguments if _OPTIONS[n] not in accepted]
        if refused:
            raise ArgumentError(
                f"{refused[0]}={arguments[refused[0]]!r} does not apply to "
                f"{given.__name__}, which takes no {_OPTIONS[refused[0]]}; omit it."
            )
        return given
    if arguments:
        name, value = next(iter(arguments.items()))
        raise ArgumentError(
            f"{name}={value!r} would be ignored: optimizer is a function, which sets its "
            f"own. Put {_OPTIONS[name]}={value!r} into the function, or pass the class "
            f"(optimizer=torch.optim.AdamW) together with {name}."
        )
    return given


def _check_step(kind: type[Optimizer]) -> None:
    """Refuse an optimizer that needs more than a gradient."""
    closure = inspect.signature(kind.step).parameters.get("closure")
    needs_closure = closure is not None and closure.default is inspect.Parameter.empty
    if needs_closure or issubclass(kind, UNSUPPORTED):
        raise ArgumentError(
            f"optimizer={kind.__name__} cannot be used: it needs a closure, or sparse "
            f"gradients. Known names: {', '.join(OPTIMIZERS)}."
        )


_OPTIONS = {"learning_rate": "lr", "weight_decay": "weight_decay"}


def make_optimizer(
    given: Any,
    parameters: Sequence[nn.Parameter],
    *,
    learning_rate: float,
    weight_decay: float,
    fusable: bool,
) -> Optimizer:
    """Make the optimizer of a run.

    Parameters
    ----------
    given
        What `check_optimizer` accepted.
    parameters
        The parameters to train.
    learning_rate, weight_decay
        Options of an optimizer that is given by name or class.
    fusable
        Whether torch's fused kernels may be used.

    Raises
    ------
    ArgumentError
    """
    parameters = list(parameters)
    kind: Any = OPTIMIZERS[given] if isinstance(given, str) else given
    if not _is_class(kind):
        optimizer = kind(parameters)
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(
                f"optimizer returned {type(optimizer).__name__}; expected a "
                "function from parameters to a torch.optim.Optimizer."
            )
        _check_step(type(optimizer))
        return optimizer
    options: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay}
    accepted = inspect.signature(kind).parameters
    options = {name: value for name, value in options.items() if name in accepted}
    place = parameters[0].device.type
    # Fused kernels assume that a parameter fills its memory.
    if fusable and place in FUSED.get(kind, ()) and all(map(is_dense, parameters)):
        options["fused"] = True
    try:
        return kind(parameters, **options)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{kind.__name__}(parameters, {_format_options(options)}) fails: "
            f"{cause(error)}. Pass a function that makes the optimizer instead."
        ) from error


def use_own_kernels(saved: dict[str, Any], optimizer: Optimizer) -> None:
    """Give a saved optimizer the kernels of this run's, which may be on another device.

    torch loads them with the state, but not every device has every fused kernel, and
    some need the count of steps on the device.

    Parameters
    ----------
    saved
        The optimizer's part of a checkpoint, which is changed.
    optimizer
        The optimizer of this run.
    """
    for group, own in zip(saved["param_groups"], optimizer.param_groups, strict=True):
        group.update({k: own[k] for k in ("fused", "foreach") if k in own and k in group})


def _format_options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def serialisable(given: Any) -> Any:
    """Return the name of a class of ``torch.optim``, which GluonTS cannot find again."""
    names = [name for name, kind in OPTIMIZERS.items() if kind is given]
    return names[0] if names else given
