"""Gradient estimators: uniform, stratified, and control variate.

All of them rest on one thing, the gradient of a weighted sum of window losses at
given parameters. There are two ways to take it, with one meaning: by autograd on
the module as it is (fast without compilation, and keeps fused kernels such as the
LSTM's), and by ``torch.func`` inside one compiled function. Parameters, snapshot
and anchor are tuples of plain tensors in the order of ``Gradients.parameters``.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.nn.utils import stateless

from pts_scott._utils.rng import global_state, set_global_state
from pts_scott.data.window_index import WINDOW_FIELDS, Batch
from pts_scott.errors import WindowLossError

Tensors = tuple[Tensor, ...]

BACKEND = "inductor"  # of torch.compile
LARGEST = torch.finfo(torch.float64).max  # of all that is finite


class Losses(nn.Module):
    """One loss a window, from a network that has ``loss(**fields)``.

    Parameters
    ----------
    network
        A module whose ``loss`` takes fields of a batch by name (``past_target``,
        ``future_target``, ``future_observed_values``, …) and returns a tensor with
        one loss for each window.
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
        #: What the network is called in messages.
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
        """Training or evaluation mode for a while, and then the old one again."""
        before = self.training
        self.train(training)
        try:
            yield
        finally:
            self.train(before)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Parameters that are trained, by name; tied weights once."""
        return {k: p for k, p in self.named_parameters() if p.requires_grad}

    def places(self) -> list[tuple[str, ...]]:
        """For each trained parameter, every name of it: tied weights have several.

        A module that is held under two names is one module, and its parameters have one
        name here. (``functional_call`` knows tied weights, but exchanges those of such a
        module twice, and leaves the wrong ones behind.)
        """
        found: dict[int, list[str]] = {id(p): [] for p in self.trainable().values()}
        for prefix, module in self.named_modules():
            own = module.named_parameters(prefix, recurse=False, remove_duplicate=False)
            for name, parameter in own:
                if id(parameter) in found:
                    found[id(parameter)].append(name)
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
        """Put other values in the ``places`` of parameters for a while.

        A backward pass may run parts of the network again (activation checkpointing), so
        it has to find them, too.
        """
        named = _by_name(places, values)
        return stateless._reparametrize_module(self, named, tie_weights=False)  # type: ignore[no-any-return]


def _by_name(places: Sequence[tuple[str, ...]], values: Tensors) -> dict[str, Tensor]:
    return {name: value for names, value in zip(places, values) for name in names}


def loss_fields(network: nn.Module, available: Sequence[str]) -> tuple[str, ...]:
    """Names of the fields that the network's loss takes, of those that there are."""
    if hasattr(network, "loss_fields"):  # it knows which
        return tuple(network.loss_fields)  # type: ignore[arg-type]
    loss = getattr(network, "loss", None)
    if not callable(loss):
        raise WindowLossError(
            f"{type(network).__name__} has no method loss(past_target, future_target, …) "
            "that returns one loss a window. Give it one: the mean over a batch is not "
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


class Update(NamedTuple):
    """What one gradient estimator returns."""

    direction: Tensors
    loss: Tensor


class Gradients:
    """Gradients of window losses, counted where they are computed.

    Parameters
    ----------
    losses
        The window losses of a network.
    compiled
        Take gradients by ``torch.func`` in compiled functions, not by autograd.
    """

    def __init__(self, losses: Losses, *, compiled: bool = False) -> None:
        self.losses = losses
        self._places = losses.places()
        self.parameters: Tensors = tuple(losses.trainable().values())
        #: The finest of the parameters' types, in which windows are weighted.
        types = (p.dtype for p in self.parameters)
        self.dtype = functools.reduce(torch.promote_types, types)
        self.compiled = compiled
        self._direction: Tensors = ()  # v, in the same place in every step
        #: Global generators that a pass draws from, which the second pass must repeat.
        self.stochastic: frozenset[str] = frozenset()
        #: Whether a pass changes buffers of the network, which the second must not see.
        self.stateful = False
        #: Of half precision: losses are multiplied by its scale before a backward pass,
        #: and gradients divided by it after, in every pass alike.
        self.scaler: torch.amp.GradScaler | None = None
        #: Places of parameters that no loss was seen to depend on. They are not updated
        #: while their direction is zero, or weight decay would wear them away.
        self.idle: frozenset[int] = frozenset()
        #: Windows whose gradient was computed: M a plain step, 2 M an inner step.
        self.count = 0
        self._single: _Single = self._autograd
        self._pair: _Pair = self._autograd_pair
        if compiled:
            self._single = compiled_method(self.functional)
            self._pair = compiled_method(self.functional_pair)

    def use_autograd(self) -> None:
        """Compile nothing from now on."""
        self.compiled = False
        self._single, self._pair = self._autograd, self._autograd_pair

    def uniform(self, batch: Batch) -> Update:
        """∇f_ξ(θ): the mean gradient of a uniform mini-batch."""
        return self.stratified(batch, self.equal_weights(batch))

    def equal_weights(self, batch: Batch) -> Tensor:
        """1/M for each of the M windows of a mini-batch."""
        size, device = _size(batch), next(iter(batch.values())).device
        return torch.full((size,), 1 / size, dtype=self.dtype, device=device)

    def stratified(self, batch: Batch, weights: Tensor) -> Update:
        """Σ_j weights_j ∇f_j(θ) in one batched pass.

        With ``weights`` w_i / b for the b windows of stratum i this is the anchor.
        """
        self.count += _size(batch)
        return Update(*self._single(self.parameters, batch, weights))

    def control_variate(
        self, batch: Batch, snapshot: Tensors, anchor: Tensors, coefficient: float
    ) -> Update:
        """∇f_ξ(θ) − c · (∇f_ξ(snapshot) − anchor) on a uniform mini-batch ξ.

        The direction is good until the next call.
        """
        self.count += 2 * _size(batch)
        # A number would be compiled into the function; a tensor may change.
        c = torch.as_tensor(coefficient).to(anchor[0]) if self.compiled else coefficient
        return Update(*self._pair(self.parameters, snapshot, anchor, c, batch))

    def share_of_control_variate(
        self,
        batch: Batch,
        weights: Tensor,
        snapshot: Tensors,
        anchor: Tensors | None,
        coefficient: float,
    ) -> Update:
        """Σ_j weights_j (∇f_j(θ) − c ∇f_j(snapshot)), and c · anchor if it is given.

        What one of several processes adds to v; always by autograd.
        """
        self.count += 2 * _size(batch)
        pair = self._weighted_pair
        return Update(*pair(snapshot, anchor, coefficient, batch, weights))

    # -- by autograd, on the module as it is ----------------------------------------

    def _autograd(
        self, parameters: Tensors, batch: Batch, weights: Tensor
    ) -> tuple[Tensors, Tensor]:
        scale = self.scale
        with self._repeatable(weights.device):
            loss = (weights * self.losses(batch)).sum()
        dense = autograd(loss * scale if scale != 1.0 else loss, parameters)
        if scale != 1.0:
            dense = tuple(g / scale for g in dense)
        return dense, loss.detach()

    @property
    def scale(self) -> float:
        """By what a loss is multiplied before a backward pass; 1 in full precision."""
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    def _autograd_pair(
        self,
        parameters: Tensors,
        snapshot: Tensors,
        anchor: Tensors,
        coefficient: float | Tensor,
        batch: Batch,
    ) -> tuple[Tensors, Tensor]:
        weights = self.equal_weights(batch)
        return self._weighted_pair(snapshot, anchor, float(coefficient), batch, weights)

    def _weighted_pair(
        self,
        snapshot: Tensors,
        anchor: Tensors | None,
        c: float,
        batch: Batch,
        weights: Tensor,
    ) -> tuple[Tensors, Tensor]:
        # Both passes add to v in place, where the anchor lies already: large networks
        # need no room for two more gradients, and no time to fetch it.
        if not self._direction:
            self._direction = tuple(torch.empty_like(p.detach()) for p in self.parameters)
        if anchor is None:
            torch._foreach_zero_(self._direction)
        else:
            torch._foreach_copy_(self._direction, anchor)
        scale = self.scale
        if c * scale != 1.0:
            torch._foreach_mul_(self._direction, c * scale)
        for tensor in snapshot:
            tensor.requires_grad_()
        second = self._once_more(weights.device)
        loss = self._add_gradient(self.parameters, batch, scale * weights)
        with second:
            self._add_gradient(snapshot, batch, -c * scale * weights)
        if scale != 1.0:
            torch._foreach_div_(self._direction, scale)
        return self._direction, loss / scale

    def _add_gradient(self, at: Tensors, batch: Batch, weights: Tensor) -> Tensor:
        """Add Σ_j weights_j ∇f_j to v; the weighted loss comes back."""
        own = at is self.parameters
        exchange = nullcontext() if own else self.losses.exchanged(self._places, at)
        with exchange:
            with self._repeatable(weights.device):
                loss = (weights * self.losses(batch)).sum()
            for tensor, total in zip(at, self._direction, strict=True):
                tensor.grad = total
            loss.backward(inputs=at)  # type: ignore[no-untyped-call]
            for tensor in at:
                tensor.grad = None
        return loss.detach()

    def _once_more(self, device: torch.device) -> AbstractContextManager[None]:
        """Run the second pass with the random state and the buffers of the first.

        It sees the dropout masks of the first, or the difference of the two gradients
        would be noise. Running values are those of the pass at the parameters; the one
        at the snapshot leaves no trace.
        """
        random = global_state(device, self.stochastic)
        before = Buffers(self.losses) if self.stateful else None

        @contextmanager
        def block() -> Iterator[None]:
            set_global_state(random, device)
            after = None
            if before is not None:
                after = Buffers(self.losses)
                before.restore()
            try:
                yield
            finally:
                if after is not None:
                    after.restore()

        return block()

    def _repeatable(self, device: torch.device) -> AbstractContextManager[None]:
        """Without cuDNN where random numbers must repeat.

        It draws the dropout of recurrent layers from a state that cannot be set back.
        """
        if self.stochastic and device.type == "cuda":
            return torch.backends.cudnn.flags(enabled=False)
        return nullcontext()

    # -- by torch.func, to be compiled as one function ------------------------------

    def functional(
        self, parameters: Tensors, batch: Batch, weights: Tensor
    ) -> tuple[Tensors, Tensor]:
        """Σ_j weights_j ∇f_j and Σ_j weights_j f_j, in a form that compiles."""

        def weighted_loss(values: Tensors) -> Tensor:
            return (weights * self.losses.at(self._places, values, batch)).sum()

        gradient, loss = grad_and_value(weighted_loss)(parameters)
        return gradient, loss

    def functional_pair(
        self,
        parameters: Tensors,
        snapshot: Tensors,
        anchor: Tensors,
        coefficient: float | Tensor,
        batch: Batch,
    ) -> tuple[Tensors, Tensor]:
        """V and the loss at the parameters, in a form that compiles."""
        weights = self.equal_weights(batch)
        now, loss = self.functional(parameters, batch, weights)
        then, _ = self.functional(snapshot, batch, weights)
        direction = tuple(
            g - coefficient * (h - a) for g, h, a in zip(now, then, anchor, strict=True)
        )
        return direction, loss


def compiled_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method, compiled, with a code object of its own.

    The compiler keeps its results, and counts its recompilations, with the code object:
    sharing it, the ninth network of a process would no longer be compiled.
    """
    function = method.__func__  # type: ignore[attr-defined]
    own = types.FunctionType(function.__code__.replace(), function.__globals__)
    bound = types.MethodType(own, method.__self__)  # type: ignore[attr-defined]
    # torch.func takes its own gradients; autograd has nothing to record here.
    return torch.no_grad()(torch.compile(bound, backend=BACKEND, options=_options()))


def _options() -> dict[str, Any]:
    """Check at each call the shapes alone, where torch can be told so (from 2.8 on).

    The network, its parameters and its mode are the same in every step of a run; to look
    for a change there would take a tenth of a small network's step.
    """
    if not hasattr(torch.compiler, "keep_tensor_guards_unsafe"):
        return {}

    def needed(guards: Sequence[Any]) -> list[bool]:
        return [
            guard.guard_type == "SHAPE_ENV"
            or (
                guard.guard_type == "TENSOR_MATCH"
                and not isinstance(guard.value, nn.Parameter)
            )
            for guard in guards
        ]

    return {"guard_filter_fn": needed}


_Single = Callable[[Tensors, Batch, Tensor], tuple[Tensors, Tensor]]
_Pair = Callable[
    [Tensors, Tensors, Tensors, "float | Tensor", Batch], tuple[Tensors, Tensor]
]


def squared_norm(tensors: Sequence[Tensor], largest: float = math.inf) -> Tensor:
    """‖v‖² over all tensors, as a tensor: nothing waits for an accelerator.

    Parameters
    ----------
    tensors
        v.
    largest
        What is more than this is infinite, on the CPU.
    """
    squared = torch.stack(torch._foreach_norm(list(tensors))).square().sum()
    if squared.device.type != "cpu" or float(squared) <= min(largest, LARGEST):
        return squared
    # A norm in single precision overflows early; this is rare, and may take its time.
    squared = torch.stack([t.double().square().sum() for t in tensors]).sum()
    return squared if float(squared) <= largest else torch.full_like(squared, math.inf)


def largest_square(parameters: Iterable[Tensor]) -> float:
    """The largest ‖v‖² of which an optimizer's second moments can be kept."""
    single = torch.finfo(torch.float32).max
    return max(single, min(torch.finfo(p.dtype).max for p in parameters))


def mean_loss(losses: Losses, batches: Iterable[Batch]) -> Tensor:
    """The mean loss over all windows of some batches, without gradients."""
    total: Tensor | float = 0.0
    size = 0
    with torch.no_grad():
        for batch in batches:
            values = losses(batch)
            # MPS has no double precision.
            values = values.cpu() if values.device.type == "mps" else values
            total = total + values.double().sum()
            size += _size(batch)
    return torch.as_tensor(total) / size


def autograd(loss: Tensor, parameters: Tensors) -> Tensors:
    """Return the gradient of a loss: dense, and zero for what it does not use.

    The zeros that torch itself can return require a gradient up to version 2.6, so that a
    history would grow with every step. Of embeddings, a gradient may be sparse.
    """
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return tuple(
        torch.zeros_like(p.detach())
        if g is None
        else (g if g.layout == torch.strided else g.to_dense())
        for p, g in zip(parameters, found, strict=True)
    )


def in_layout_of(parameters: Tensors, values: Tensors) -> Tensors:
    """Copy the values whose memory layout differs from that of their parameter.

    torch's fused optimizers walk through memory and ignore strides. Autograd may return
    a transposed gradient, or one number expanded to many places.
    """
    return tuple(
        v
        if v.stride() == p.stride()
        else torch.empty_like(p, requires_grad=False).copy_(v)
        for p, v in zip(parameters, values, strict=True)
    )


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor fills its memory without gaps or overlaps."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


@contextmanager
def uncached_autocast() -> Iterator[None]:
    """Switch off autocast's cache of weights in half precision.

    The cache lives as long as the autocast region, which spans many updates here: after
    the first one it would return stale weights.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
        torch.clear_autocast_cache()


def own_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The same tensors, safe to change in place.

    Autograd may return one tensor for two parameters, or one number spread over many
    places; only such are copied.
    """
    seen: set[int] = set()
    result = []
    for tensor in tensors:
        spread = any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape))
        shared = tensor.data_ptr() in seen
        seen.add(tensor.data_ptr())
        result.append(tensor.clone() if spread or shared else tensor)
    return result


