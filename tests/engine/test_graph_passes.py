"""Graphs before compilation: shared random numbers, fused LSTM layers, constants."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pts_scott.engine.graph_passes import (
    keep_fused_lstm,
    lift_constants,
    lift_random_numbers,
)
from pts_scott.engine.tracing import trace
from pts_scott.errors import CompilationError


def noise_in_place(x):
    return nn.functional.dropout(x, 0.5)


def noise_of_accelerators(x):
    return torch.native_dropout(x, 0.5, True)[0]


def noise_of_the_same_shape(x):
    return x + torch.randn_like(x) * torch.rand(x.shape)


def noise_changed_in_place(x):
    noise = torch.rand_like(x)
    noise.add_(1.0)
    return x * noise


@pytest.mark.parametrize(
    "noise",
    [
        noise_in_place,
        noise_of_accelerators,
        noise_of_the_same_shape,
        noise_changed_in_place,
    ],
)
def test_second_pass_draws_what_the_first_drew(noise):
    x, y = torch.ones(1000), torch.full((1000,), 3.0)
    graph, _ = trace(lambda x, y: (noise(x), noise(y)), [x, y], nn.Module())
    draws = lift_random_numbers(graph, has_two_passes=True)
    torch.manual_seed(0)
    first, second = graph(x, y, *[draw() for draw in draws])
    torch.manual_seed(0)
    assert torch.equal(first, noise(x))
    torch.manual_seed(0)
    assert torch.equal(second, noise(y))
    # The generator is where one pass leaves it, as in uncompiled inner steps.
    torch.manual_seed(0)
    noise(x)
    after = torch.get_rng_state()
    torch.manual_seed(0)
    for draw in draws:
        draw()
    assert torch.equal(torch.get_rng_state(), after)


def test_numbers_keep_the_memory_layout_of_uncompiled_passes():
    x = torch.ones(30, 40).T  # dropout fills memory in its order, not in that of indices
    graph, _ = trace(lambda x: (noise_in_place(x),), [x], nn.Module())
    draws = lift_random_numbers(graph, has_two_passes=False)
    torch.manual_seed(0)
    expected = noise_in_place(x)
    torch.manual_seed(0)
    assert torch.equal(graph(x, *[draw() for draw in draws])[0], expected)


def test_numbers_that_depend_on_parameters_are_refused():
    graph, _ = trace(
        lambda x, y: (torch.bernoulli(x), torch.bernoulli(y)),
        [torch.rand(3), torch.rand(3)],
        nn.Module(),
    )
    with pytest.raises(CompilationError, match="depend on other values"):
        lift_random_numbers(graph, has_two_passes=False)


def test_attention_without_dropout_is_not_random():
    q = torch.randn(2, 4, 8, 16)
    attend = nn.functional.scaled_dot_product_attention
    graph, _ = trace(lambda q: (attend(q, q, q),), [q], nn.Module())
    assert lift_random_numbers(graph, has_two_passes=False) == []


def test_generators_of_the_network_are_refused():
    generator = torch.Generator()
    graph, _ = trace(
        lambda x: (x + torch.rand(3, generator=generator),), [torch.ones(3)], nn.Module()
    )
    with pytest.raises(CompilationError, match="of its own"):
        lift_constants(graph)


def test_passes_that_draw_different_numbers_are_refused():
    graph, _ = trace(
        lambda x: (torch.rand_like(x), torch.randn_like(x)), [torch.ones(3)], nn.Module()
    )
    with pytest.raises(CompilationError, match="different random numbers"):
        lift_random_numbers(graph, has_two_passes=True)


def test_constants_become_arguments_and_are_not_copied():
    table = torch.arange(5.0)
    graph, _ = trace(
        lambda i: (table[i] + table.sum(),), [torch.tensor([1])], nn.Module()
    )
    constants = lift_constants(graph)
    assert [c.data_ptr() for c in constants] == [table.data_ptr()]
    table.add_(1.0)
    (found,) = graph(torch.tensor([2]), *constants)
    assert found == table[2] + table.sum()


def recurrent_gradient(layer, x):
    parameters = tuple(layer.parameters())

    def gradient(x, *values):
        with torch.enable_grad():
            leaves = tuple(v.detach().requires_grad_() for v in values)
            named = dict(zip(dict(layer.named_parameters()), leaves, strict=True))
            output, (h, c) = torch.func.functional_call(layer, named, (x,))
            loss = output.square().mean() + h.sum() * c.sum()
            return torch.autograd.grad(loss, leaves)

    return gradient, [x, *parameters]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "batch_first": True},
        {"bidirectional": True},
        {"bias": False},
    ],
)
def test_fused_lstm_equals_autograd(options):
    torch.manual_seed(0)
    layer = nn.LSTM(3, 5, **options)
    gradient, arguments = recurrent_gradient(layer, torch.randn(4, 6, 3))
    graph, _ = trace(gradient, arguments, layer)
    keep_fused_lstm(graph)
    names = {str(node.target) for node in graph.graph.nodes}
    assert "pts_scott.lstm_layer.default" in names
    assert "pts_scott.lstm_layer_backward.default" in names
    with torch.no_grad():
        found = graph(*arguments)
    torch.testing.assert_close(found, gradient(*arguments), rtol=1e-6, atol=1e-7)
