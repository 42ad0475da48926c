"""Checks of `ScottTrainer`'s arguments, of its data, and of the machine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.callbacks import BaseFinetuning
from lightning.pytorch.plugins.io import CheckpointIO

from pts_scott._utils.arguments import check_names, one_of, real_number, whole_number
from pts_scott.data.window_index import WindowIndex, require_windows
from pts_scott.engine.losses import Losses
from pts_scott.engine.model_checks import check_missing_values
from pts_scott.errors import ArgumentError, DataError
from pts_scott.method.allocation import Allocation, check_allocation
from pts_scott.method.methods import METHODS
from pts_scott.strata.policy import Policy
from pts_scott.training.budget import Budget

#: Lightning's names for passes in half precision.
MIXED = ("16-mixed", "bf16-mixed")

# Arguments of Lightning that ScottTrainer sets, and what to use instead.
DECIDED_HERE = {
    "accelerator": "use device=",
    "max_epochs": "use epochs=",
    "min_epochs": "use epochs=",
    "max_steps": "use epochs= and num_batches_per_epoch=, or gradient_budget=",
    "min_steps": "use epochs= and num_batches_per_epoch=",
    "max_time": "use time_budget=",
    "limit_train_batches": "use num_batches_per_epoch=",
    "overfit_batches": "use num_batches_per_epoch=",
    "fast_dev_run": "use epochs=1 and num_batches_per_epoch=1",
    "gradient_clip_val": "use clip_gradient=",
    "gradient_clip_algorithm": "use clip_gradient=",
    "accumulate_grad_batches": "use batch_size=",
}


def check_inputs(network: Any, windows: Any, validation: Any, output: str) -> None:
    """Raise if there is nothing to train, or nothing to choose the best by."""
    if not isinstance(network, torch.nn.Module):
        raise ArgumentError(
            f"network={network!r}: expected an instance of torch.nn.Module."
        )
    require_windows(windows)
    if output == "best" and validation is None:
        raise ArgumentError(
            "output='best' needs validation data to choose by: pass validation_data "
            "to the estimator's train or train_from, or validation_windows to fit."
        )


def check_validation(
    losses: Losses, windows: WindowIndex, validation: WindowIndex
) -> None:
    """Raise if validation windows differ from those of training."""
    check_missing_values(losses, validation)
    for name in ("context_length", "prediction_length"):
        if getattr(windows, name) != getattr(validation, name):
            raise DataError(
                f"training windows have {name} {getattr(windows, name)}, validation "
                f"windows {getattr(validation, name)}; make both alike."
            )
    if windows.series.dimensions != validation.series.dimensions:
        raise DataError(
            f"training targets have dimensions {windows.series.dimensions}, validation "
            f"targets {validation.series.dimensions} (None: univariate); make both alike."
        )


def check_trainer_kwargs(given: Any) -> dict[str, Any]:
    """Return ``trainer_kwargs`` as a dict; raise if ScottTrainer sets one of them."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"trainer_kwargs={given!r}: expected a dict of lightning.Trainer's "
            "arguments, e.g. {'enable_progress_bar': False}."
        )
    check_names("lightning.Trainer", given, inspect.signature(pl.Trainer).parameters)
    for name, instead in DECIDED_HERE.items():
        if name in given:
            raise ArgumentError(
                f"trainer_kwargs has {name!r}, which ScottTrainer decides: {instead}."
            )
    callbacks = given.get("callbacks") or []
    for callback in callbacks if isinstance(callbacks, list | tuple) else [callbacks]:
        if isinstance(callback, BaseFinetuning):
            raise ArgumentError(
                f"{type(callback).__name__} freezes and unfreezes parameters during "
                "training, but snapshot, anchor and optimizer hold those that are "
                "trainable when it begins. Train in two runs: requires_grad_(False) for "
                "the frozen ones and train, then requires_grad_(True) and train_from."
            )
    if given.get("precision") not in (None, 32, "32", "32-true", *MIXED):
        raise ArgumentError(
            f"precision={given['precision']!r}: expected one of {', '.join(MIXED)}; "
            "otherwise training is in the precision of network and windows."
        )
    return dict(given)


