"""Self-check: before the first step, compare the engine with plain torch.

A gradient that is wrong does not crash; it trains a worse model. So the engine that will
run (eager, compiled, or shared by several processes) first computes a few gradients and
one update in training mode, which must equal what plain autograd and an unfused optimizer
make of the same windows. Parameters, buffers, random state and counts are left untouched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pts_scott.errors import (
    HiddenParameterError,
    SelfCheckError,
    shorten,
)
from pts_scott.fused import clip_scale
from pts_scott.gradients import (
    Buffers,
    Losses,
    Tensors,
    autograd,
    in_layout_of,
    uncached_autocast,
)
from pts_scott.model_checks import check_repeated
from pts_scott.randomness import global_state, set_global_state, undrawn
from pts_scott.scott import MAX_PASS, Scott
from pts_scott.windows import WindowIndex, spread

WINDOWS = 4  # windows of a pass that is not compiled for a certain number
CANDIDATES = 16  # windows to choose from where some are not finite
# A parameter counts as wrong by its own gradient plus this share of all gradients, below
# which rounding may dominate.
FLOOR = 1e-2


class SelfCheck:
    """The checks of one run.

    Parameters
    ----------
    scott
        The method and its engine, as they will run.
    windows
        The training windows, of which a few are used.
    """

    def __init__(self, scott: Scott, windows: WindowIndex) -> None:
        self._scott = scott
        self._losses: Losses = scott.gradients.losses
        self._parameters = scott.gradients.parameters
        self._names = list(self._losses.trainable())
        self._windows = windows
        self._device = self._parameters[0].device
        coarsest = max(torch.finfo(p.dtype).eps for p in self._parameters)
        self._tolerance = 10 * math.sqrt(coarsest)
        self._chosen: Tensor | None = None

    def check_network(self, *, exchanges: bool) -> None:
        """Check that a training pass can be repeated, and finds all its parameters.

        Parameters
        ----------
        exchanges
            Whether the run evaluates the network at other parameters than its own (the
            snapshot of a control variate, or any compiled step).

        Raises
        ------
        UnrepeatableLossError, HiddenParameterError
        """
        with self._undisturbed():
            self._chosen = self._finite_windows()
            if not len(self._chosen):
                return  # training itself names windows that are not finite
            weights = self._weights(self._chosen)
            first = self._plain_losses(self._chosen)
            again = self._plain_losses(self._chosen)
            check_repeated(self._losses.name, first, again)
            self._check_leaves(first, again)
            if exchanges:
                self._check_exchanged(self._chosen, weights)

    def check_engine(
        self, optimizer: torch.optim.Optimizer, step_size: int, anchor_size: int
    ) -> None:
        """Check the gradients and the update that the engine makes.

        Parameters
        ----------
        optimizer
            The run's own; it makes no step.
        step_size, anchor_size
            Windows of a step and of an anchor, for which compiled functions were made.

        Raises
        ------
        SelfCheckError
        """
        self._check_members(optimizer)
        if self._chosen is None or not len(self._chosen):
            return
        with self._undisturbed():
            step = self._filled(step_size)
            weights = self._weights(step) if self._is_weighted else None
            anchor: Tensors = ()
            if self._scott.settings.has_anchor:
                anchor = self._checked_anchor(self._filled(min(anchor_size, MAX_PASS)))
            if self._scott.fused is not None:
                self._check_fused_step(optimizer, step, weights, anchor)
                return
            self._rewind()
            found = self._scott.direction(step, weights, anchor, 1.0).direction
            if anchor:
                self._compare(
                    found, anchor, "v(t,0) differs from its anchor", _TWO_PASSES
                )
            elif self._is_comparable:
                expected = self._plain_gradient(step, weights)
                self._compare(found, expected, self._whose("gradient"), _ENGINE)
            # Numbers of both signs, or a first step of Adam would look the same anywhere.
            self._check_update(optimizer, tuple(map(_random_like, found)))

    # -- the network -------------------------------------------------------------------

    def _check_leaves(self, first: Tensor, again: Tensor) -> None:
        """Find tensors that have a gradient and would never be trained."""
        known = {id(p) for p in self._parameters}
        held = _leaves(first)
        before = {id(leaf) for leaf in held}
        # A leaf that is there again was not made by the pass itself.
        hidden = [x for x in _leaves(again) if id(x) in before and id(x) not in known]
        if hidden:
            places = [_place_of(x, self._losses.network) for x in hidden]
            raise HiddenParameterError(
                f"{self._losses.name} has parameters that torch does not know of, so "
                f"they would never be trained: {shorten(places)}. {_REGISTER}"
            )

    def _check_exchanged(self, windows: Tensor, weights: Tensor) -> None:
        """Compare the gradient at exchanged parameters of the same values."""
        expected = self._plain_gradient(windows, weights)
        values = tuple(p.detach().clone().requires_grad_() for p in self._parameters)
        self._rewind()
        batch = self._scott.gather(windows)
        losses = self._losses.at(self._losses.places(), values, batch)
        found = autograd((weights * losses).sum(), values)
        wrong = self._wrong(found, expected)
        if wrong:
            raise HiddenParameterError(
                f"{self._losses.name} uses {shorten(wrong)} in another way than by "
                "the registered name, so it cannot be evaluated at other parameters (the "
                f"snapshot of a control variate, a compiled step). {_REGISTER}"
            )

    # -- the engine --------------------------------------------------------------------

    @property
    def _is_weighted(self) -> bool:
        return self._scott.settings.method == "stratified"

    @property
    def _is_comparable(self) -> bool:
        """Whether the engine sees the random numbers of a plain pass.

        Several processes draw masks of their own, each for its share of the windows.
        """
        return not (self._scott.gradients.stochastic and self._scott.processes.size > 1)

    def _checked_anchor(self, windows: Tensor) -> Tensors:
        weights = self._weights(windows)
        self._rewind()
        anchor = self._scott.anchor(windows, weights)
        if self._is_comparable:
            expected = self._plain_gradient(windows, weights)
            self._compare(anchor, expected, self._whose("anchor"), _ENGINE)
        return anchor

    def _whose(self, what: str) -> str:
        kind = "compiled " if self._scott.gradients.compiled else ""
        return f"the {kind}{what} differs from plain autograd's"

    def _check_members(self, optimizer: torch.optim.Optimizer) -> None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        missing = [
            name
            for name, p in zip(self._names, self._parameters, strict=True)
            if id(p) not in held
        ]
        if missing:
            raise SelfCheckError(
                f"the optimizer does not hold {shorten(missing)}, which would never be "
                "trained. Give it all parameters that it is called with, and freeze what "
                "is to stay with requires_grad_(False)."
            )

    def _check_fused_step(
        self,
        optimizer: torch.optim.Optimizer,
        windows: Tensor,
        weights: Tensor | None,
        anchor: Tensors,
    ) -> None:
        """Let the engine make a whole step, and roll it back."""
        assert self._scott.fused is not None
        expected = anchor or self._plain_gradient(windows, weights)
        if self._scott.clip_gradient is not None:
            squared = torch.tensor(_total(expected) ** 2, dtype=torch.float64)
            shorter = float(clip_scale(squared, self._scott.clip_gradient))
            expected = tuple(shorter * v for v in expected)
        with self._scott.fused.undone():
            before = [p.detach().clone() for p in self._parameters]
            self._scott.fused_step(windows, weights, anchor, 1.0)
            after = [p.detach().clone() for p in self._parameters]
        self._check_update(optimizer, expected, before, after)

    def _check_update(
        self,
        optimizer: torch.optim.Optimizer,
        direction: Tensors,
        before: list[Tensor] | None = None,
        after: list[Tensor] | None = None,
    ) -> None:
        """Compare an update with that of the unfused optimizer.

        Parameters
        ----------
        optimizer
            Its options and state are used, on copies of the parameters.
        direction
            v, along which the update is made.
        before, after
            The parameters around an update that the engine has made; None to make it
            with a copy of the optimizer.
        """
        if not type(optimizer).__module__.startswith("torch.optim"):
            return  # nobody knows how to make another one of its kind
        groups = {
            id(p): group for group in optimizer.param_groups for p in group["params"]
        }
        wrong = []
        for n, (parameter, v) in enumerate(zip(self._parameters, direction, strict=True)):
            options = {k: x for k, x in groups[id(parameter)].items() if k != "params"}
            state = optimizer.state.get(parameter, {})
            start = parameter.detach() if before is None else before[n]
            plain = {k: False for k in ("fused", "foreach") if k in options}
            expected = _updated(type(optimizer), options | plain, state, start, v)
            if after is None:
                found = self._as_engine(type(optimizer), options, state, parameter, v)
            else:
                found = after[n]
            # Weighted by v: Adam's first step is ±lr where v is nothing but rounding.
            error, size = _norm((found - expected) * v), _norm((expected - start) * v)
            rounding = 8 * torch.finfo(v.dtype).eps * _norm(start * v)
            if not error <= self._tolerance * size + rounding:
                wrong.append(self._names[n])
        if wrong:
            raise SelfCheckError(
                f"one update of {type(optimizer).__name__} moves {shorten(wrong)} "
                "otherwise than the same optimizer without fused kernels does. Pass an "
                "optimizer with fused=False, make these parameters contiguous, or pass "
                "compile=False."
            )

    def _as_engine(
        self, kind: Any, options: Any, state: Any, parameter: Tensor, v: Tensor
    ) -> Tensor:
        """One update as the engine makes it, on a copy with the parameter's layout."""
        copy = torch.empty_strided(
            parameter.shape,
            parameter.stride(),
            dtype=parameter.dtype,
            device=parameter.device,
        )
        try:
            copy.copy_(parameter.detach())
        except RuntimeError as error:  # several elements are one place in memory
            name = self._names[[p is parameter for p in self._parameters].index(True)]
            raise SelfCheckError(
                f"parameter {name} is an expanded tensor, several of whose elements "
                "share memory, so it cannot be updated; register a .clone() of it."
            ) from error
        (v,) = in_layout_of((copy,), (v,))
        return _stepped(kind, options, state, copy, v)

    def _compare(self, found: Tensors, expected: Tensors, what: str, cause: str) -> None:
        wrong = self._wrong(found, expected)
        if wrong:
            error = _distance(found, expected) / max(_total(expected), 1e-300)
            raise SelfCheckError(
                f"{what} by {error:.2g} times its norm, in {shorten(wrong)}. {cause}"
            )

    def _wrong(self, found: Tensors, expected: Tensors) -> list[str]:
        """Name the parameters of which two gradients differ by more than rounding."""
        floor = FLOOR * _total(expected)
        return [
            name
            for name, x, y in zip(self._names, found, expected, strict=True)
            if not _norm(x - y) <= self._tolerance * (_norm(y) + floor)
        ]

    # -- passes ------------------------------------------------------------------------

    def _plain_losses(self, windows: Tensor) -> Tensor:
        self._rewind()
        result: Tensor = self._losses(self._scott.gather(windows))
        return result

    def _plain_gradient(self, windows: Tensor, weights: Tensor | None) -> Tensors:
        """Autograd's gradient on the module as it is."""
        if weights is None:
            weights = self._equal(windows)
        total: Tensors = ()
        self._rewind()
        for part, w in zip(windows.split(MAX_PASS), weights.split(MAX_PASS), strict=True):
            losses = self._losses(self._scott.gather(part))
            gradient = autograd((w * losses).sum(), self._parameters)
            total = tuple(map(torch.add, total, gradient)) if total else gradient
        return total

    def _finite_windows(self) -> Tensor:
        """A few windows whose losses and gradients are finite."""
        size = len(self._windows)
        chosen = spread(size, WINDOWS).to(self._device)
        if self._is_finite(chosen):
            return chosen
        candidates = spread(size, CANDIDATES).to(self._device)
        finite = [n for n in candidates.split(1) if self._is_finite(n)]
        return torch.cat(finite[:WINDOWS]) if finite else candidates[:0]

    def _is_finite(self, windows: Tensor) -> bool:
        with torch.no_grad():
            losses = self._plain_losses(windows)
        if not bool(losses.isfinite().all()):
            return False
        return math.isfinite(_total(self._plain_gradient(windows, None)))

    def _filled(self, size: int) -> Tensor:
        """Return the chosen windows, as many as compiled functions expect."""
        assert self._chosen is not None
        if not self._scott.gradients.compiled:
            return self._chosen
        return self._chosen[torch.arange(size, device=self._device) % len(self._chosen)]

    def _weights(self, windows: Tensor) -> Tensor:
        """Unequal weights that sum to one."""
        weights = torch.arange(1.0, len(windows) + 1, dtype=torch.float32)
        return (weights / weights.sum()).to(self._equal(windows))

    def _equal(self, windows: Tensor) -> Tensor:
        dtype = self._scott.gradients.dtype
        size = len(windows)
        return torch.full((size,), 1 / size, dtype=dtype, device=self._device)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Run passes in training mode, and restore everything that they change."""
        gradients, at_hand = self._scott.gradients, self._scott.at_hand
        count = gradients.count
        with (
            undrawn(self._device),
            self._losses.mode(training=True),
            torch.inference_mode(False),
            torch.enable_grad(),
            uncached_autocast(),
        ):
            self._random = global_state(self._device)
            self._buffers = Buffers(self._losses)
            try:
                yield
            finally:
                self._buffers.restore()
                gradients.count, self._scott.at_hand = count, at_hand

    def _rewind(self) -> None:
        """Begin the next pass where the first one began."""
        set_global_state(self._random, self._device)
        self._buffers.restore()


_REGISTER = (
    "Register it as an attribute of its module, or in nn.ParameterList, nn.ModuleList or "
    "nn.ParameterDict, and use it from there."
)
_TWO_PASSES = (
    "The two passes of an inner step do not see the same thing: look for a network that "
    "writes into its batch, or keeps state outside its buffers; method='plain' does "
    "without a second pass."
)
_ENGINE = "Pass compile=False if it is set, and please report the network."


def _random_like(v: Tensor) -> Tensor:
    """Random numbers of the size of v, in the memory layout that v has."""
    places = zip(v.shape, v.stride(), strict=True)
    extent = 1 + sum((n - 1) * stride for n, stride in places) if v.numel() else 0
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(extent, generator=generator).to(v)
    size = _norm(v) / math.sqrt(max(v.numel(), 1)) or 1.0
    return (size * numbers).as_strided(v.shape, v.stride())


def _updated(kind: Any, options: Any, state: Any, start: Tensor, v: Tensor) -> Tensor:
    """One update on a contiguous copy."""
    copy = start.contiguous().clone(memory_format=torch.contiguous_format)
    return _stepped(kind, options, state, copy, v.contiguous())


def _stepped(kind: Any, options: Any, state: Any, parameter: Tensor, v: Tensor) -> Tensor:
    """Make one update of a parameter by a new optimizer with the same state."""
    parameter.requires_grad_()
    optimizer = kind([{"params": [parameter], **options}])
    if state:
        optimizer.state[parameter] = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in state.items()
        }
    parameter.grad = v
    optimizer.step()
    return parameter.detach()


def _leaves(tensor: Tensor) -> list[Tensor]:
    """All tensors to which a backward pass would add a gradient."""
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


def _place_of(tensor: Tensor, network: nn.Module) -> str:
    """Where a network holds a tensor, for a message."""
    for prefix, module in network.named_modules():
        for name, value in vars(module).items():
            pairs = _items(value)
            for key, item in pairs:
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


def _norm(tensor: Tensor) -> float:
    place = tensor.detach().cpu() if tensor.device.type == "mps" else tensor.detach()
    return float(torch.linalg.vector_norm(place, dtype=torch.float64))


def _total(tensors: Tensors) -> float:
    return math.sqrt(sum(_norm(x) ** 2 for x in tensors))


def _distance(left: Tensors, right: Tensors) -> float:
    return _total(tuple(x - y for x, y in zip(left, right, strict=True)))
