"""The method as written in the paper, plain and slow; the fast code must equal it.

One gradient at a time, one window at a time, in Python loops, with the outer loop and
the optimizers written out. It shares nothing with the fast code except a window's loss.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Point = list[Tensor]
Gradient = Callable[[Point, int], Point]
#: The pairs (w_i, ξ_i) of an anchor: the weight of each stratum, and its windows.
StratifiedSample = Sequence[tuple[float, Sequence[int]]]
Update = Callable[[Point, Point], Point]


def window_gradient(loss: Callable[[Point, int], Tensor]) -> Gradient:
    """Return ∇f_{i,t}(θ) of one window from its loss, by autograd."""

    def gradient(theta: Point, window: int) -> Point:
        leaves = [x.detach().clone().requires_grad_() for x in theta]
        value = loss(leaves, window)
        grads = torch.autograd.grad(value, leaves, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads)]

    return gradient


def average(gradient: Gradient, theta: Point, windows: Sequence[int]) -> Point:
    """Return ∇f_ξ(θ) = (1/M) Σ_{(i,t) ∈ ξ} ∇f_{i,t}(θ)."""
    total = [torch.zeros_like(x) for x in theta]
    for window in windows:
        for place, part in enumerate(gradient(theta, window)):
            total[place] = total[place] + part / len(windows)
    return total


def stratified(gradient: Gradient, theta: Point, sample: StratifiedSample) -> Point:
    """Return g(θ) = Σ_i w_i ∇f_{ξ_i}(θ)."""
    total = [torch.zeros_like(x) for x in theta]
    for weight, windows in sample:
        for place, part in enumerate(average(gradient, theta, windows)):
            total[place] = total[place] + weight * part
    return total


def scott(
    gradient: Gradient,
    theta: Point,
    draw_anchor: Callable[[], StratifiedSample],
    draw_minibatch: Callable[[], Sequence[int]],
    update: Update,
    draw_length: Callable[[], int],
    gamma: float | None = None,
    coefficient: float = 1.0,
) -> Iterator[tuple[int, Point, Point]]:
    """Run Algorithm 1 (γ None, random lengths) or 2 (length K, γ) indefinitely.

    Parameters
    ----------
    gradient
        ∇f of one window.
    theta
        θ(0,0).
    draw_anchor
        Draws ξ_i(t) from each stratum: SCott's; one stratum of weight 1 with as many
        uniform windows is SCSG's, and with every window SVRG's.
    draw_minibatch
        Draws ξ(t,k).
    update
        θ ← θ − α v, or another optimizer.
    draw_length
        K_t.
    gamma, coefficient
        γ and c.

    Yields
    ------
    t, v(t,k) and θ(t,k+1), for each step.
    """
    t = 0
    while True:
        snapshot = [x.clone() for x in theta]
        anchor = stratified(gradient, snapshot, draw_anchor())  # line 2
        first = None
        for _ in range(draw_length()):  # line 3
            xi = draw_minibatch()  # line 4
            now = average(gradient, theta, xi)  # line 5
            then = average(gradient, snapshot, xi)
            v = [n - coefficient * (s - g) for n, s, g in zip(now, then, anchor)]
            theta = update(theta, v)  # line 6
            yield t, v, theta
            norm = sum(float((x * x).sum()) for x in v)
            first = norm if first is None else first
            if gamma is not None and norm <= gamma * first:  # line 7
                break  # line 8
        t += 1


def single_gradient(
    gradient: Gradient,
    theta: Point,
    draw_sample: Callable[[], StratifiedSample],
    update: Update,
) -> Iterator[tuple[int, Point, Point]]:
    """Step along stratified mini-batches; a single stratum makes them uniform.

    Yields
    ------
    t, v and θ, for each step.
    """
    t = 0
    while True:
        v = stratified(gradient, theta, draw_sample())
        theta = update(theta, v)
        yield t, v, theta
        t += 1


def mars(
    gradient: Gradient,
    theta: Point,
    draw_minibatch: Callable[[], Sequence[int]],
    update: Update,
    gamma: float,
    beta: float,
) -> Iterator[tuple[int, Point, Point]]:
    """Run MARS in its approximate form: c_t = g_t + γ·β₁/(1 − β₁)·(g_t − g_{t−1}).

    Yields
    ------
    t, c_t and θ_{t+1}, for each step.
    """
    t, before = 0, None
    while True:
        now = average(gradient, theta, draw_minibatch())
        before = now if before is None else before  # c_0 = g_0
        c = [g + gamma * beta / (1 - beta) * (g - h) for g, h in zip(now, before)]
        theta, before = update(theta, c), now
        yield t, c, theta
        t += 1


def storm(
    gradient: Gradient,
    theta: Point,
    draw_minibatch: Callable[[], Sequence[int]],
    update: Update,
    a: float,
) -> Iterator[tuple[int, Point, Point]]:
    """Run STORM: d_t = ∇f_ξ(θ_t) + (1 − a)(d_{t−1} − ∇f_ξ(θ_{t−1})).

    Yields
    ------
    t, d_t and θ_{t+1}, for each step.
    """
    d = average(gradient, theta, draw_minibatch())
    t = 0
    while True:
        before, theta = theta, update(theta, d)
        yield t, d, theta
        xi = draw_minibatch()
        now, then = average(gradient, theta, xi), average(gradient, before, xi)
        d = [g + (1 - a) * (e - h) for g, e, h in zip(now, d, then)]
        t += 1


def sampled_snapshot(
    snapshots: Sequence[Point], step_sizes: Sequence[float], rng: random.Random
) -> Point:
    """Return θ(t,0) with probability ∝ α_t·B: the return line of both algorithms."""
    (chosen,) = rng.choices(list(snapshots), weights=list(step_sizes))
    return chosen


class SGD:
    """θ ← θ − α (v + λ θ)."""

    def __init__(self, learning_rate: float, weight_decay: float) -> None:
        self.learning_rate, self.weight_decay = learning_rate, weight_decay

    def __call__(self, theta: Point, v: Point) -> Point:
        return [
            x - self.learning_rate * (g + self.weight_decay * x) for x, g in zip(theta, v)
        ]


class Adam(SGD):
    """Kingma and Ba's Adam with L2 weight decay, β = (0.9, 0.999), ε = 1e-8."""

    def __init__(self, learning_rate: float, weight_decay: float) -> None:
        super().__init__(learning_rate, weight_decay)
        self.step = 0
        self.first: Point = []
        self.second: Point = []

    def __call__(self, theta: Point, v: Point) -> Point:
        self.first = self.first or [torch.zeros_like(x) for x in theta]
        self.second = self.second or [torch.zeros_like(x) for x in theta]
        self.step += 1
        moved = []
        for k, (x, g) in enumerate(zip(theta, v, strict=True)):
            g = g + self.weight_decay * x
            self.first[k] = 0.9 * self.first[k] + 0.1 * g
            self.second[k] = 0.999 * self.second[k] + 0.001 * g * g
            m = self.first[k] / (1 - 0.9**self.step)
            s = self.second[k] / (1 - 0.999**self.step)
            moved.append(x - self.learning_rate * m / (s.sqrt() + 1e-8))
        return moved


class Adagrad(SGD):
    """Duchi et al.'s Adagrad with L2 weight decay, ε = 1e-10."""

    def __init__(self, learning_rate: float, weight_decay: float) -> None:
        super().__init__(learning_rate, weight_decay)
        self.total: Point = []

    def __call__(self, theta: Point, v: Point) -> Point:
        self.total = self.total or [torch.zeros_like(x) for x in theta]
        moved = []
        for k, (x, g) in enumerate(zip(theta, v, strict=True)):
            g = g + self.weight_decay * x
            self.total[k] = self.total[k] + g * g
            moved.append(x - self.learning_rate * g / (self.total[k].sqrt() + 1e-10))
        return moved


REFERENCE_OPTIMIZERS = {"sgd": SGD, "adam": Adam, "adagrad": Adagrad}
