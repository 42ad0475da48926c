"""SCott: the outer and inner loop of the paper, for every method of the family.

Line numbers are those of Algorithm 1 (inner length drawn from a geometric
distribution) and Algorithm 2 (the practical version, with early stop by γ).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pts_scott._utils.rng import Generators
from pts_scott.data.window_index import Batch, WindowIndex
from pts_scott.engine.compiled import FusedStep, Outcome, clip_scale
from pts_scott.engine.distributed import Processes, nothing
from pts_scott.engine.gradients import (
    Gradients,
    Tensors,
    Update,
    in_layout_of,
    largest_square,
    own_tensors,
    squared_norm,
)
from pts_scott.engine.rollback import Undo
from pts_scott.strata.partition import Strata

METHODS = ("scott", "scsg", "svrg", "stratified", "plain")

MAX_PASS = 4096  # windows in one pass; larger anchors (SVRG's) are summed up
DRAWN_AHEAD = 4096  # windows of anchors that are drawn together
CAREFUL = 50  # outer loops after a fault, in which every step is looked at


@dataclass(frozen=True)
class Settings:
    """The method's own numbers, in the paper's letters.

    Parameters
    ----------
    method
        "scott", "scsg", "svrg", "stratified" or "plain".
    batch_size
        M, windows in a uniform mini-batch.
    anchor_batch_size
        b, windows from each stratum.
    inner_steps
        K, the most inner steps of an outer loop.
    inner_length
        "fixed": K steps; "geometric": a random number of steps with mean B.
    gamma
        γ, early stop of the inner loop; None for none.
    """

    method: str = "scott"
    batch_size: int = 32
    anchor_batch_size: int = 1
    inner_steps: int = 20
    inner_length: str = "fixed"
    gamma: float | None = 0.125

    @property
    def has_anchor(self) -> bool:
        """Whether the method uses a control variate."""
        return self.method in ("scott", "scsg", "svrg")

    def anchor_size(self, strata: Strata | None, windows: WindowIndex) -> int:
        """Windows in one anchor, or in one stratified mini-batch."""
        if self.method == "svrg":
            return len(windows)
        if self.method == "plain" or strata is None:
            return 0
        return len(strata) * self.anchor_batch_size

    def step_windows(self, strata: Strata | None, windows: WindowIndex) -> int:
        """Return the number of windows in the mini-batch of one step."""
        if self.method == "stratified":
            return self.anchor_size(strata, windows)
        return self.batch_size

    def step_size(self, strata: Strata | None, windows: WindowIndex) -> int:
        """Return the number of gradients that one step computes."""
        return self.step_windows(strata, windows) * (2 if self.has_anchor else 1)

    def first_step_size(self, strata: Strata | None, windows: WindowIndex) -> int:
        """Gradients that the first step of an outer loop needs, its anchor included."""
        anchor = self.anchor_size(strata, windows) if self.has_anchor else 0
        return anchor + self.step_size(strata, windows)


class OuterLoop(NamedTuple):
    """What one outer loop did; its numbers are still on the device.

    ``windows`` are those of each step, and of the anchor. Where something was not finite
    and other steps had been made with it, the whole loop is ``undone``.
    """

    steps: int
    numbers: Tensor | None = None  # losses of all steps, then ‖v‖² of each
    undone: bool = False
    windows: Sequence[Tensor] = ()
    anchor_windows: Tensor | None = None

    def read(self) -> tuple[list[float], float]:
        """The loss of each step, NaN if it was skipped; and ‖v‖² of the last one."""
        if self.numbers is None:
            return [], math.nan
        numbers = self.numbers.tolist()  # here one waits for the device
        losses, squared = numbers[: self.steps], numbers[self.steps :]
        if self.undone:
            pairs = zip(losses, squared, strict=True)
            losses = [x if math.isfinite(x + y) else math.nan for x, y in pairs]
            if not any(map(math.isnan, losses)):  # no loss was seen after the bad step
                losses[-1] = math.nan
        return losses, squared[-1]


class Draws(Protocol):
    """Where the windows of anchors and mini-batches come from."""

    def anchor(self) -> tuple[Tensor, Tensor]:
        """Windows of an anchor (or of a stratified step) and their weights."""
        ...

    def inner(self) -> Tensor:
        """Windows of a uniform mini-batch, ξ."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What the next draws depend on, besides generators."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        ...


