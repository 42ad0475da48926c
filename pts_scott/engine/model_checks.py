"""Refuse, before training starts, a model that breaks the mathematics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from pts_scott._utils.rng import changed_sources, global_state, preserved_rng
from pts_scott._utils.spacing import evenly_spaced
from pts_scott._utils.text import cause, quote
from pts_scott.data.instance_index import InstanceIndex
from pts_scott.data.window_index import Batch, WindowIndex
from pts_scott.engine.gradients import Buffers, Losses, autograd
from pts_scott.engine.nonfinite_windows import failing, name_windows
from pts_scott.errors import (
    BatchCoupledLossError,
    BatchNormError,
    EmptyDatasetError,
    MissingValuesError,
    ModelError,
    UnrepeatableLossError,
    WindowLossError,
)

PROBES = 3
GRADIENT_PROBES = 16
MORE_PROBES = 64  # windows of which some may be unlike the first
CHUNK = 1024


def check_model(losses: Losses, windows: WindowIndex) -> None:
    """Check everything that the method assumes of the network.

    Raises
    ------
    BatchNormError, WindowLossError, BatchCoupledLossError, MissingValuesError, ModelError
    """
    _check_parameters(losses, windows)
    _check_no_batch_norm(losses)
    check_missing_values(losses, windows)
    losses.copies = False
    losses.copies = any(
        _writes_into_batch(losses, windows, training) for training in (False, True)
    )
    _check_one_loss_a_window(losses, windows, training=False)
    if not is_stochastic(losses, windows):
        _check_one_loss_a_window(losses, windows, training=True)
    _check_gradients(losses, windows)


def _check_gradients(losses: Losses, windows: WindowIndex) -> None:
    """Refuse a network of which no window that is tried has a finite gradient."""
    parameters = tuple(losses.trainable().values())
    with (
        losses.mode(training=True),
        torch.enable_grad(),
        preserved_rng(windows.device),
        _same_buffers(losses),
    ):
        for number in _probe_windows(windows, GRADIENT_PROBES).split(1):
            loss = losses(windows.gather(number, losses.fields)).sum()
            gradient = autograd(loss, parameters)
            if all(bool(g.isfinite().all()) for g in gradient):
                return
    raise ModelError(
        f"{losses.name}.loss is finite, but its gradient is not, on any of "
        f"{GRADIENT_PROBES} windows before any training. Look for a root, a norm or a "
        "logarithm at zero, or for torch.where with a branch that is not finite."
    )


class Effects(NamedTuple):
    """What a training pass does besides its gradient."""

    random: frozenset[str]  # global generators that it draws from, as dropout does
    buffers: bool  # it changes buffers, as running means are


def training_effects(losses: Losses, windows: WindowIndex) -> Effects:
    """Try training passes on a few windows; the network stays as it was."""
    batch = windows.gather(_probe_windows(windows, 1), losses.fields)
    found = _effects(losses, batch, windows.device)
    with preserved_rng(windows.device):  # others may have gaps, which some networks fill
        batch = windows.gather(_probe_windows(windows, MORE_PROBES), losses.fields)
        more = _effects(losses, batch, windows.device)
    return Effects(found.random | more.random, found.buffers or more.buffers)


def _effects(losses: Losses, batch: Batch, device: torch.device) -> Effects:
    states = global_state(device)
    with losses.mode(training=True), torch.no_grad(), _same_buffers(losses) as before:
        losses(batch)
        changed = before.changed()
    return Effects(changed_sources(states, global_state(device)), changed)


def uncompilable(
    losses: Losses, windows: WindowIndex, stochastic: frozenset[str], stateful: bool
) -> str | None:
    """Return what keeps the steps of a network from being compiled; None for nothing."""
    if stochastic:
        return "draws random numbers in training"
    if stateful:
        return "changes its buffers in training"
    if any(p._backward_hooks for p in losses.trainable().values()):
        return "has parameters with gradient hooks"
    before = plain_attributes(losses.network)
    with losses.mode(training=True), torch.no_grad(), preserved_rng(windows.device):
        losses(windows.gather(_probe_windows(windows, 1), losses.fields))
    if plain_attributes(losses.network) != before:
        return "changes attributes of its own in training"
    return None


def plain_attributes(network: torch.nn.Module) -> dict[str, str]:
    """Return the numbers, flags and texts that a network holds as attributes, written.

    Compiled steps take them for constants.
    """
    return {
        f"{prefix}.{name}" if prefix else name: repr(value)
        for prefix, module in network.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str | None) and name != "training"
    }


def is_stochastic(losses: Losses, windows: WindowIndex) -> bool:
    """Return whether the training pass draws random numbers, as dropout does."""
    return bool(training_effects(losses, windows).random)


@contextmanager
def _same_buffers(losses: Losses) -> Iterator[Buffers]:
    """Restore the buffers on exit."""
    before = Buffers(losses)
    try:
        yield before
    finally:
        before.restore()


def _writes_into_batch(losses: Losses, windows: WindowIndex, training: bool) -> bool:
    batch = windows.gather(_probe_windows(windows, 1), losses.fields)
    # A gather may return one number expanded to many places, which nobody can write to.
    batch = {name: values.clone() for name, values in batch.items()}
    before = {name: values.clone() for name, values in batch.items()}
    with (
        losses.mode(training),
        torch.enable_grad(),
        # In evaluation mode it may draw: one seed gives what it gave before this check.
        preserved_rng(windows.device) if training else nullcontext(),
        _same_buffers(losses),
    ):
        try:
            losses(batch)
        except Exception:
            return False  # what is wrong with it is said by the next check
    return any(not torch.equal(before[name], batch[name]) for name in batch)


def _check_parameters(losses: Losses, windows: WindowIndex) -> None:
    parameters = losses.trainable()
    if not parameters:
        raise ModelError(
            f"{losses.name} has no parameter that requires a gradient; "
            "there is nothing to train."
        )
    for name, parameter in parameters.items():
        if parameter.is_complex():
            raise ModelError(
                f"parameter {name} is {parameter.dtype}; complex parameters are not "
                "supported. Hold it as real numbers, by torch.view_as_real, and use "
                "torch.view_as_complex in the network."
            )
    expected = windows.series.dtype
    if all(parameter.dtype != expected for parameter in parameters.values()):
        name, parameter = next(iter(parameters.items()))
        remedy = f"make the windows with dtype={parameter.dtype}, or cast the network"
        if parameter.dtype not in (torch.float32, torch.float64):
            remedy = (
                f"cast the network with .to({expected}); for passes in half precision "
                "pass trainer_kwargs={'precision': 'bf16-mixed'}"
            )
        raise ModelError(
            f"parameter {name} is {parameter.dtype}, but the windows are {expected}; "
            f"{remedy}."
        )


def _check_no_batch_norm(losses: Losses) -> None:
    for name, module in losses.network.named_modules():
        if isinstance(module, _BatchNorm):
            raise BatchNormError(
                f"the network has BatchNorm ({name}): its statistics tie the windows of "
                "a batch together, so that anchor and inner steps would belong to "
                "different objectives. Switch it off, or use LayerNorm or GroupNorm."
            )


def check_missing_values(losses: Losses, windows: WindowIndex) -> None:
    """Refuse missing values where the loss has no mask for them."""
    place = windows.series.first_missing()
    if place is not None and "future_observed_values" not in losses.fields:
        item_id, moment = place
        raise MissingValuesError(
            f"series {quote(item_id)} has no value at {moment}, and "
            f"{losses.name} has no mask for missing values. Fill the "
            "gaps, or use a model whose loss takes future_observed_values."
        )
    _check_something_observed(losses, windows)


def _check_something_observed(losses: Losses, windows: WindowIndex) -> None:
    """Refuse windows without anything to forecast, whose losses are all zero."""
    masks = {"future_observed_values"}
    if isinstance(windows, InstanceIndex):
        masks.add("past_observed_values")  # some libraries' losses count the context
    names = sorted(masks.intersection(losses.fields, windows.fields))
    if "future_observed_values" not in names:
        return
    for begin in range(0, len(windows), CHUNK):  # the first will do, but for strange data
        end = min(begin + CHUNK, len(windows))
        numbers = torch.arange(begin, end, device=windows.device)
        if any(bool(mask.any()) for mask in windows.gather(numbers, names).values()):
            return
    raise EmptyDatasetError(
        f"none of {len(windows)} windows has a value in its prediction range: all that "
        "the model could learn from, or be judged by, is missing. Fill the gaps, or take "
        "other series."
    )


def _check_one_loss_a_window(
    losses: Losses, windows: WindowIndex, training: bool
) -> None:
    numbers = _probe_windows(windows, PROBES)
    before = global_state(windows.device)
    with losses.mode(training), torch.no_grad():
        batch = windows.gather(numbers, losses.fields)  # once: a step may be random
        with _same_buffers(losses):
            try:
                together = _probe(losses, {name: x.clone() for name, x in batch.items()})
            except WindowLossError as error:
                raise _of_one_window(error, losses, windows, numbers) from error
        _check_shape(losses.name, together, len(numbers))
        if changed_sources(before, global_state(windows.device)):
            return  # random even in evaluation, as diffusion is: nothing to compare
        with _same_buffers(losses):
            again = losses({name: x.clone() for name, x in batch.items()})
        check_repeated(losses.name, together, again)
        parts = []
        for n in range(len(numbers)):
            with _same_buffers(losses):
                parts.append(losses({name: x[n : n + 1] for name, x in batch.items()}))
        alone = torch.cat(parts)
    # Rounding is far below a thousandth of the losses, whatever their unit.
    difference, size = (together - alone).abs().max(), together.abs().max()
    if difference > 1e-3 * size:
        raise BatchCoupledLossError(
            f"the loss of a window under {losses.name} changes with "
            f"the windows beside it: {together.tolist()} together, {alone.tolist()} "
            "alone. Scale each window by its own context."
        )


def check_repeated(name: str, first: torch.Tensor, again: torch.Tensor) -> None:
    """Refuse a network whose losses differ when a pass is repeated.

    Parameters
    ----------
    name
        What the network is called.
    first, again
        Losses of the same windows, with the same parameters, buffers and random state.

    Raises
    ------
    UnrepeatableLossError
    """
    tolerance = math.sqrt(torch.finfo(first.dtype).eps)
    if torch.allclose(first, again, rtol=tolerance, atol=0.0):
        return
    raise UnrepeatableLossError(
        f"{name}.loss gives {first.tolist()} and then {again.tolist()} for the same "
        "windows, parameters and random state. It draws from a generator of its own "
        "(numpy.random.default_rng(), torch.Generator()), or keeps state outside its "
        "buffers, so the two passes of an inner step would differ, and a resumed run, "
        "too. Draw from torch's global generator (torch.randn, nn.Dropout), and keep "
        "state in register_buffer."
    )


def _of_one_window(
    error: WindowLossError, losses: Losses, windows: WindowIndex, numbers: torch.Tensor
) -> WindowLossError:
    """The error, with the window that alone is to blame, if not all of them are."""
    bad = [n for n in numbers.split(1) if failing(losses, windows, n) is not None]
    if not 0 < len(bad) < len(numbers):
        return error
    return WindowLossError(
        f"{error} It fails on {name_windows(windows, torch.cat(bad))}. Look at the "
        "values and features there: a category, say, must be below its cardinality."
    )


def _probe(losses: Losses, batch: Batch) -> torch.Tensor:
    """The losses of a few windows, or what the network makes of them instead."""
    name = losses.name
    try:
        with torch.enable_grad():
            loss = losses(batch)
    except Exception as error:
        shapes = ", ".join(f"{k} {tuple(batch[k].shape)}" for k in losses.fields)
        raise WindowLossError(
            f"{name}.loss failed on a batch with {shapes}: {cause(error)}."
        ) from error
    if not isinstance(loss, torch.Tensor):
        raise WindowLossError(
            f"{name}.loss returned {type(loss).__name__}; expected a tensor with one "
            "loss a window."
        )
    if not loss.requires_grad:
        raise WindowLossError(
            f"{name}.loss does not depend on the parameters: something detaches it, e.g. "
            "torch.no_grad(), .detach() or .item()."
        )
    if not bool(loss.isfinite().all()):
        raise ModelError(
            f"{name}.loss is {loss.tolist()} on windows of the data before any training; "
            "the method needs finite losses. Divide the series by a number that brings "
            "their values near 1, and see that none jumps by many orders of magnitude."
        )
    return loss.detach()


def _check_shape(name: str, loss: torch.Tensor, size: int) -> None:
    if loss.shape == (size,):
        return
    reason = (
        "one number for the whole batch"
        if loss.ndim == 0
        else f"shape {tuple(loss.shape)} for {size} windows"
    )
    raise WindowLossError(
        f"{name}.loss gives {reason}; strata have weights, so the "
        f"method needs one loss a window, of shape ({size},). Take the mean over all "
        "dimensions but the first."
    )


def _probe_windows(windows: WindowIndex, size: int) -> torch.Tensor:
    """A few windows, spread evenly."""
    return evenly_spaced(len(windows), size).to(windows.device)
