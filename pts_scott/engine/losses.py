"""Losses: one per window, from the network that is trained."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import stateless

from pts_scott.data.window_index import WINDOW_FIELDS, Batch, WindowIndex
from pts_scott.engine.buffers import set_buffers
from pts_scott.errors import WindowLossError
from pts_scott.method.protocol import Tensors

EVALUATION_BATCH = 1024


class Losses(nn.Module):
    """One loss per window, from a network that has ``loss(**fields)``.

    Parameters
    ----------
    network
        A module whose ``loss`` takes fields of a batch by name (``past_target``,
        ``future_target``, ``future_observed_values``, …) and returns a tensor with
        one loss per window.
    available
        Fields that windows have.

    Raises
    ------
    WindowLossError
        If there is no such method, or it asks for fields that windows don't have.
    """

    def __init__(
        self, network: nn.Module, available: Sequence[str] = WINDOW_FIELDS
    ) -> None:
        super().__init__()
        self.network = network
        self.training = network.training
        self.fields = loss_fields(network, available)
        #: The network's name in messages.
        self.name = type(getattr(network, "wrapped", network)).__name__
        #: Whether the network writes into its batch, so that each pass needs a copy.
        self.copies = False

    def forward(self, batch: Batch) -> Tensor:
        fields = {name: batch[name] for name in self.fields}
        if self.copies:
            fields = {name: values.clone() for name, values in fields.items()}
        return self.network.loss(**fields)  # type: ignore[operator, no-any-return]

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        """Switch to training or evaluation mode, and back on exit."""
        before = self.training
        self.train(training)
        try:
            yield
        finally:
            self.train(before)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by name; tied weights once."""
        return {k: p for k, p in self.named_parameters() if p.requires_grad}

    def copy_state(self) -> dict[str, dict[str, Tensor]]:
        """Copy trained parameters and buffers, which belong together."""
        return {
            "parameters": {k: p.detach().clone() for k, p in self.trainable().items()},
            "buffers": {name: buffer.clone() for name, buffer in self.named_buffers()},
        }

    def restore_state(self, copy: Any) -> None:
        """Restore the state that `copy_state` returned."""
        with torch.no_grad():
            for name, parameter in self.trainable().items():
                parameter.copy_(copy["parameters"][name])
        set_buffers(self, copy["buffers"])

    # -- other values in place of the parameters --------------------------------------

    def places(self) -> list[tuple[str, ...]]:
        """Return every name of each trained parameter: tied weights have several.

        A module that is held under two names is one module, and its parameters have one
        name here. (``functional_call`` knows tied weights, but exchanges those of such a
        module twice, and restores the wrong ones.)
        """
        found: dict[int, list[str]] = {id(p): [] for p in self.trainable().values()}
        for prefix, module in self.named_modules():
            own = module.named_parameters(prefix, recurse=False, remove_duplicate=False)
            for name, parameter in own:
                if id(parameter) in found:
                    found[id(parameter)].append(name)
        return [tuple(names) for names in found.values()]

    def buffer_places(self) -> list[tuple[str, ...]]:
        """Return every name of each buffer."""
        found: dict[int, list[str]] = {id(b): [] for b in self.buffers()}
        for name, buffer in self.named_buffers(remove_duplicate=False):
            found[id(buffer)].append(name)
        return [tuple(names) for names in found.values()]

    def at(
        self, places: Sequence[tuple[str, ...]], values: Tensors, batch: Batch
    ) -> Tensor:
        """Return one loss per window with other values in place of parameters."""
        named = _by_name(places, values)
        return functional_call(self, named, (batch,), tie_weights=False)

    def exchanged(
        self, places: Sequence[tuple[str, ...]], values: Tensors
    ) -> AbstractContextManager[None]:
        """Put other values in the ``places`` of parameters until the context exits.

        A backward pass may run parts of the network again (activation checkpointing), so
        it has to find them, too.
        """
        named = _by_name(places, values)
        return stateless._reparametrize_module(self, named, tie_weights=False)  # type: ignore[no-any-return]


def _by_name(places: Sequence[tuple[str, ...]], values: Tensors) -> dict[str, Tensor]:
    return {name: value for names, value in zip(places, values) for name in names}


def loss_fields(network: nn.Module, available: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the available fields that the network's loss takes."""
    if hasattr(network, "loss_fields"):  # it declares them
        return tuple(network.loss_fields)  # type: ignore[arg-type]
    loss = getattr(network, "loss", None)
    if not callable(loss):
        raise WindowLossError(
            f"{type(network).__name__} has no method loss(past_target, future_target, …) "
            "that returns one loss per window. Add one: the mean over a batch is not "
            "enough, because strata have weights."
        )
    fields = []
    for name, parameter in inspect.signature(loss).parameters.items():
        if name in available:
            fields.append(name)
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise WindowLossError(
                f"the loss of {type(network).__name__} asks for {name!r}; windows have "
                f"{', '.join(available)}."
            )
    return tuple(fields)


def batch_size(batch: Batch) -> int:
    """Return the number of windows in a batch."""
    return len(next(iter(batch.values())))


def evaluate(
    losses: Losses, windows: WindowIndex, numbers: Tensor | None = None
) -> Tensor:
    """Return the mean loss over windows of an index, in evaluation mode; None for all."""
    if numbers is None:
        numbers = torch.arange(len(windows))
    parts = numbers.to(windows.device).split(EVALUATION_BATCH)
    batches = (windows.gather(part, losses.fields) for part in parts)
    with losses.mode(training=False):
        return mean_loss(losses, batches)


def mean_loss(losses: Losses, batches: Iterable[Batch]) -> Tensor:
    """Return the mean loss over all windows of some batches, without gradients."""
    total: Tensor | float = 0.0
    size = 0
    with torch.no_grad():
        for batch in batches:
            values = losses(batch)
            # MPS has no double precision.
            values = values.cpu() if values.device.type == "mps" else values
            total = total + values.double().sum()
            size += batch_size(batch)
    return torch.as_tensor(total) / size
