"""Compiled functions: one per combination of shapes, equal to the uncompiled function."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from helpers.odd_networks import Dropout, RunningLevel
from helpers.training import TinyNetwork, fit_waves
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from pts_scott.engine.compilation import OPTIONS, CompiledFunction, compile_graph


def test_each_combination_of_shapes_is_compiled_once(monkeypatch):
    compiled = []

    def record(graph, arguments):
        compiled.append([tuple(x.shape) for x in arguments])
        return graph

    monkeypatch.setattr("pts_scott.engine.compilation.compile_graph", record)
    function = CompiledFunction(lambda w, x: (x @ w,), nn.Module())
    w = torch.randn(3, 2)
    for size in (4, 5, 4, 5, 4):
        x = torch.randn(size, 3)
        assert torch.equal(function([w], x)[0], x @ w)
    assert compiled == [[(3, 2), (4, 3)], [(3, 2), (5, 3)]]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_kernels_are_called_from_cpp_on_the_cpu_only(device, monkeypatch):
    """Elsewhere that needs the headers of the accelerator's toolkit."""
    given = []
    monkeypatch.setattr(
        "torch._inductor.compile_fx.compile_fx",
        lambda graph, examples, config_patches: given.append(config_patches),
    )
    graph = torch.fx.symbolic_trace(lambda x: (x + 1,))
    compile_graph(graph, [torch.zeros(2, device=device)])
    supported = all(hasattr(torch._inductor.config, name) for name in OPTIONS)
    assert given == [OPTIONS if device == "cpu" and supported else {}]


def test_compiling_in_the_middle_of_a_run_draws_nothing(traced):
    function = CompiledFunction(lambda x: (nn.functional.dropout(x, 0.5),), nn.Module())
    x = torch.ones(100)
    torch.manual_seed(0)
    expected = nn.functional.dropout(x, 0.5)
    torch.manual_seed(0)
    assert torch.equal(function([], x)[0], expected)


class NoisyLSTM(nn.Module):
    """A recurrent network with dropout between layers, in single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.lstm = nn.LSTM(1, 4, num_layers=2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(4, 2)

    def loss(self, past_target, future_target):
        hidden, _ = self.lstm(past_target.float()[..., None])
        forecast = self.head(nn.functional.dropout(hidden[:, -1], 0.2, self.training))
        return (forecast + self.shift - future_target).square().mean(1)


class FusedDropout(TinyNetwork):
    """Dropout by the operator that accelerators have for it."""

    def loss(self, past_target, future_target):
        hidden, _ = torch.native_dropout(past_target, 0.3, self.training)
        return super().loss(hidden, future_target)


class DeepDropout(TinyNetwork):
    """Several random operators whose order matters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers.append(nn.Dropout(0.5))

    def loss(self, past_target, future_target):
        noise = 0.1 * torch.randn_like(future_target)
        scale = 1 + 0.1 * torch.rand(len(past_target), dtype=past_target.dtype)
        losses = super().loss(past_target * scale[:, None], future_target + noise)
        return losses * torch.rand_like(losses)


NETWORKS = {
    "dropout": (Dropout, 1e-9),
    "fused dropout": (lambda: FusedDropout().double(), 1e-9),
    "buffers": (RunningLevel, 1e-9),
    "several": (lambda: DeepDropout().double(), 1e-9),
    # In single precision, rounding is amplified by Adam where gradients are small.
    "lstm": (NoisyLSTM, 1e-3),
}
SETTINGS = {"optimizer": "adam", "learning_rate": 1e-2, "gamma": None, "seed": 3}


def check_equal_to_eager(name: str, method: str, **settings) -> None:
    network, rtol = NETWORKS[name]
    torch.manual_seed(0)
    settings = {**SETTINGS, **settings, "method": method}
    found = fit_waves(network(), compile=True, **settings)
    torch.manual_seed(0)
    expected = fit_waves(network(), compile=False, **settings)
    pairs = zip(found.state_dict().values(), expected.state_dict().values(), strict=True)
    for x, y in pairs:
        torch.testing.assert_close(x, y, rtol=rtol, atol=rtol / 100)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("method", ["plain", "stratified", "scott", "storm"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_with_randomness_or_buffers_equal_eager_ones(name, method):
    check_equal_to_eager(name, method)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", NETWORKS)
def test_other_optimizers_use_the_same_compiled_gradient_twice(name):
    check_equal_to_eager(name, "scott", optimizer=torch.optim.RMSprop)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("buffers", "plain"),
        ("fused dropout", "scott"),
        ("several", "scott"),
        ("lstm", "scott"),
    ],
)
def test_compiled_networks_with_randomness_or_buffers_equal_eager_ones(name, method):
    check_equal_to_eager(name, method)


@pytest.mark.slow
def test_a_second_compilation_is_read_from_the_cache_on_disk():
    def check_compiled(seed: int) -> None:
        function = CompiledFunction(lambda w, x: (2 * (x @ w).relu(),), nn.Module())
        torch.manual_seed(seed)
        w, x = torch.randn(5, 7), torch.randn(11, 5)
        assert torch.allclose(function([w], x)[0], 2 * (x @ w).relu())

    with fresh_cache():
        before = Counter(counters["inductor"])
        check_compiled(0)
        torch._dynamo.reset()
        check_compiled(1)
        new = Counter(counters["inductor"]) - before
    assert new["fxgraph_cache_miss"] == new["fxgraph_cache_hit"] == 1
    assert not new["fxgraph_cache_bypass"]
