"""Checks that a GluonTS Lightning module is trained by the loss of its model."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from pts_scott._utils.rng import isolated_rng
from pts_scott._utils.text import cause
from pts_scott.backends.gluonts.losses import GluonTSLosses
from pts_scott.backends.window_sample import sample_batch
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.buffers import Buffers
from pts_scott.errors import ModelError, ScottWarning, WindowLossError


def model_of(module: nn.Module) -> nn.Module:
    """Return the model of a Lightning module, which has the loss.

    Raises
    ------
    WindowLossError
        If there is no model with a loss.
    ModelError
        If the module has parameters that the model does not have.
    """
    model = getattr(module, "model", None)
    if not isinstance(model, nn.Module) or not callable(getattr(model, "loss", None)):
        raise WindowLossError(
            f"{type(module).__name__} has no model that returns one loss per window; "
            "expected module.model.loss(past_target, …), as GluonTS' modules have."
        )
    others = {id(p) for p in module.parameters()} - {id(p) for p in model.parameters()}
    if others:
        raise ModelError(
            f"{type(module).__name__} has parameters outside of its model, which the "
            "model's loss cannot train; move them into the model."
        )
    return model


def check_module_steps(module: Any, network: GluonTSLosses, windows: WindowIndex) -> None:
    """Check that a custom module trains and validates by its model's loss.

    Raises
    ------
    WindowLossError
        If its ``training_step`` returns anything but the mean of the model's loss.
    """
    if not type(module).validation_step.__module__.startswith("gluonts."):
        warnings.warn(
            f"{type(module).__name__}.validation_step is not called: val_loss is the "
            "mean of the model's loss over the validation windows.",
            ScottWarning,
            stacklevel=5,
        )
    if type(module).training_step.__module__.startswith("gluonts."):
        return
    batch = sample_batch(windows, windows.fields)
    before = module.training
    module.log = lambda *_, **__: None  # there is no Lightning trainer to log to yet
    try:
        for training in (False, True):
            module.train(training)
            _check_training_step(module, network, batch)
    finally:
        del module.log
        module.train(before)


def _check_training_step(
    module: Any, network: GluonTSLosses, batch: dict[str, Tensor]
) -> None:
    own = {name: batch[name].clone() for name in network.loss_fields}
    device = next(iter(own.values())).device
    buffers = Buffers(module)
    with torch.no_grad():
        with isolated_rng(0, device):
            found = network.loss(**own).mean()
        buffers.restore()
        try:
            with isolated_rng(0, device):
                expected = module.training_step(batch, 0)
        except Exception as error:
            raise WindowLossError(
                f"{type(module).__name__}.training_step failed on a batch "
                f"({cause(error)}), so its loss cannot be compared with that of its "
                "model; it must run without a Lightning trainer."
            ) from error
        finally:
            buffers.restore()
    expected = expected["loss"] if isinstance(expected, dict) else expected
    if not torch.allclose(found, expected.to(found), rtol=1e-3):
        raise WindowLossError(
            f"{type(module).__name__}.training_step returns {float(expected):.6g}, but "
            f"the mean of its model's loss is {float(found):.6g}. Strata have weights, "
            "so model.loss(…) must return the whole objective, as one loss per window."
        )
