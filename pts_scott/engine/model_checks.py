"""Refuse, before training starts, a model that violates the method's assumptions."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from pts_scott._utils.rng import changed_sources, global_state, preserved_rng
from pts_scott._utils.text import cause, quote
from pts_scott.data.instance_index import InstanceIndex
from pts_scott.data.window_index import Batch, WindowIndex
from pts_scott.engine.losses import Losses
from pts_scott.engine.nonfinite_windows import failing_window, name_windows
from pts_scott.engine.tensors import autograd
from pts_scott.engine.training_effects import (
    is_stochastic,
    probe_windows,
    same_buffers,
)
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
CHUNK = 1024  # windows searched at once for observed values


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
    _check_one_loss_per_window(losses, windows, training=False)
    if not is_stochastic(losses, windows):
        _check_one_loss_per_window(losses, windows, training=True)
    _check_gradients(losses, windows)


def _check_gradients(losses: Losses, windows: WindowIndex) -> None:
    """Refuse a network whose gradient is non-finite on all of some windows."""
    parameters = tuple(losses.trainable().values())
    with (
        losses.mode(training=True),
        torch.enable_grad(),
        preserved_rng(windows.device),
        same_buffers(losses),
    ):
        for number in probe_windows(windows, GRADIENT_PROBES).split(1):
            loss = losses(windows.gather(number, losses.fields)).sum()
            gradient = autograd(loss, parameters)
            if all(bool(g.isfinite().all()) for g in gradient):
                return
    raise ModelError(
        f"{losses.name}.loss is finite, but its gradient is not, on any of "
        f"{GRADIENT_PROBES} windows before any training. Check for a root, a norm or a "
        "logarithm at zero, or for torch.where with a non-finite branch."
    )


def _writes_into_batch(losses: Losses, windows: WindowIndex, training: bool) -> bool:
    """Return whether a pass changes the batch that it is given."""
    batch = windows.gather(probe_windows(windows, 1), losses.fields)
    # A gather may return one number expanded to many places, which is read-only.
    batch = {name: values.clone() for name, values in batch.items()}
    before = {name: values.clone() for name, values in batch.items()}
    with (
        losses.mode(training),
        torch.enable_grad(),
        # Draws in evaluation mode advance the random state, on which results depend.
        preserved_rng(windows.device) if training else nullcontext(),
        same_buffers(losses),
    ):
        try:
            losses(batch)
        except Exception:
            return False  # the next check reports the error
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
                f"the network has BatchNorm ({name}): its statistics couple the windows "
                "of a batch, so anchor and inner steps would have different "
                "objectives. Switch it off, or use LayerNorm or GroupNorm."
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
    _check_observed_values(losses, windows)


def _check_observed_values(losses: Losses, windows: WindowIndex) -> None:
    """Refuse windows without a value to forecast, whose losses are all zero."""
    masks = {"future_observed_values"}
    if isinstance(windows, InstanceIndex):
        masks.add("past_observed_values")  # some libraries' losses count the context
    names = sorted(masks.intersection(losses.fields, windows.fields))
    if "future_observed_values" not in names:
        return
    for begin in range(0, len(windows), CHUNK):  # the first one nearly always suffices
        end = min(begin + CHUNK, len(windows))
        numbers = torch.arange(begin, end, device=windows.device)
        if any(bool(mask.any()) for mask in windows.gather(numbers, names).values()):
            return
    raise EmptyDatasetError(
        f"none of {len(windows)} windows has a value in its prediction range: there is "
        "nothing to learn from or to evaluate. Fill the gaps, or use other series."
    )


def _check_one_loss_per_window(
    losses: Losses, windows: WindowIndex, training: bool
) -> None:
    numbers = probe_windows(windows, PROBES)
    before = global_state(windows.device)
    with losses.mode(training), torch.no_grad():
        batch = windows.gather(numbers, losses.fields)  # once: a step may be random
        with same_buffers(losses):
            try:
                together = _probe(losses, {name: x.clone() for name, x in batch.items()})
            except WindowLossError as error:
                raise _with_failing_windows(error, losses, windows, numbers) from error
        _check_shape(losses.name, together, len(numbers))
        if changed_sources(before, global_state(windows.device)):
            return  # random even in evaluation mode, as diffusion is: not comparable
        with same_buffers(losses):
            again = losses({name: x.clone() for name, x in batch.items()})
        check_repeated(losses.name, together, again)
        parts = []
        for n in range(len(numbers)):
            with same_buffers(losses):
                parts.append(losses({name: x[n : n + 1] for name, x in batch.items()}))
        alone = torch.cat(parts)
    # Rounding errors are far below a thousandth of the losses, in any unit; but an
    # accelerator may round products to ten bits (TF32), and differently for one window.
    limit = 1e-3 if together.device.type == "cpu" else 1e-2
    difference, size = (together - alone).abs().max(), together.abs().max()
    if difference > limit * size:
        raise BatchCoupledLossError(
            f"the loss of a window under {losses.name} depends on "
            f"the other windows of its batch: {together.tolist()} together, "
            f"{alone.tolist()} alone. Scale each window by its own context."
        )


def check_repeated(name: str, first: torch.Tensor, again: torch.Tensor) -> None:
    """Refuse a network whose losses differ when a pass is repeated.

    Parameters
    ----------
    name
        Name of the network.
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
        f"{name}.loss returns {first.tolist()} and then {again.tolist()} for the same "
        "windows, parameters and random state. It draws from its own generator "
        "(numpy.random.default_rng(), torch.Generator()), or keeps state outside its "
        "buffers, so the two passes of an inner step would differ, and so would a "
        "resumed run. Draw from torch's global generator (torch.randn, nn.Dropout), and "
        "keep state in register_buffer."
    )


def _with_failing_windows(
    error: WindowLossError, losses: Losses, windows: WindowIndex, numbers: torch.Tensor
) -> WindowLossError:
    """Return the error with the windows that cause it, if not all of them do."""
    bad = [n for n in numbers.split(1) if failing_window(losses, windows, n) is not None]
    if not 0 < len(bad) < len(numbers):
        return error
    return WindowLossError(
        f"{error} It fails on {name_windows(windows, torch.cat(bad))}. Check the "
        "values and features there: a category, for example, must be below its "
        "cardinality."
    )


def _probe(losses: Losses, batch: Batch) -> torch.Tensor:
    """Return the losses of a few windows; raise an error if they cannot be used."""
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
            "loss per window."
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
            "their values near 1, and check that none jumps by many orders of magnitude."
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
        f"{name}.loss returns {reason}; strata have weights, so the "
        f"method needs one loss per window, of shape ({size},). Take the mean over all "
        "dimensions but the first."
    )