def check_other_writers(
    folder: Path, callbacks: Sequence[pl.Callback], plugins: Sequence[Any]
) -> None:
    """Raise if a callback or a plugin would write the same checkpoints."""
    for callback in callbacks:
        given = None
        if isinstance(callback, pl.callbacks.Checkpoint):
            given = getattr(callback, "dirpath", None)
        if given and Path(given).resolve() == folder.resolve():
            raise ArgumentError(
                f"{type(callback).__name__} and checkpoint= write to the same folder, "
                f"{folder}; give each its own."
            )
    if any(isinstance(plugin, CheckpointIO) for plugin in plugins):
        raise ArgumentError(
            "checkpoint= writes files in its own way, and trainer_kwargs has another "
            "CheckpointIO; omit one of the two."
        )


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the requested device, if it is available."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(
            f"device={device!r}: expected 'auto' or a torch device such as 'cpu' or "
            "'cuda:0'."
        ) from error
    if resolved.type not in ("cpu", *available_accelerators()):
        found = ", ".join(map(repr, available_accelerators())) or "none"
        raise ArgumentError(
            f"device={device!r}: torch finds no such device here (accelerators: "
            f"{found}); use device='auto', or install a build of torch for it."
        )
    lightning_accelerator(resolved)
    if resolved.index:  # the first one is there
        count = torch.get_device_module(resolved).device_count()
        if resolved.index >= count:
            raise ArgumentError(
                f"device={str(device)!r}: torch finds {count} here, numbered from 0; use "
                f"one of them, or device={resolved.type!r} for the first."
            )
    return resolved


def available_accelerators() -> list[str]:
    """List the types of accelerator that torch can use here: "cuda", "mps", "xpu", …."""
    if torch.cuda.is_available():
        return ["cuda"]
    if not torch.accelerator.is_available():
        return []
    current = torch.accelerator.current_accelerator()
    return [] if current is None else [current.type]


def lightning_accelerator(device: torch.device) -> str:
    """Return Lightning's name for a device's type.

    Raises
    ------
    ArgumentError
        If this version of Lightning has none.
    """
    name = "gpu" if device.type == "cuda" else device.type
    known = AcceleratorRegistry.available_accelerators()
    if name != "gpu" and name not in known:
        raise ArgumentError(
            f"device={str(device)!r}: this version of Lightning trains on "
            f"{', '.join(sorted(known))}, and not there; register an accelerator in "
            "lightning.pytorch.accelerators.AcceleratorRegistry, or use another device."
        )
    return name


def optional(check: Callable[..., Any], name: str, value: Any, **limits: Any) -> Any:
    """Check a value that may be None."""
    return None if value is None else check(name, value, **limits)


def check_ends(budget: Budget) -> None:
    """Raise if nothing would end a run."""
    if budget.steps is None and budget.seconds is None and budget.gradients is None:
        raise ArgumentError(
            "epochs=None needs a time_budget or a gradient_budget, or training would "
            "never end."
        )


def check_gamma(gamma: Any) -> float | None:
    """Return γ if it is valid."""
    value: float | None = optional(real_number, "gamma", gamma)
    if value is not None and value >= 1:
        raise ArgumentError(
            f"gamma={gamma!r}: expected less than 1; otherwise the first inner step "
            "meets it, and every step would need its own anchor."
        )
    return value


def check_coefficient(coefficient: Any) -> float | str:
    """Return c, a number up to 1 or "linear"."""
    if isinstance(coefficient, str):
        return one_of("coefficient", coefficient, ("linear",))
    return real_number("coefficient", coefficient, maximum=1.0)


def check_compile(compile: Any) -> bool | str:
    """Return ``compile`` if it is True, False or "auto"."""
    if compile not in (True, False, "auto"):
        raise ArgumentError(f"compile={compile!r}: expected True, False or 'auto'.")
    given: bool | str = compile
    return given


def check_threads(threads: Any) -> int | str:
    """Return a number of threads, or "auto"."""
    if isinstance(threads, str):
        return one_of("threads", threads, ("auto",))
    return whole_number("threads", threads)


def check_scheduler(scheduler: Any) -> Any:
    """Return a factory of schedulers, or None."""
    if scheduler is not None and not callable(scheduler):
        raise ArgumentError(
            "scheduler is not a function; pass one that makes a scheduler, e.g. "
            "scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9)."
        )
    return scheduler


def check_sampling(method: str, allocation: Any) -> Allocation:
    """Return the allocation, if the method can use one."""
    checked = check_allocation(allocation)
    kind = METHODS[method]
    if checked is None or kind.uses_anchor or kind.uses_strata:
        return checked
    reason = "chooses one itself" if kind.chooses_strata else "draws uniformly"
    raise ArgumentError(
        f"allocation={allocation!r}: method={method!r} {reason}; use "
        "method='stratified' for mini-batches with a given allocation."
    )


def check_stratifier(stratifier: Any) -> Policy | None:
    """Return a policy, or None."""
    if stratifier is None or isinstance(stratifier, Policy):
        return stratifier
    raise ArgumentError(
        f"stratifier={stratifier!r}: expected a policy, e.g. "
        "Stratifier.calendar('weekday', 'season')."
    )