def _size(batch: Batch) -> int:
    return len(next(iter(batch.values())))


class Buffers:
    """The buffers of a module as they are now, to be put back.

    A module may write into a buffer, or put another tensor in its place.
    """

    def __init__(self, module: nn.Module) -> None:
        self._held = [
            (part, name, buffer, buffer.clone())
            for part in module.modules()
            for name, buffer in part._buffers.items()
            if buffer is not None
        ]

    def changed(self) -> bool:
        """Return whether a buffer has another value, or another tensor's place."""
        return any(
            not _equal(part._buffers.get(name), value)
            for part, name, _, value in self._held
        )

    def restore(self) -> None:
        """Put the same tensors back, with the values that they had."""
        with torch.no_grad():
            for part, name, buffer, value in self._held:
                part._buffers[name] = buffer
                if not _equal(buffer, value):
                    buffer.copy_(value)


def _equal(left: Tensor | None, right: Tensor) -> bool:
    if left is None or left.shape != right.shape or left.layout != right.layout:
        return False
    if left.layout == torch.strided:
        return torch.equal(left, right)
    if left.layout == torch.sparse_coo:
        left, right = left.coalesce(), right.coalesce()
        parts = ((left.indices(), right.indices()), (left.values(), right.values()))
        return all(torch.equal(x, y) for x, y in parts)
    return torch.equal(left.to_dense(), right.to_dense())


def set_buffers(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Give the buffers of a module these values, by their names.

    One that has another shape by now, or is not there yet, is put in its place.
    """
    own = dict(module.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        for name, value in values.items():
            if name in own and own[name].shape == value.shape:
                own[name].copy_(value)
                continue
            place, _, last = name.rpartition(".")
            device = next(module.parameters()).device
            module.get_submodule(place).register_buffer(last, value.clone().to(device))
