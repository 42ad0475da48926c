"""Side effects of a training pass: random draws, changed buffers and attributes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from pts_scott._utils.rng import changed_sources, global_state, preserved_rng
from pts_scott._utils.spacing import evenly_spaced
from pts_scott.data.window_index import Batch, WindowIndex
from pts_scott.engine.buffers import Buffers
from pts_scott.engine.isolation import without_cudnn
from pts_scott.engine.losses import Losses

MORE_PROBES = 64  # more windows, some of which may differ from the first


class TrainingEffects(NamedTuple):
    """The side effects of a training pass.

    Parameters
    ----------
    random
        Names of the global generators that it draws from, as dropout does.
    buffers
        Whether it changes buffers, as running means do.
    """

    random: frozenset[str]
    buffers: bool


def training_effects(losses: Losses, windows: WindowIndex) -> TrainingEffects:
    """Run training passes on a few windows; leave the network unchanged."""
    batch = windows.gather(probe_windows(windows, 1), losses.fields)
    found = _effects(losses, batch, windows.device)
    with preserved_rng(windows.device):  # e.g. some networks draw only to fill gaps
        batch = windows.gather(probe_windows(windows, MORE_PROBES), losses.fields)
        more = _effects(losses, batch, windows.device)
    return TrainingEffects(found.random | more.random, found.buffers or more.buffers)


def _effects(losses: Losses, batch: Batch, device: torch.device) -> TrainingEffects:
    states = global_state(device)
    with (
        losses.mode(training=True),
        torch.no_grad(),
        without_cudnn(device),  # whose dropout would not be noticed
        same_buffers(losses) as before,
    ):
        losses(batch)
        changed = before.changed()
    return TrainingEffects(changed_sources(states, global_state(device)), changed)


def is_stochastic(losses: Losses, windows: WindowIndex) -> bool:
    """Return whether the training pass draws random numbers, as dropout does."""
    return bool(training_effects(losses, windows).random)


def why_uncompilable(
    losses: Losses, windows: WindowIndex, effects: TrainingEffects
) -> str | None:
    """Return what prevents the steps of a network from being compiled; None if nothing.

    Compiled steps run none of the network's Python code: only random numbers of torch,
    and buffers that are changed in place, follow it from step to step.
    """
    if effects.random & {"numpy", "python"}:
        return "draws random numbers with NumPy or Python in training"
    if any(p._backward_hooks for p in losses.trainable().values()):
        return "has parameters with gradient hooks"
    memory = [p.data_ptr() for p in losses.trainable().values() if p.numel()]
    if len({*memory}) < len(memory):
        return "has parameters that share their memory"
    recurrent = [m for m in losses.modules() if isinstance(m, nn.RNNBase)]
    if not all(map(keeps_fused_kernel, recurrent)):
        return (
            "has recurrent layers without a fused kernel (only LSTM layers have one, in "
            "single precision on the CPU), which compilation would unroll"
        )
    before = compiled_attributes(losses.network)
    with (
        losses.mode(training=True),
        torch.no_grad(),
        preserved_rng(windows.device),
        same_buffers(losses),
    ):
        losses(windows.gather(probe_windows(windows, 1), losses.fields))
        after = compiled_attributes(losses.network)
    if after != before:
        return "changes its own attributes in training"
    return None


def keeps_fused_kernel(layer: nn.Module) -> bool:
    """Return whether a recurrent layer has a kernel that compiled steps can contain."""
    return (
        isinstance(layer, nn.LSTM)
        and layer.proj_size == 0
        and torch.backends.mkldnn.is_available()
        and all(
            p.dtype == torch.float32 and p.device.type == "cpu"
            for p in layer.parameters()
        )
    )


def compiled_attributes(network: nn.Module) -> dict[str, Any]:
    """Return the attributes of a network that compiled steps treat as constants.

    Numbers, flags and strings, also within lists and tables, by their value; tensors,
    buffers and frozen parameters by the memory that they use.
    """
    found: dict[str, Any] = {}
    for prefix, module in network.named_modules():
        frozen = {k: p for k, p in module._parameters.items() if _is_frozen(p)}
        for name, value in (vars(module) | module._buffers | frozen).items():
            path = f"{prefix}.{name}" if prefix else name
            if isinstance(value, torch.Tensor):
                found[path] = value.data_ptr(), value.shape, value.stride()
            elif name not in INTERNAL and _is_plain(value):
                found[path] = repr(value)
    return found


#: Tables of torch's modules, whose content is looked at elsewhere.
INTERNAL = frozenset(vars(nn.Module())) - {"training"}


def _is_frozen(parameter: torch.Tensor | None) -> bool:
    return parameter is not None and not parameter.requires_grad


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return isinstance(value, bool | int | float | str | None)


@contextmanager
def same_buffers(losses: Losses) -> Iterator[Buffers]:
    """Restore the buffers on exit."""
    before = Buffers(losses)
    try:
        yield before
    finally:
        before.restore()


def probe_windows(windows: WindowIndex, size: int) -> torch.Tensor:
    """Return a few windows, evenly spaced."""
    return evenly_spaced(len(windows), size).to(windows.device)
