"""Check the network before the first step: repeatable passes, all parameters found."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pts_scott._utils.spacing import evenly_spaced
from pts_scott._utils.text import shorten
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.model_checks import check_repeated
from pts_scott.engine.plain_passes import PlainPasses
from pts_scott.errors import HiddenParameterError, SelfCheckError

WINDOWS = 4  # windows of a pass that is not compiled for a fixed number
CANDIDATES = 16  # windows to choose from where some are non-finite

REGISTER = (
    "Register it as an attribute of its module, or in nn.ParameterList, nn.ModuleList or "
    "nn.ParameterDict, and use it from there."
)


class NetworkFacts(NamedTuple):
    """Findings of the check.

    Parameters
    ----------
    finite
        Windows whose losses and gradients are finite when the run begins.
    idle
        Indices of parameters that their losses do not depend on.
    """

    finite: Tensor
    idle: frozenset[int]


def check_network(
    passes: PlainPasses, windows: WindowIndex, *, uses_snapshot: bool
) -> NetworkFacts:
    """Check that a training pass can be repeated, and finds all its parameters.

    Parameters
    ----------
    passes
        Plain passes of the network.
    windows
        The training windows, of which a few are used.
    uses_snapshot
        Whether gradients are taken at a snapshot, too.

    Raises
    ------
    UnrepeatableLossError, HiddenParameterError, SelfCheckError
    """
    _check_memory(passes)
    _check_hooks(passes, uses_snapshot)
    with passes.restored():
        finite = _finite_windows(passes, windows)
        if not len(finite):  # training itself names non-finite windows
            return NetworkFacts(finite, frozenset())
        first, again = passes.losses(finite), passes.losses(finite)
        check_repeated(passes.network_losses.name, first, again)
        _check_leaves(passes, first, again)
        used = torch.autograd.grad(again.sum(), passes.parameters, allow_unused=True)
        idle = frozenset(n for n, gradient in enumerate(used) if gradient is None)
        return NetworkFacts(finite, idle)


def check_functional(passes: PlainPasses, gradients: Gradients, finite: Tensor) -> None:
    """Check the gradient at other parameters, as it is compiled.

    Raises
    ------
    HiddenParameterError
        If it differs from autograd's.
    Exception
        Any error that torch raises on such a network.
    """
    if not len(finite):
        return
    with passes.restored():
        weights, values = passes.unequal_weights(finite), tuple(passes.moved_parameters())
        expected = passes.gradient(finite, weights, values)
        passes.rewind()
        batch = passes.gather(finite)
        found, _ = gradients.functional(values, gradients.buffers, batch, weights)
        wrong = passes.differing(found, expected)
        if wrong:
            raise HiddenParameterError(
                f"the gradient of {passes.network_losses.name} with other values for its "
                f"parameters is wrong in {shorten(wrong)}. Does it use "
                "parameters other than by their registered names? "
                f"{REGISTER} Or pass compile=False."
            )


def _check_memory(passes: PlainPasses) -> None:
    """Refuse parameters that cannot be updated in place."""
    for name, parameter in zip(passes.names, passes.parameters, strict=True):
        places = zip(parameter.shape, parameter.stride(), strict=True)
        if any(size > 1 and stride == 0 for size, stride in places):
            raise SelfCheckError(
                f"parameter {name} is an expanded tensor, several of whose elements "
                "share memory, so it cannot be updated; register a .clone() of it."
            )


def _check_hooks(passes: PlainPasses, uses_snapshot: bool) -> None:
    """Refuse gradient hooks that the engine would not call as autograd does."""
    for name, parameter in zip(passes.names, passes.parameters, strict=True):
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise SelfCheckError(
                f"parameter {name} has a post-accumulate gradient hook, which would "
                "not be called: gradients are not accumulated in .grad here. Remove "
                "it, and do its work in an optimizer."
            )
        if parameter._backward_hooks and uses_snapshot:
            raise SelfCheckError(
                f"parameter {name} has a gradient hook, which would change the "
                "gradient at the parameters and not that at the snapshot. Remove "
                "it (clip_gradient bounds updates), or pass method='plain' or "
                "'stratified'."
            )


def _finite_windows(passes: PlainPasses, windows: WindowIndex) -> Tensor:
    """Return a few windows whose losses and gradients are finite."""
    size, device = len(windows), windows.device
    chosen = evenly_spaced(size, WINDOWS).to(device)
    if passes.is_finite(chosen):
        return chosen
    candidates = evenly_spaced(size, CANDIDATES).to(device)
    finite = [n for n in candidates.split(1) if passes.is_finite(n)]
    return torch.cat(finite[:WINDOWS]) if finite else candidates[:0]


def _check_leaves(passes: PlainPasses, first: Tensor, again: Tensor) -> None:
    """Raise if tensors have a gradient but would never be trained."""
    known = {id(p) for p in passes.parameters}
    held = _leaves(first)
    before = {id(leaf) for leaf in held}
    # A leaf that appears in both passes was not made by the pass itself.
    hidden = [x for x in _leaves(again) if id(x) in before and id(x) not in known]
    if hidden:
        network, name = passes.network_losses.network, passes.network_losses.name
        places = [_location_of(x, network) for x in hidden]
        raise HiddenParameterError(
            f"{name} has parameters that torch does not know of, so "
            f"they would never be trained: {shorten(places)}. {REGISTER}"
        )


def _leaves(tensor: Tensor) -> list[Tensor]:
    """Return all tensors to which a backward pass would add a gradient."""
    found, seen, stack = [], set(), [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            found.append(node.variable)  # type: ignore[attr-defined]
        stack += [parent for parent, _ in node.next_functions]
    return found


def _location_of(tensor: Tensor, network: nn.Module) -> str:
    """Return where a network holds a tensor, for a message."""
    for prefix, module in network.named_modules():
        for name, value in vars(module).items():
            for key, item in _items(value):
                held = item.parameters() if isinstance(item, nn.Module) else [item]
                if any(x is tensor for x in held) and not name.startswith("_"):
                    path = f"{prefix}.{name}" if prefix else name
                    return path if key is None else f"{path}[{key!r}]"
    return f"a tensor of shape {tuple(tensor.shape)}"


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    return [(None, value)]
