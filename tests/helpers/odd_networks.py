"""Networks that hold or use their parameters in unusual ways.

All of them forecast two values from six by one weight, in double precision. Those in
``TRAINABLE`` must be trained as a plain loop in torch trains them.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn


def weight(*shape: int) -> torch.Tensor:
    """Return small random values that depend on the shape alone."""
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return 0.1 * torch.randn(*shape, generator=generator, dtype=torch.float64)


class Linear(nn.Module):
    """One weight; the networks below differ in how they hold and use it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight(2, 6))

    def forecast(self, past):
        return past @ self.weight.T

    def loss(self, past_target, future_target):
        return (self.forecast(past_target) - future_target).square().mean(dim=1)


# -- memory layout --------------------------------------------------------------------


class TransposedGradient(Linear):
    """A gradient that is transposed in memory."""

    def forecast(self, past):
        return torch.einsum("bc,pc->bp", past, self.weight)


class TransposedParameter(Linear):
    """A parameter that is transposed in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight(6, 2).T)


class SlicedParameter(Linear):
    """A parameter with gaps in memory: a part of a larger tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight(2, 9)[:, 2:8])


class ExpandedGradient(Linear):
    """A sum, whose gradient is one number, expanded: its strides are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(weight(3, 2))

    def loss(self, past_target, future_target):
        moved = future_target - self.shift.sum()
        return super().loss(past_target, moved)


class ExpandedParameter(Linear):
    """A parameter whose elements share memory, so that it cannot be updated."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight(1, 6).expand(2, 6))


class SharedGradient(Linear):
    """Two biases for which autograd returns one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(weight(2)), nn.Parameter(weight(2))

    def forecast(self, past):
        return super().forecast(past) + (self.one + self.two)


class TiedWeight(Linear):
    """A weight that belongs to a second module, too."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(6, 2, bias=False, dtype=torch.float64)
        self.again.weight = self.weight

    def forecast(self, past):
        return super().forecast(past) + self.again(past.tanh())


# -- unusual losses -------------------------------------------------------------------


class WritesIntoBatch(Linear):
    """Changes its batch in place, in training mode only."""

    def loss(self, past_target, future_target):
        if self.training:
            past_target.sub_(past_target.mean(dim=1, keepdim=True)).mul_(2.0)
        return super().loss(past_target, future_target)


class Square(torch.autograd.Function):
    """A square whose gradient is transposed in memory, as a custom kernel's may be."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return (2 * x * gradient).T.contiguous().T


class CustomFunction(Linear):
    """A loss with a custom autograd function."""

    def loss(self, past_target, future_target):
        return Square.apply(self.forecast(past_target) - future_target).mean(dim=1)


class InputGradient(Linear):
    """Takes a gradient by its input inside the loss: a leaf that is no parameter."""

    def loss(self, past_target, future_target):
        past = past_target.detach().clone().requires_grad_()
        with torch.enable_grad():
            output = self.forecast(past).tanh().sum(1)
            (slope,) = torch.autograd.grad(output.sum(), past, create_graph=True)
        return super().loss(past_target, future_target) + slope.square().mean(1)


class BadForSome(Linear):
    """A finite loss with a non-finite gradient, on windows above a limit."""

    def loss(self, past_target, future_target):
        bad = past_target[:, -1] > 2.9
        zero = (0.0 * self.weight).sum()
        root = torch.where(bad, zero, 1.0).sqrt()
        return super().loss(past_target, future_target) + root


# -- random numbers and state ---------------------------------------------------------


class NumpyNoise(Linear):
    """Noise from NumPy's global generator."""

    def loss(self, past_target, future_target):
        noise = np.random.standard_normal(past_target.shape) * self.training
        return super().loss(past_target + torch.from_numpy(noise), future_target)


class PythonNoise(Linear):
    """Noise from Python's global generator."""

    def loss(self, past_target, future_target):
        noise = random.gauss(0, 1) * self.training
        return super().loss(past_target + noise, future_target)


class Dropout(Linear):
    """Noise from torch's global generator."""

    def forecast(self, past):
        return super().forecast(nn.functional.dropout(past, 0.5, self.training))


class OwnGenerator(Linear):
    """Noise from a generator that no pass can rewind."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def loss(self, past_target, future_target):
        noise = self.generator.standard_normal(past_target.shape) * self.training
        return super().loss(past_target + torch.from_numpy(noise), future_target)


class RunningLevel(Linear):
    """A buffer that changes with every training pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.zeros((), dtype=torch.float64))

    def loss(self, past_target, future_target):
        losses = super().loss(past_target - self.level, future_target)
        if self.training:
            self.level.lerp_(past_target.mean().detach(), 0.1)
        return losses


class PassCounter(Linear):
    """State in an attribute, which no pass can restore."""

    passes = 0

    def loss(self, past_target, future_target):
        self.passes += 1
        return super().loss(past_target, future_target) * (1 + self.passes % 2)


# -- parameters that are not registered, or used otherwise ----------------------------


class ParameterInList(Linear):
    """A parameter that torch does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.biases = [nn.Parameter(weight(2))]

    def forecast(self, past):
        return super().forecast(past) + self.biases[0]


class ModuleInDict(Linear):
    """A module that torch does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = {"head": nn.Linear(6, 2, dtype=torch.float64)}

    def forecast(self, past):
        return super().forecast(past) + self.parts["head"](past)


class AliasedParameter(Linear):
    """Registered, but used from a list, where a snapshot's value is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = [self.weight]

    def forecast(self, past):
        return past @ self.weights[0].T


#: Networks whose training passes draw no random numbers and keep no state.
DETERMINISTIC = (
    Linear,
    TransposedGradient,
    TransposedParameter,
    SlicedParameter,
    ExpandedGradient,
    SharedGradient,
    TiedWeight,
    WritesIntoBatch,
    CustomFunction,
    InputGradient,
)
TRAINABLE = (*DETERMINISTIC, NumpyNoise, PythonNoise, Dropout, RunningLevel)
