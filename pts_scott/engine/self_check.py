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

from pts_scott._utils.rng import global_state, preserved_rng, set_global_state
from pts_scott._utils.spacing import evenly_spaced
from pts_scott._utils.text import shorten
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.compiled import clip_scale, global_hooks
from pts_scott.engine.gradients import (
    Buffers,
    Losses,
    Tensors,
    autograd,
    in_layout_of,
    uncached_autocast,
)
from pts_scott.engine.model_checks import check_repeated
from pts_scott.errors import HiddenParameterError, SelfCheckError
from pts_scott.method.scott import MAX_PASS, Scott

WINDOWS = 4  # windows of a pass that is not compiled for a certain number
CANDIDATES = 16  # windows to choose from where some are not finite
SHIFT = 0.1  # how far a snapshot is moved, in parts of a parameter's size
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
        self._tolerance = max(_tolerance(p) for p in self._parameters)
        #: Windows whose losses and gradients were finite when the run began.
        self.finite = torch.zeros(0, dtype=torch.long, device=self._device)

    def check_network(self) -> None:
        """Check that a training pass can be repeated, and finds all its parameters.

        Raises
        ------
        UnrepeatableLossError, HiddenParameterError, SelfCheckError
        """
        self._check_memory()
        self._check_hooks()
        with self._undisturbed():
            self.finite = self._finite_windows()
            if not len(self.finite):
                return  # training itself names windows that are not finite
            first = self._plain_losses(self.finite)
            again = self._plain_losses(self.finite)
            check_repeated(self._losses.name, first, again)
            self._check_leaves(first, again)
            used = torch.autograd.grad(again.sum(), self._parameters, allow_unused=True)
            idle = frozenset(n for n, gradient in enumerate(used) if gradient is None)
            self._scott.gradients.idle = idle

    def check_functional(self) -> None:
        """Check the gradient by ``torch.func`` at other parameters, as it is compiled.

        Raises
        ------
        HiddenParameterError
            If it differs from autograd's.
        Exception
            Whatever ``torch.func`` raises on a network that it cannot differentiate.
        """
        if not len(self.finite):
            return
        with self._undisturbed():
            weights, values = self._weights(self.finite), tuple(self._moved())
            expected = self._plain_gradient(self.finite, weights, values)
            self._rewind()
            batch = self._scott.gather(self.finite)
            found, _ = self._scott.gradients.functional(values, batch, weights)
            wrong = self._wrong(found, expected)
            if wrong:
                raise HiddenParameterError(
                    f"the gradient of {self._losses.name} by torch.func differs from "
                    f"that of loss.backward() in {shorten(wrong)}. Does it use "
                    "parameters in another way than by their registered names? "
                    f"{_REGISTER} Or pass compile=False."
                )

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
        if not len(self.finite):
            return
        with self._undisturbed():
            step = self._filled(step_size)
            if self._scott.settings.has_anchor:
                anchor = self._checked_anchor(self._filled(min(anchor_size, MAX_PASS)))
                v = self._checked_control_variate(optimizer, step, anchor)
            else:
                v = self._checked_gradient(optimizer, step)
            if self._scott.fused is None:
                self._check_update(optimizer, v)

    # -- the network -------------------------------------------------------------------

    def _check_memory(self) -> None:
        """Refuse parameters that cannot be updated in place."""
        for name, parameter in zip(self._names, self._parameters, strict=True):
            places = zip(parameter.shape, parameter.stride(), strict=True)
            if any(size > 1 and stride == 0 for size, stride in places):
                raise SelfCheckError(
                    f"parameter {name} is an expanded tensor, several of whose elements "
                    "share memory, so it cannot be updated; register a .clone() of it."
                )

    def _check_hooks(self) -> None:
        """Refuse gradient hooks where the engine would not call them as autograd does."""
        for name, parameter in zip(self._names, self._parameters, strict=True):
            if getattr(parameter, "_post_accumulate_grad_hooks", None):
                raise SelfCheckError(
                    f"parameter {name} has a post-accumulate gradient hook, which would "
                    "not be called: gradients are not accumulated in .grad here. Remove "
                    "it, and do its work in an optimizer."
                )
            if parameter._backward_hooks and self._scott.settings.has_anchor:
                raise SelfCheckError(
                    f"parameter {name} has a gradient hook, which would change the "
                    "gradient at the parameters and not that at the snapshot. Remove "
                    "it (clip_gradient bounds updates), or pass method='plain' or "
                    "'stratified'."
                )

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

    # -- the engine --------------------------------------------------------------------

    @property
    def _is_comparable(self) -> bool:
        """Whether the engine sees the random numbers of a plain pass.

        Several processes draw masks of their own, each for its share of the windows.
        """
        return not (self._scott.gradients.stochastic and self._scott.processes.size > 1)

    def _checked_anchor(self, windows: Tensor) -> Tensors:
        """An anchor that equals autograd's, and a snapshot that equals θ."""
        weights = self._weights(windows)
        self._move_snapshot()
        self._rewind()
        anchor = self._scott.anchor(windows, weights)
        pairs = zip(self._scott.snapshot, self._parameters, strict=True)
        if not all(torch.equal(x.detach(), p.detach()) for x, p in pairs):
            raise SelfCheckError(f"the snapshot differs from the parameters. {_ENGINE}")
        if self._is_comparable:
            expected = self._plain_gradient(windows, weights)
            self._compare(anchor, expected, self._whose("anchor"), _ENGINE)
        return anchor

    def _checked_control_variate(
        self, optimizer: torch.optim.Optimizer, windows: Tensor, anchor: Tensors
    ) -> Tensors:
        """Check v at another snapshot, and at θ itself, where it is the anchor.

        There it is so whatever the gradient at the snapshot is, and it takes another one
        to see that this gradient is right.
        """
        fused = self._scott.fused is not None
        self._move_snapshot()
        moved = self._scott.snapshot
        if self._is_comparable and self._is_finite(windows, moved):
            # In place: of large networks every copy counts.
            expected = self._plain_gradient(windows, None)
            torch._foreach_sub_(expected, self._plain_gradient(windows, None, moved))
            torch._foreach_add_(expected, anchor)
            if fused:
                self._check_fused_step(optimizer, windows, None, anchor, expected)
            else:
                self._check_snapshot_gradient(windows, anchor, expected)
            del expected
        if fused:
            return anchor
        with torch.no_grad():
            torch._foreach_copy_(list(moved), list(self._parameters))
        self._rewind()
        v = self._scott.direction(windows, None, anchor, 1.0).direction
        self._compare(v, anchor, "v(t,0) differs from its anchor", _TWO_PASSES)
        return v

    def _check_snapshot_gradient(
        self, windows: Tensor, anchor: Tensors, expected: Tensors
    ) -> None:
        self._rewind()
        found = self._scott.direction(windows, None, anchor, 1.0).direction
        wrong = self._wrong(found, expected)
        if wrong:
            raise HiddenParameterError(
                f"the gradient of {self._losses.name} at a snapshot is wrong in "
                f"{shorten(wrong)}: the network uses parameters in another way than by "
                f"their registered names. {_REGISTER} method='plain' needs no snapshot."
            )

    def _checked_gradient(
        self, optimizer: torch.optim.Optimizer, windows: Tensor
    ) -> Tensors:
        """The gradient of a step without control variate."""
        weighted = self._scott.settings.method == "stratified"
        weights = self._weights(windows) if weighted else None
        expected = self._plain_gradient(windows, weights)
        if self._scott.fused is not None:
            self._check_fused_step(optimizer, windows, weights, (), expected)
            return expected
        self._rewind()
        found = self._scott.direction(windows, weights, (), 1.0).direction
        if self._is_comparable:
            self._compare(found, expected, self._whose("gradient"), _ENGINE)
        return found

    def _whose(self, what: str) -> str:
        kind = "compiled " if self._scott.gradients.compiled else ""
        return f"the {kind}{what} differs from that of loss.backward()"

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
        expected: Tensors,
    ) -> None:
        """Let the engine make a whole step, and roll it back."""
        assert self._scott.fused is not None
        if self._scott.clip_gradient is not None:
            squared = torch.tensor(_total(expected) ** 2, dtype=torch.float64)
            shorter = float(clip_scale(squared, self._scott.clip_gradient))
            expected = tuple(shorter * v for v in expected)
        with self._scott.fused.undone():
            before = [p.detach().clone() for p in self._parameters]
            self._scott.fused_step(windows, weights, anchor, 1.0)
            after = [p.detach().clone() for p in self._parameters]
        wrong = self._wrong_updates(optimizer, expected, before, after)
        if wrong:
            raise SelfCheckError(
                f"one compiled step of {type(optimizer).__name__} moves {shorten(wrong)} "
                "otherwise than loss.backward() and the optimizer do. Pass compile=False."
            )

    def _check_update(self, optimizer: torch.optim.Optimizer, v: Tensors) -> None:
        """Compare an update in the layout of v with one without fused kernels."""
        wrong = self._wrong_updates(optimizer, v)
        if wrong:
            raise SelfCheckError(
                f"one update of {type(optimizer).__name__} moves {shorten(wrong)} "
                "otherwise than the same optimizer without fused kernels does. Pass an "
                "optimizer with fused=False, or make these parameters contiguous."
            )

    def _wrong_updates(
        self,
        optimizer: torch.optim.Optimizer,
        direction: Tensors,
        before: list[Tensor] | None = None,
        after: list[Tensor] | None = None,
    ) -> list[str]:
        """Name the parameters that an update moves otherwise than the plain optimizer.

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
        if not type(optimizer).__module__.startswith("torch.optim") or any(
            global_hooks()
        ):
            return []  # nobody can make another one of its kind, or only with effects
        groups = {
            id(p): group for group in optimizer.param_groups for p in group["params"]
        }
        found: list[tuple[str, float, float, float, float]] = []
        for n, (parameter, v) in enumerate(zip(self._parameters, direction, strict=True)):
            options = {k: x for k, x in groups[id(parameter)].items() if k != "params"}
            state = optimizer.state.get(parameter, {})
            start = parameter.detach() if before is None else before[n]
            plain = {k: False for k in ("fused", "foreach") if k in options}
            v = _random_like(v) if after is None else v
            expected = _updated(type(optimizer), options | plain, state, start, v)
            if after is None:
                made = self._as_engine(type(optimizer), options, state, parameter, v)
            else:
                made = after[n]
            # Weighted by v: Adam's first step is ±lr where v is nothing but rounding.
            error, size = _norm((made - expected) * v), _norm((expected - start) * v)
            rounding = 8 * torch.finfo(v.dtype).eps * _norm(start * v)
            found.append((self._names[n], error, size, rounding, _tolerance(parameter)))
        floor = FLOOR * math.sqrt(sum(size**2 for _, _, size, _, _ in found))
        return [
            name
            for name, error, size, rounding, tolerance in found
            if not error <= tolerance * (size + floor) + rounding
        ]

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
        copy.copy_(parameter.detach())
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

    def _plain_gradient(
        self, windows: Tensor, weights: Tensor | None, at: Tensors | None = None
    ) -> Tensors:
        """The gradient that ``loss.backward()`` leaves in ``.grad``.

        Parameters
        ----------
        windows, weights
            Of a weighted sum of losses; equal weights if there are none.
        at
            Values for the parameters, which hold them for a while; None for their own.
        """
        weights = self._equal(windows) if weights is None else weights
        before = [(p.data, p.grad) for p in self._parameters]
        try:
            for n, parameter in enumerate(self._parameters):
                parameter.grad = None
                if at is not None:
                    parameter.data = at[n].detach()
            self._rewind()
            losses = self._losses(self._scott.gather(windows))
            (weights * losses).sum().backward()
            found = [p.grad for p in self._parameters]
        finally:
            for parameter, own in zip(self._parameters, before, strict=True):
                parameter.data, parameter.grad = own
        return tuple(
            torch.zeros_like(p.detach()) if g is None else g.to_dense()
            for p, g in zip(self._parameters, found, strict=True)
        )

    def _moved(self) -> Iterator[Tensor]:
        """Make other values for the parameters, near their own."""
        for parameter in self._parameters:
            value = parameter.detach()
            yield value + SHIFT * _random_like(value)

    def _move_snapshot(self) -> None:
        with torch.no_grad():
            for tensor, value in zip(self._scott.snapshot, self._moved(), strict=True):
                tensor.copy_(value)

    def _finite_windows(self) -> Tensor:
        """A few windows whose losses and gradients are finite."""
        size = len(self._windows)
        chosen = evenly_spaced(size, WINDOWS).to(self._device)
        if self._is_finite(chosen):
            return chosen
        candidates = evenly_spaced(size, CANDIDATES).to(self._device)
        finite = [n for n in candidates.split(1) if self._is_finite(n)]
        return torch.cat(finite[:WINDOWS]) if finite else candidates[:0]

    def _is_finite(self, windows: Tensor, at: Tensors | None = None) -> bool:
        if at is not None:
            return math.isfinite(_total(self._plain_gradient(windows, None, at)))
        losses = self._plain_losses(windows)
        if not bool(losses.isfinite().all()):
            return False
        # What is not registered must get no gradient, so this is not backward() yet.
        return math.isfinite(_total(autograd(losses.sum(), self._parameters)))

    def _filled(self, size: int) -> Tensor:
        """Return the chosen windows, as many as compiled functions expect."""
        if not self._scott.gradients.compiled:
            return self.finite
        return self.finite[torch.arange(size, device=self._device) % len(self.finite)]

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
        count, scaler = gradients.count, gradients.scaler
        gradients.scaler = None  # which lets gradients overflow on purpose
        with (
            preserved_rng(self._device),
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
                gradients.scaler = scaler

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
_ENGINE = (
    "Pass compile=False if it is compiled; activation checkpointing needs "
    "use_reentrant=False."
)


def _tolerance(parameter: Tensor) -> float:
    """Ten times the root of the rounding error: faults are of the gradient's own size."""
    return 10 * math.sqrt(torch.finfo(parameter.dtype).eps)


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