class WindowDraws:
    """Draws from a window index, by the method's own rule for the anchor."""

    def __init__(
        self,
        settings: Settings,
        windows: WindowIndex,
        strata: Strata | None,
        generators: Generators,
    ) -> None:
        self._settings = settings
        self._windows = windows
        self._strata = strata
        self._generators = generators
        self._weights = self._anchor_weights()
        self._drawn: list[Tensor] = []  # for the anchors to come, the next one last

    def _anchor_weights(self) -> Tensor:
        size = self._settings.anchor_size(self._strata, self._windows)
        series = self._windows.series
        values = torch.empty(0, dtype=series.dtype, device=series.values.device)
        if self._settings.method in ("scott", "stratified"):
            assert self._strata is not None
            b = self._settings.anchor_batch_size
            return (self._strata.weights / b).repeat_interleave(b).to(values)
        return values.new_full((size,), 1 / max(size, 1))

    def anchor(self) -> tuple[Tensor, Tensor]:
        method, generator = self._settings.method, self._generators.anchor
        if method == "svrg":  # every window: the full gradient
            windows = torch.arange(len(self._windows), device=self._windows.device)
        elif method == "scsg":  # as many windows as SCott, from anywhere
            windows = self._windows.draw(len(self._weights), generator)
        else:
            windows = self._stratified(generator)
        return windows, self._weights

    def _stratified(self, generator: torch.Generator) -> Tensor:
        # A draw is a score of small operations, whether for one anchor or for many.
        if not self._drawn:
            assert self._strata is not None
            times = max(1, DRAWN_AHEAD // len(self._weights))
            b = self._settings.anchor_batch_size
            windows = self._strata.draw(b, generator, times)
            self._drawn = list(windows.reshape(times, -1).unbind())[::-1]
        return self._drawn.pop()

    def inner(self) -> Tensor:
        return self._windows.draw(self._settings.batch_size, self._generators.inner)

    def state_dict(self) -> dict[str, Any]:
        """What was drawn and is still to be used."""
        return {"drawn": list(self._drawn)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was drawn."""
        self._drawn = [windows.to(self._windows.device) for windows in state["drawn"]]


class Scott:
    """One trainable network, and the outer loops that train it.

    Parameters
    ----------
    gradients
        The gradient estimators of the network.
    gather
        From windows to a batch.
    draws
        Where windows come from.
    settings
        The method and its numbers.
    step
        The optimizer's update, from the gradients in ``.grad``.
    clip_gradient
        Largest norm of an update; None for no clipping.
    fused
        Makes whole steps in place of gradients and ``step``; None for none. It makes
        every step of a run or none, because it keeps count of them: only for steps
        that ``fits_one_pass`` allows.
    processes
        Who else computes gradients for the same steps.
    deferred
        Ask for the early stop only when the next gradient is on its way, so that an
        accelerator never waits for the answer. A gradient that turns out to be in vain
        is counted, and its mini-batch is kept for the next outer loop: the parameters
        are the same, as long as the network draws no random numbers (dropout) and no
        gradient budget ends the run. None: everywhere but on the CPU, for networks that
        draw none.
    """

    def __init__(
        self,
        gradients: Gradients,
        gather: Callable[[Tensor], Batch],
        draws: Draws,
        settings: Settings,
        step: Callable[[], object],
        *,
        clip_gradient: float | None = None,
        fused: FusedStep | None = None,
        processes: Processes | None = None,
        deferred: bool | None = None,
    ) -> None:
        self.gradients = gradients
        self.gather = gather
        self.draws = draws
        self.settings = settings
        self.step = step
        self.clip_gradient = clip_gradient
        self.fused = fused
        #: Where a loop began, if its steps are made without a look at every gradient.
        self.undo: Undo | None = None
        self._careful = 0  # outer loops in which one looks all the same
        self.processes = processes or Processes()
        device = gradients.parameters[0].device
        wait = device.type == "cpu" or bool(gradients.stochastic)
        self.deferred = not wait if deferred is None else deferred
        gamma = settings.gamma if settings.has_anchor else None
        self._early_stop = _EarlyStop(gamma, device)
        # Beyond this, an optimizer's second moments would overflow, for ever.
        self._largest = math.inf
        if clip_gradient is None:
            self._largest = largest_square(gradients.parameters)
        self._skipped = torch.tensor(math.nan, device=device)  # the loss of such a step
        self._unasked = torch.zeros((), device=device)  # the norm of a step not looked at
        self._ahead: Tensor | None = None  # windows drawn for a step that was not made
        self._anchor_windows: Tensor | None = None
        #: The windows whose gradient is being computed, or was last.
        self.at_hand: Tensor | None = None
        self.anchors = 0
        self.fused_steps = 0
        self.snapshot: Tensors = tuple(
            p.detach().clone() for p in gradients.parameters if settings.has_anchor
        )

    def outer_loop(
        self,
        length: int,
        coefficient: float = 1.0,
        exhausted: Callable[[], bool] = lambda: False,
    ) -> OuterLoop:
        """An anchor and at most ``length`` inner steps (lines 2–9).

        Parameters
        ----------
        length
            K_t, drawn by ``geometric_length`` for Algorithm 1.
        coefficient
            c; 1 is the paper's method.
        exhausted
            Asked for each step before it begins; True ends the loop (a budget is used
            up).
        """
        anchor: Tensors = ()
        if self.settings.has_anchor:
            anchor = self._take_anchor()  # line 2: g(t,0), and θ(t,0) is kept
        # A fused step has moved the parameters by the time it can be asked.
        deferred = self.deferred and self.fused is None

        losses: list[Tensor] = []
        norms: list[Tensor] = []
        drawn: list[Tensor] = []
        self._early_stop.begin()
        careful = self._careful > 0
        unseen = None if careful else self.undo
        if self.fused is not None and not careful:
            self.fused.keep(self.snapshot)
        elif unseen is not None:
            unseen.keep()
        more = length > 0 and not exhausted()
        while more:  # line 3
            windows, weights = self._draw()  # line 4: ξ(t,k)
            self.at_hand = windows
            if self.fused is not None:
                step = self._careful_step if careful else self.fused_step
                loss, norm = step(windows, weights, anchor, coefficient)
                more = len(losses) + 1 < length and not exhausted()
            else:
                v = self.direction(windows, weights, anchor, coefficient)  # line 5
                if deferred and self._early_stop.fires():  # line 7 of the step before
                    self._ahead = windows
                    break
                more = len(losses) + 1 < length and not exhausted()
                # The norm of a large v takes its time: here it is asked for, or reported.
                asked = unseen is None or not more
                norm = self._unasked
                if asked:
                    norm = squared_norm(v.direction, self._largest)
                loss = self._update(v, norm)  # line 6
                del v  # the next gradients need the room
            losses.append(loss)
            norms.append(norm)
            drawn.append(windows)
            self._early_stop.see(norm)
            if not deferred and self._early_stop.fires():  # line 7
                break  # line 8
            if anchor and loss is self._skipped:
                break  # the anchor may be what is not finite: take another one
        return self._report(losses, norms, drawn)

    def warm_up(self, anchor_size: int) -> None:
        """Compile for the sizes of this run; parameters and counts stay as they are.

        Parameters
        ----------
        anchor_size
            Windows in an anchor, or in a stratified step; 0 for a method without.
        """
        count = self.gradients.count
        try:
            with self.fused.undone() if self.fused is not None else nullcontext():
                self._compile_all(anchor_size)
        finally:
            self.gradients.count = count

    def _compile_all(self, anchor_size: int) -> None:
        anchor: Tensors = ()
        # Of many passes, two are enough: a full one and the last, which may be small.
        if anchor_size > MAX_PASS:
            anchor_size = MAX_PASS + (anchor_size % MAX_PASS or MAX_PASS)
        if self.settings.has_anchor:
            anchor = self.anchor(*self._any_windows(anchor_size))
        weights = None
        windows, _ = self._any_windows(self.settings.batch_size)
        if self.settings.method == "stratified":
            windows, weights = self._any_windows(anchor_size)
        if self.fused is not None:
            self.fused_step(windows, weights, anchor, 1.0)
        else:
            self.direction(windows, weights, anchor, 1.0)

    def _any_windows(self, size: int) -> tuple[Tensor, Tensor]:
        parameter = self.gradients.parameters[0]
        windows = torch.zeros(size, dtype=torch.long, device=parameter.device)
        return windows, parameter.detach().new_ones(size)

    def _take_anchor(self) -> Tensors:
        self.anchors += 1
        self._anchor_windows, weights = self.draws.anchor()
        self.at_hand = self._anchor_windows
        return self.anchor(self._anchor_windows, weights)

    def anchor(self, windows: Tensor, weights: Tensor) -> Tensors:
        """g(t,0) = Σ w_i ∇f_{ξ_i}(θ(t,0)); the parameters become the snapshot."""
        if self.fused is not None and fits_one_pass(len(windows)):
            return self.fused.anchor(windows, weights, self.snapshot)
        with torch.no_grad():
            torch._foreach_copy_(list(self.snapshot), list(self.gradients.parameters))
        return self._stratified_gradient(windows, weights).direction

    def _draw(self) -> tuple[Tensor, Tensor | None]:
        """The windows of one step, with weights if they are not equal."""
        if self.settings.method == "stratified":
            return self.draws.anchor()
        windows, self._ahead = self._ahead, None
        return self.draws.inner() if windows is None else windows, None

    def fused_step(
        self, windows: Tensor, weights: Tensor | None, anchor: Tensors, coefficient: float
    ) -> Outcome:
        """Make a whole step by the compiled function."""
        assert self.fused is not None
        self.fused_steps += 1
        if self.settings.has_anchor:
            return self.fused.inner(windows, self.snapshot, anchor, coefficient)
        return self.fused.plain(windows, weights)

    def _careful_step(
        self, windows: Tensor, weights: Tensor | None, anchor: Tensors, coefficient: float
    ) -> Outcome:
        """Make a fused step, rolled back at once if it was not finite."""
        assert self.fused is not None
        self.fused.keep()
        loss, norm = self.fused_step(windows, weights, anchor, coefficient)
        if not math.isfinite(loss) or not math.isfinite(norm):
            self.fused.take_back()
            loss = self._skipped
        return Outcome(loss, norm)

    def direction(
        self, windows: Tensor, weights: Tensor | None, anchor: Tensors, coefficient: float
    ) -> Update:
        """v(t,k), or the gradient of a baseline in the same engine."""
        if weights is not None:
            return self._stratified_gradient(windows, weights)
        if self.processes.size > 1:
            return self._shared_direction(windows, anchor, coefficient)
        batch = self.gather(windows)
        if not self.settings.has_anchor:
            return self.gradients.uniform(batch)
        return self.gradients.control_variate(batch, self.snapshot, anchor, coefficient)

    def _shared_direction(
        self, windows: Tensor, anchor: Tensors, coefficient: float
    ) -> Update:
        """The same, each process with its share of the mini-batch."""
        like = self.gradients.parameters[0].detach()
        equal = like.new_full((len(windows),), 1 / len(windows))
        if not self.settings.has_anchor:
            return self._stratified_gradient(windows, equal)
        own, weights = self.processes.own(windows, equal)
        share = nothing(self.gradients.parameters)
        if len(own):  # the first process always has a window, and brings the anchor
            share = self.gradients.share_of_control_variate(
                self.gather(own),
                weights,
                self.snapshot,
                anchor if self.processes.first else None,
                coefficient,
            )
        self.gradients.count += 2 * (len(windows) - len(own))  # by the others
        return self.processes.total(share)

    def _stratified_gradient(self, windows: Tensor, weights: Tensor) -> Update:
        own, share = self.processes.own(windows, weights)
        total: Update | None = None
        for part, w in zip(own.split(MAX_PASS), share.split(MAX_PASS), strict=True):
            if len(part):
                update = self.gradients.stratified(self.gather(part), w)
                total = update if total is None else _add(total, update)
        self.gradients.count += len(windows) - len(own)  # by the others
        return self.processes.total(total or nothing(self.gradients.parameters))

    def _update(self, v: Update, squared: Tensor) -> Tensor:
        """Step along v; the loss comes back, or NaN if the step was skipped."""
        direction, loss = v
        if self.deferred:
            # Nobody waits for the answer: what is not finite becomes a step along zero.
            ok = squared.isfinite() & (squared <= self._largest) & loss.isfinite()
            direction = tuple(torch.where(ok, x, 0.0) for x in direction)
            squared, loss = torch.where(ok, squared, 0.0), torch.where(ok, loss, math.nan)
        elif not math.isfinite(loss) or not (math.isfinite(squared) or self._overflows()):
            return self._skipped
        if self.clip_gradient is not None:
            direction = tuple(own_tensors(direction))
            shorter = clip_scale(squared, self.clip_gradient)
            torch._foreach_mul_(direction, shorter.to(self.gradients.dtype))
        parameters, scale = self.gradients.parameters, self.gradients.scale
        direction = in_layout_of(parameters, direction)
        for parameter, value in zip(parameters, direction, strict=True):
            parameter.grad = value if scale == 1.0 else scale * value
        for place in self.gradients.idle:
            if not bool(direction[place].any()):
                parameters[place].grad = None
        self.step()  # in half precision by the scaler, which finds what has overflowed
        for parameter in parameters:  # so that nothing holds v when it is done
            parameter.grad = None
        return loss

    def _overflows(self) -> bool:
        """Whether a gradient may be infinite because half precision is too narrow.

        Then the scaler skips the step and scales by less from now on; below one, that is
        not the reason any more.
        """
        return self.gradients.scaler is not None and self.gradients.scale >= 1.0

    def _report(
        self, losses: list[Tensor], norms: list[Tensor], windows: list[Tensor]
    ) -> OuterLoop:
        if not losses:
            return OuterLoop(0)
        numbers, undone = torch.stack([*losses, *norms]), False
        if self._careful:
            faulty = any(loss is self._skipped for loss in losses)
            self._careful = CAREFUL if faulty else self._careful - 1
        elif self.fused is not None:
            # Its steps were made before anybody could look: now is the time.
            undone = not all(map(math.isfinite, numbers.tolist()))
            if undone:
                self.fused.take_back()
        elif self.undo is not None and self.undo.is_due():
            self.undo.take_back()
            undone = True
        if undone:  # what did it may come again: then one step is lost, not a loop
            self._careful = CAREFUL
        return OuterLoop(len(losses), numbers, undone, windows, self._anchor_windows)

    def state_dict(self) -> dict[str, Any]:
        """What the next outer loop depends on, besides parameters and optimizer.

        Between two outer loops there is neither a snapshot nor an anchor: the next one
        begins with its own.
        """
        return {
            "anchors": self.anchors,
            "gradients": self.gradients.count,
            "ahead": self._ahead,
            "careful": self._careful,
            "draws": self.draws.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.anchors, self.gradients.count = state["anchors"], state["gradients"]
        self._careful, ahead = state["careful"], state["ahead"]
        device = self.gradients.parameters[0].device
        self._ahead = None if ahead is None else ahead.to(device)
        self.draws.load_state_dict(state["draws"])


class _EarlyStop:
    """Line 7: whether ‖v(t,k)‖² ≤ γ‖v(t,0)‖²; the norm may still be on its way.

    A norm that is not finite ends an outer loop, too: the next anchor is another one.
    """

    def __init__(self, gamma: float | None, device: torch.device) -> None:
        self._gamma = gamma
        self._first: float | None = None  # ‖v(t,0)‖² belongs to one outer loop alone
        self._norm: Tensor | None = None
        self._host: Tensor | None = None
        if device.type == "cuda":
            self._host = torch.empty((), dtype=torch.float64, pin_memory=True)
            self._event = torch.cuda.Event()

    def begin(self) -> None:
        """A new outer loop."""
        self._first = self._norm = None

    def see(self, squared_norm: Tensor) -> None:
        """Send ‖v(t,k)‖² to the host, without waiting for it."""
        self._norm = squared_norm
        if self._gamma is not None and self._host is not None:
            self._host.copy_(squared_norm, non_blocking=True)
            self._event.record()

    def fires(self) -> bool:
        """Whether the step whose norm was seen last is the last of its outer loop."""
        if self._gamma is None or self._norm is None:
            return False
        if self._host is not None:
            self._event.synchronize()
        norm = float(self._norm if self._host is None else self._host)
        self._first = norm if self._first is None else self._first
        return norm <= self._gamma * self._first or not math.isfinite(norm)


def fits_one_pass(windows: int) -> bool:
    """Return whether a gradient of so many windows is computed in one pass."""
    return windows <= MAX_PASS


def _add(left: Update, right: Update) -> Update:
    direction = own_tensors(left.direction)
    torch._foreach_add_(direction, right.direction)
    return Update(tuple(direction), left.loss + right.loss)


def geometric_length(mean: int, generator: torch.Generator) -> int:
    """K_t ~ Geo(B/(B+1)): P(K = k) = p^k (1 − p) for k = 0, 1, …, with mean B."""
    p = mean / (mean + 1)
    uniform = 1.0 - torch.rand((), generator=generator, dtype=torch.float64).item()
    return int(math.log(uniform) / math.log(p))
