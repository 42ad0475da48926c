"""Gradient estimators: uniform, stratified, and control variate.

All of them rest on one thing, the gradient of a weighted sum of window losses at
given parameters. There are two ways to take it, with one meaning: by autograd on
the module as it is (fast without compilation, and keeps fused kernels such as the
LSTM's), and by ``torch.func`` inside one compiled function. Parameters, snapshot
and anchor are tuples of plain tensors in the order of ``Gradients.parameters``.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from pts_scott.errors import WindowLossError
from pts_scott.windows import Batch

Tensors = tuple[Tensor, ...]

BACKEND = "inductor"  # of torch.compile

WINDOW_FIELDS = (
    "past_target",
    "future_target",
    "past_observed_values",
    "future_observed_values",
    "past_is_pad",
)


class Losses(nn.Module):
    """One loss a window, from a network that has ``loss(**fields)``.

    Parameters
    ----------
    network
        A module whose ``loss`` takes fields of a batch by name (``past_target``,
        ``future_target``, ``future_observed_values``, …) and returns a tensor with
        one loss for each window.

    Raises
    ------
    WindowLossError
        If there is no such method, or it asks for fields that windows don't have.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.training = network.training
        self.fields = _loss_fields(network)

    def forward(self, batch: Batch) -> Tensor:
        return self.network.loss(**{name: batch[name] for name in self.fields})  # type: ignore[operator, no-any-return]

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


def _loss_fields(network: nn.Module) -> tuple[str, ...]:
    loss = getattr(network, "loss", None)
    if not callable(loss):
        raise WindowLossError(
            f"{type(network).__name__} has no method loss(past_target, future_target, …) "
            "that returns one loss a window. Give it one: the mean over a batch is not "
            "enough, because strata have weights."
        )
    fields = []
    for name, parameter in inspect.signature(loss).parameters.items():
        if name in WINDOW_FIELDS:
            fields.append(name)
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise WindowLossError(
                f"the loss of {type(network).__name__} asks for {name!r}; windows have "
                f"{', '.join(WINDOW_FIELDS)}."
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
        self.names = tuple(losses.trainable())
        self.parameters: Tensors = tuple(losses.trainable().values())
        self.compiled = compiled
        self._direction: Tensors = ()  # v, in the same place in every step
        #: Whether a pass draws random numbers, which the second pass must repeat.
        self.stochastic = False
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
        return self.stratified(batch, equal_weights(batch))

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

    # -- by autograd, on the module as it is ----------------------------------------

    def _autograd(
        self, parameters: Tensors, batch: Batch, weights: Tensor
    ) -> tuple[Tensors, Tensor]:
        with self._repeatable(weights.device):
            loss = (weights * self._losses_at(parameters, batch)).sum()
        gradient = torch.autograd.grad(
            loss, parameters, allow_unused=True, materialize_grads=True
        )
        return gradient, loss.detach()

    def _autograd_pair(
        self,
        parameters: Tensors,
        snapshot: Tensors,
        anchor: Tensors,
        coefficient: float | Tensor,
        batch: Batch,
    ) -> tuple[Tensors, Tensor]:
        weights, c = equal_weights(batch), float(coefficient)
        # Both passes add to v in place, where the anchor lies already: large networks
        # need no room for two more gradients, and no time to fetch it.
        if not self._direction:
            self._direction = tuple(torch.empty_like(a) for a in anchor)
        torch._foreach_copy_(self._direction, anchor)
        if c != 1.0:
            torch._foreach_mul_(self._direction, c)
        # Dropout draws from torch's own generator: the second pass sees the masks of
        # the first, or the difference of the two gradients would be noise.
        state = _random_state(weights.device) if self.stochastic else None
        loss = self._add_gradient(parameters, batch, weights)
        if state is not None:
            _set_random_state(weights.device, state)
        for tensor in snapshot:
            tensor.requires_grad_()
        self._add_gradient(snapshot, batch, -c * weights)
        return self._direction, loss

    def _add_gradient(self, at: Tensors, batch: Batch, weights: Tensor) -> Tensor:
        """Add Σ_j weights_j ∇f_j to v; the weighted loss comes back."""
        with self._repeatable(weights.device):
            loss = (weights * self._losses_at(at, batch)).sum()
        for tensor, total in zip(at, self._direction, strict=True):
            tensor.grad = total
        loss.backward(inputs=at)  # type: ignore[no-untyped-call]
        for tensor in at:
            tensor.grad = None
        return loss.detach()

    def _repeatable(self, device: torch.device) -> AbstractContextManager[None]:
        """Without cuDNN where random numbers must repeat.

        It draws the dropout of recurrent layers from a state that cannot be set back.
        """
        if self.stochastic and device.type == "cuda":
            return torch.backends.cudnn.flags(enabled=False)
        return nullcontext()

    def _losses_at(self, parameters: Tensors, batch: Batch) -> Tensor:
        if parameters is self.parameters:
            return self.losses(batch)  # type: ignore[no-any-return]
        named = dict(zip(self.names, parameters, strict=True))
        return functional_call(self.losses, named, (batch,))

    # -- by torch.func, to be compiled as one function ------------------------------

    def functional(
        self, parameters: Tensors, batch: Batch, weights: Tensor
    ) -> tuple[Tensors, Tensor]:
        """Σ_j weights_j ∇f_j and Σ_j weights_j f_j, in a form that compiles."""

        def weighted_loss(values: Tensors) -> Tensor:
            named = dict(zip(self.names, values, strict=True))
            return (weights * functional_call(self.losses, named, (batch,))).sum()

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
        weights = equal_weights(batch)
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


def squared_norm(tensors: Sequence[Tensor]) -> Tensor:
    """‖v‖² over all tensors, as a tensor: nothing waits for the device."""
    return torch.stack(torch._foreach_norm(list(tensors))).square().sum()


def mean_loss(losses: Losses, batches: Iterable[Batch]) -> Tensor:
    """The mean loss over all windows of some batches, without gradients."""
    total: Tensor | float = 0.0
    size = 0
    with torch.no_grad():
        for batch in batches:
            total = total + losses(batch).double().sum()
            size += _size(batch)
    return torch.as_tensor(total) / size


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


def equal_weights(batch: Batch) -> Tensor:
    """1/M for each of the M windows of a mini-batch."""
    size = _size(batch)
    return batch["past_target"].new_full((size,), 1 / size)


def _size(batch: Batch) -> int:
    return len(batch["past_target"])


def _random_state(device: torch.device) -> Tensor:
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


def _set_random_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
