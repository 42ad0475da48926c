"""The network check refuses networks that would be trained wrongly, before any step."""

from __future__ import annotations

import pytest
import torch
from helpers.odd_networks import (
    AliasedParameter,
    ExpandedParameter,
    Linear,
    ModuleInDict,
    OwnGenerator,
    ParameterInList,
    PassCounter,
)
from helpers.series import wave_windows
from helpers.training import (
    RATE,
    TinyNetwork,
    assert_same_parameters,
    fit_waves,
    plain_loop,
    tiny_network,
)
from torch import nn

from pts_scott.engine.gradients import Gradients
from pts_scott.engine.losses import Losses
from pts_scott.engine.network_check import WINDOWS, NetworkFacts, check_network
from pts_scott.engine.plain_passes import PlainPasses
from pts_scott.errors import (
    HiddenParameterError,
    ScottWarning,
    SelfCheckError,
    UnrepeatableLossError,
)


def check(network: nn.Module) -> NetworkFacts:
    windows, losses = wave_windows(), Losses(network)
    passes = PlainPasses(losses, lambda numbers: windows.gather(numbers, losses.fields))
    return check_network(passes, windows, uses_snapshot=True)


@pytest.mark.parametrize("method", ["plain", "scott", "stratified"])
@pytest.mark.parametrize(
    ("network", "error", "message"),
    [
        (
            ParameterInList,
            HiddenParameterError,
            r"never be trained: 'biases\[0\]'.*ParameterList",
        ),
        (ModuleInDict, HiddenParameterError, r"parts\['head'\]"),
        (OwnGenerator, UnrepeatableLossError, r"default_rng.*torch's global generator"),
        (PassCounter, UnrepeatableLossError, r"register_buffer"),
        (ExpandedParameter, SelfCheckError, r"parameter network\.weight.*\.clone\(\)"),
    ],
)
def test_network_that_would_train_wrongly_is_refused_by_name(
    network, error, message, method
):
    network = network()
    before = [p.detach().clone() for p in network.parameters()]
    with pytest.raises(error, match=message):
        fit_waves(network, method=method)
    for x, y in zip(network.parameters(), before, strict=True):
        assert torch.equal(x, y)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("network", [ParameterInList, AliasedParameter])
@pytest.mark.parametrize("method", ["plain", "scott"])
def test_hidden_parameters_are_refused_with_compiled_steps(network, method):
    with pytest.raises(HiddenParameterError):
        fit_waves(network(), method=method, compile=True)


FUNCTIONAL = Gradients.functional


def doubled_gradient(self, at, buffers, batch, weights):
    gradient, loss = FUNCTIONAL(self, at, buffers, batch, weights)
    return tuple(2 * g for g in gradient), loss


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("method", ["plain", "scott"])
def test_wrong_compiled_gradient_is_not_used(monkeypatch, method, fused):
    monkeypatch.setattr(Gradients, "functional", doubled_gradient)
    settings = {"method": method, "learning_rate": RATE}
    if not fused:
        settings["optimizer"] = torch.optim.RMSprop
    with pytest.raises(SelfCheckError, match="with other values for its parameters"):
        fit_waves(tiny_network(), compile=True, **settings)
    monkeypatch.setattr(
        "pts_scott.training.compile_policy.repays_compiling", lambda *_: True
    )
    with pytest.warns(ScottWarning, match="could not be compiled"):
        found = fit_waves(tiny_network(), compile="auto", **settings)
    expected = fit_waves(tiny_network(), compile=False, **settings)
    assert_same_parameters(found, expected)


def clamped_gradient_network() -> nn.Module:
    network = Linear()
    network.weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return network


def test_gradient_hooks_are_called_or_refused():
    found = fit_waves(clamped_gradient_network())
    expected = plain_loop(clamped_gradient_network(), "sgd")
    torch.testing.assert_close(found.weight, expected.weight)
    with pytest.raises(SelfCheckError, match="not that at the snapshot"):
        fit_waves(clamped_gradient_network(), method="scott")
    with pytest.warns(ScottWarning, match="gradient hooks, so its steps are not"):
        fit_waves(clamped_gradient_network(), compile=True)
    network = Linear()
    network.weight.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(SelfCheckError, match="would not be called"):
        fit_waves(network)


class UnusedParameter(TinyNetwork):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Parameter(torch.ones(3))


def test_parameters_that_no_loss_depends_on_are_found():
    assert check(tiny_network()).idle == frozenset()
    network = UnusedParameter().double()
    names = [name for name, _ in network.named_parameters()]
    assert check(network).idle == {names.index("head")}


class NonFiniteBelow(TinyNetwork):
    """Non-finite on windows whose last value is small."""

    limit = 1.0

    def loss(self, past_target, future_target):
        bad = past_target[:, -1] < self.limit
        return torch.where(bad, torch.nan, super().loss(past_target, future_target))


def test_only_finite_windows_are_used():
    network, windows = NonFiniteBelow().double(), wave_windows()
    finite = check(network).finite
    assert len(finite) == WINDOWS
    last = windows.gather(finite)["past_target"][:, -1]
    assert bool((last >= network.limit).all())
    network.limit = torch.inf
    assert len(check(network).finite) == 0
