"""Traced functions: what becomes part of a graph, and what cannot."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Distribution, Normal

from pts_scott.engine.tracing import trace
from pts_scott.errors import CompilationError


def test_backward_pass_is_part_of_the_graph():
    layer = nn.Linear(3, 1)

    def gradient(x):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(layer(leaf).square().sum(), (leaf,))

    x = torch.randn(4, 3)
    graph, _ = trace(gradient, [x], layer)
    other = torch.randn(4, 3)
    torch.testing.assert_close(graph(other), gradient(other))


def test_arguments_and_parameters_are_not_changed():
    layer = nn.Linear(3, 3)
    x, before = torch.zeros(3), layer.weight.detach().clone()

    def step(x, weight):
        weight.sub_(1.0)
        x.add_(1.0)
        return (x,)

    graph, _ = trace(step, [x, layer.weight], layer)
    assert torch.equal(x, torch.zeros(3))
    assert torch.equal(layer.weight, before)
    with torch.no_grad():
        graph(x, layer.weight)
    assert torch.equal(x, torch.ones(3))
    assert torch.equal(layer.weight, before - 1)


def test_python_may_read_values_that_are_the_same_in_every_call():
    module = nn.Module()
    module.register_buffer("mask", torch.ones(3, 3).triu())

    def causal(x):
        if bool((module.mask == torch.ones(3, 3).triu()).all()):
            return (x @ module.mask,)
        return (x,)

    x = torch.randn(2, 3)
    graph, read = trace(causal, [x], module)
    assert torch.equal(graph(x)[0], x @ module.mask)
    assert [tensor is module.mask for tensor in read] == [True]


def drawn_into_a_part():
    numbers = torch.zeros(2)
    numbers[:1].uniform_()
    return numbers.sum() > 0.5


def test_constants_are_read_at_the_end_of_a_long_graph():
    """There are 2⁶⁰ paths through it, but only 60 nodes."""

    def long(x):
        for _ in range(60):
            x = x + 0.5 * x
        x.mul_(0.0)  # changes x, of which the constant is no view
        return (x + 1 if bool(torch.ones(3).sum() == 3) else x,)

    graph, _ = trace(long, [torch.ones(2)], nn.Module())
    assert torch.equal(graph(torch.ones(2))[0], torch.ones(2))


def test_constant_that_was_changed_in_place_is_refused():
    def changed(x):
        mask = torch.zeros(2, 2)
        mask[0].add_(x)
        return (x if bool(mask.sum() > 0) else -x,)

    with pytest.raises(CompilationError, match="Python code depends on"):
        trace(changed, [torch.ones(2)], nn.Module())


def drawn_into_a_chunk():
    numbers = torch.zeros(2)
    first, _ = numbers.chunk(2)
    first.uniform_()
    return numbers.sum() > 0.5


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_single_numbers_are_read_whatever_their_shape(shape):
    module = nn.Module()
    module.register_buffer("flag", torch.zeros(shape))
    graph, _ = trace(lambda x: (x if module.flag else -x,), [torch.ones(2)], module)
    assert torch.equal(graph(torch.ones(2))[0], -torch.ones(2))


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x if bool(x.sum() > 0) else -x,
        lambda x: x * float(x.mean()),
        lambda x: x * x.sum().item(),
        lambda x: x + int(torch.rand(()) > 0.5),
        lambda x: x + int(drawn_into_a_part()),
        lambda x: x + int(drawn_into_a_chunk()),
    ],
)
def test_python_that_depends_on_arguments_or_random_numbers_is_refused(read):
    with pytest.raises(CompilationError, match="Python code depends on"):
        trace(lambda x: (read(x),), [torch.ones(3)], nn.Module())


def test_distributions_are_not_checked_while_tracing():
    before = Distribution._validate_args

    def loss(x):
        return (Normal(x, x.exp()).log_prob(x),)

    x = torch.randn(3)
    graph, _ = trace(loss, [x], nn.Module())
    torch.testing.assert_close(graph(x), loss(x))
    assert Distribution._validate_args is before


def test_tensors_of_the_trace_do_not_stay_in_the_network():
    class Keeps(nn.Module):
        last = None

        def __init__(self):
            super().__init__()
            self.table = {}

        def forward(self, x):
            self.last = self.table[len(x)] = 2 * x
            return (self.last,)

    module = Keeps()
    trace(module, [torch.ones(3)], module)
    assert module.last is None
    assert module.table == {}
