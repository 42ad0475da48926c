"""The method as the paper writes it, plain and slow: what the fast code must equal.

One gradient at a time, one window at a time, in Python loops and with optimizers
written out. Nothing here is shared with the fast code but the loss of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Point = list[Tensor]
Gradient = Callable[[Point, int], Point]


def window_gradient(loss: Callable[[Point, int], Tensor]) -> Gradient:
    """∇f_{i,t}(θ) of one window from its loss, by autograd."""

    def gradient(theta: Point, window: int) -> Point:
        leaves = [x.detach().clone().requires_grad_() for x in theta]
        value = loss(leaves, window)
        grads = torch.autograd.grad(value, leaves, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads)]

    return gradient


def average(gradient: Gradient, theta: Point, windows: Sequence[int]) -> Point:
    """∇f_ξ(θ) = (1/M) Σ_{(i,t) ∈ ξ} ∇f_{i,t}(θ)."""
    total = [torch.zeros_like(x) for x in theta]
    for window in windows:
        for place, part in enumerate(gradient(theta, window)):
            total[place] = total[place] + part / len(windows)
    return total


def stratified(
    gradient: Gradient, theta: Point, strata: Sequence[tuple[float, Sequence[int]]]
) -> Point:
    """g(θ) = Σ_i w_i ∇f_{ξ_i}(θ), with ``strata`` the pairs (w_i, ξ_i)."""
    total = [torch.zeros_like(x) for x in theta]
    for weight, windows in strata:
        for place, part in enumerate(average(gradient, theta, windows)):
            total[place] = total[place] + weight * part
    return total


def inner_loop(
    gradient: Gradient,
    theta: Point,
    anchor: Point,
    batches: Iterator[Sequence[int]],
    update: Callable[[Point, Point], Point],
    steps: int,
    gamma: float | None,
    coefficient: float = 1.0,
) -> Iterator[tuple[Point, Point]]:
    """Lines 3–9 of Algorithm 2; yields (v(t,k), θ(t,k+1)) for each k."""
    snapshot = [x.clone() for x in theta]
    first = None
    for _ in range(steps):
        xi = next(batches)
        now = average(gradient, theta, xi)
        then = average(gradient, snapshot, xi)
        v = [n - coefficient * (t - a) for n, t, a in zip(now, then, anchor, strict=True)]
        theta = update(theta, v)
        yield v, theta
        norm = sum(float((x * x).sum()) for x in v)
        first = norm if first is None else first
        if gamma is not None and norm <= gamma * first:
            break


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


OPTIMIZERS = {"sgd": SGD, "adam": Adam, "adagrad": Adagrad}
