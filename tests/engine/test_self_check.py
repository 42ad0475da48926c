"""The self-check: what trains right passes, and what would train wrongly is named."""

from __future__ import annotations

import random
import warnings
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from helpers.series import wave_windows
from helpers.training import QUIET, quiet_trainer, tiny_network
from torch import nn
from torch.utils.checkpoint import checkpoint

from pts_scott import Stratifier
from pts_scott._utils.rng import Generators, isolated_rng
from pts_scott.engine.gradients import Gradients
from pts_scott.engine.losses import Losses
from pts_scott.engine.model_checks import check_model
from pts_scott.engine.network_check import NetworkFacts
from pts_scott.engine.training_effects import training_effects
from pts_scott.errors import (
    HiddenParameterError,
    ModelError,
    ScottWarning,
    SelfCheckError,
    UnrepeatableLossError,
)

CPU = torch.device("cpu")
STEPS, BATCH, RATE, DECAY = 25, 4, 0.02, 1e-3


def weight(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return 0.1 * torch.randn(*shape, generator=generator, dtype=torch.float64)


class Linear(nn.Module):
    """One weight; the cases below differ in how they hold and use it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight(2, 6))

    def forecast(self, past):
        return past @ self.weight.T

    def loss(self, past_target, future_target):
        return (self.forecast(past_target) - future_target).square().mean(dim=1)


class Einsum(Linear):
    """Its gradient is transposed in memory."""

    def forecast(self, past):
        return torch.einsum("bc,pc->bp", past, self.weight)


class Transposed(Linear):
    """The parameter itself is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight(6, 2).T)


class Slice(Linear):
    """A parameter with gaps in memory: a part of a larger tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight(2, 9)[:, 2:8])


class Penalised(Linear):
    """The gradient of a sum is one number, expanded: its strides are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(weight(3, 2))

    def loss(self, past_target, future_target):
        moved = future_target - self.shift.sum()
        return super().loss(past_target, moved)


class SharedGradient(Linear):
    """Autograd returns one tensor for both biases."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(weight(2)), nn.Parameter(weight(2))

    def forecast(self, past):
        return super().forecast(past) + (self.one + self.two)


class Tied(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(6, 2, bias=False, dtype=torch.float64)
        self.again.weight = self.weight

    def forecast(self, past):
        return super().forecast(past) + self.again(past.tanh())


class Writes(Linear):
    """Writes into its batch, in training mode only."""

    def loss(self, past_target, future_target):
        if self.training:
            past_target.sub_(past_target.mean(dim=1, keepdim=True)).mul_(2.0)
        return super().loss(past_target, future_target)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return (2 * x * gradient).T.contiguous().T  # as somebody's kernel may


class CustomFunction(Linear):
    def loss(self, past_target, future_target):
        return Square.apply(self.forecast(past_target) - future_target).mean(dim=1)


class NumpyNoise(Linear):
    def loss(self, past_target, future_target):
        noise = np.random.standard_normal(past_target.shape) * self.training
        return super().loss(past_target + torch.from_numpy(noise), future_target)


class PythonNoise(Linear):
    def loss(self, past_target, future_target):
        noise = random.gauss(0, 1) * self.training
        return super().loss(past_target + noise, future_target)


class Dropout(Linear):
    def forecast(self, past):
        return super().forecast(nn.functional.dropout(past, 0.5, self.training))


class Running(Linear):
    """A buffer that changes with every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.zeros((), dtype=torch.float64))

    def loss(self, past_target, future_target):
        losses = super().loss(past_target - self.level, future_target)
        if self.training:
            self.level.lerp_(past_target.mean().detach(), 0.1)
        return losses


class Penalty(Linear):
    """Takes a gradient by its input inside the loss: a leaf that is no parameter."""

    def loss(self, past_target, future_target):
        past = past_target.detach().clone().requires_grad_()
        with torch.enable_grad():
            output = self.forecast(past).tanh().sum(1)
            (slope,) = torch.autograd.grad(output.sum(), past, create_graph=True)
        return super().loss(past_target, future_target) + slope.square().mean(1)


DETERMINISTIC = (
    *(Linear, Einsum, Transposed, Slice, Penalised, SharedGradient, Tied, Writes),
    *(CustomFunction, Penalty),
)
RIGHT = (*DETERMINISTIC, NumpyNoise, PythonNoise, Dropout, Running)


class InList(Linear):
    """A parameter that torch does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.biases = [nn.Parameter(weight(2))]

    def forecast(self, past):
        return super().forecast(past) + self.biases[0]


class ModuleInDict(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.parts = {"head": nn.Linear(6, 2, dtype=torch.float64)}

    def forecast(self, past):
        return super().forecast(past) + self.parts["head"](past)


class Aliased(Linear):
    """Registered, but used from a list: the snapshot's value would not be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = [self.weight]

    def forecast(self, past):
        return past @ self.weights[0].T


class OwnGenerator(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def loss(self, past_target, future_target):
        noise = self.generator.standard_normal(past_target.shape) * self.training
        return super().loss(past_target + torch.from_numpy(noise), future_target)


class Counter(Linear):
    """Keeps state in an attribute, which no pass can restore."""

    passes = 0

    def loss(self, past_target, future_target):
        self.passes += 1
        return super().loss(past_target, future_target) * (1 + self.passes % 2)


class Expanded(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight(1, 6).expand(2, 6))


def fit(network: nn.Module, **settings: Any) -> nn.Module:
    defaults: dict[str, Any] = {
        "method": "plain",
        "learning_rate": RATE,
        "weight_decay": DECAY,
        "batch_size": BATCH,
        "stratifier": Stratifier.series(),
        "num_batches_per_epoch": STEPS,
    }
    quiet_trainer(**{**defaults, **settings}).fit(network, wave_windows())
    return network


UNFUSED = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
}


def plain_loop(network: nn.Module, optimizer: str) -> nn.Module:
    """The loop that everybody would write, on the same windows."""
    windows, generators = wave_windows(), Generators.from_seed(1)
    made = UNFUSED[optimizer](
        network.parameters(), lr=RATE, weight_decay=DECAY, foreach=False
    )
    for _ in range(STEPS):
        batch = windows.gather(windows.draw(BATCH, generators.inner))
        made.zero_grad()
        network.loss(batch["past_target"], batch["future_target"]).mean().backward()
        made.step()
    return network


@pytest.mark.parametrize("optimizer", UNFUSED)
@pytest.mark.parametrize("network", [*DETERMINISTIC, Running])
def test_plain_steps_equal_a_plain_loop(network, optimizer):
    found = fit(network(), optimizer=optimizer)
    expected = plain_loop(network(), optimizer)
    # Only the order of sums differs, in double precision.
    for x, y in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("method", ["scott", "stratified"])
@pytest.mark.parametrize("network", RIGHT)
def test_what_trains_right_passes(network, method, optimizer):
    fit(network(), method=method, optimizer=optimizer, anchor_batch_size=2)


@pytest.mark.parametrize("network", RIGHT)
def test_the_first_direction_equals_the_anchor(network):
    windows, losses = wave_windows(), Losses(network().train())
    check_model(losses, windows)
    effects = training_effects(losses, windows)
    gradients = Gradients(losses, stochastic=effects.random, stateful=effects.buffers)
    anchor = tuple(torch.randn_like(p) for p in gradients.parameters)
    snapshot = tuple(p.detach().clone() for p in gradients.parameters)
    batch = windows.gather(torch.arange(9), losses.fields)
    v = gradients.control_variate(batch, snapshot, anchor, 1.0).direction
    for x, y in zip(v, anchor, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("network", [NumpyNoise, PythonNoise, Dropout])
def test_noise_from_any_global_generator_is_noticed(network):
    effects = training_effects(Losses(network()), wave_windows())
    names = {NumpyNoise: "numpy", PythonNoise: "python", Dropout: "torch"}
    assert effects.random == {names[network]}


@pytest.mark.parametrize("method", ["plain", "scott", "stratified"])
@pytest.mark.parametrize(
    ("network", "error", "message"),
    [
        (InList, HiddenParameterError, r"never be trained: 'biases\[0\]'.*ParameterList"),
        (ModuleInDict, HiddenParameterError, r"parts\['head'\]"),
        (OwnGenerator, UnrepeatableLossError, r"default_rng.*torch's global generator"),
        (Counter, UnrepeatableLossError, r"register_buffer"),
        (Expanded, SelfCheckError, r"parameter network\.weight.*\.clone\(\)"),
    ],
)
def test_what_would_train_wrongly_is_named(network, error, message, method):
    network = network()
    before = [p.detach().clone() for p in network.parameters()]
    with pytest.raises(error, match=message):
        fit(network, method=method)
    for x, y in zip(network.parameters(), before, strict=True):
        assert torch.equal(x, y)


def test_a_parameter_used_from_a_list_is_refused_where_it_would_matter():
    with pytest.raises(HiddenParameterError, match=r"wrong in 'network\.weight'"):
        fit(Aliased(), method="scott")
    trained, expected = fit(Aliased()), plain_loop(Aliased(), "sgd")
    torch.testing.assert_close(trained.weight, expected.weight)


@pytest.fixture
def traced(monkeypatch):
    """Trace steps as for compilation, but run them without the C++ compiler."""
    monkeypatch.setattr("pts_scott.engine.compilation.BACKEND", "aot_eager")
    monkeypatch.setattr("pts_scott.training.compile_policy.has_compiler", lambda: True)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("network", [InList, Aliased])
@pytest.mark.parametrize("method", ["plain", "scott"])
def test_hidden_parameters_are_refused_compiled(network, method):
    with pytest.raises(HiddenParameterError):
        fit(network(), method=method, compile=True)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("network", [Einsum, Transposed, Slice, Penalised, Tied])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("method", ["plain", "scott", "stratified"])
def test_compiled_steps_pass_and_equal_eager_ones(network, method, optimizer):
    settings = {"method": method, "optimizer": optimizer, "anchor_batch_size": 2}
    one, other = (fit(network(), compile=c, **settings) for c in (True, False))
    for x, y in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-10)


FUNCTIONAL = Gradients.functional


def doubled(self, parameters, batch, weights):
    gradient, loss = FUNCTIONAL(self, parameters, batch, weights)
    return tuple(2 * g for g in gradient), loss


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("method", ["plain", "scott"])
def test_a_compiled_gradient_that_is_wrong_is_not_used(monkeypatch, method, fused):
    monkeypatch.setattr(Gradients, "functional", doubled)
    settings = {"method": method, "learning_rate": RATE}
    if not fused:
        settings["optimizer"] = torch.optim.RMSprop
    with pytest.raises(SelfCheckError, match="by torch.func differs from"):
        fit(tiny_network(), compile=True, **settings)
    monkeypatch.setattr(
        "pts_scott.training.compile_policy.repays_compiling", lambda *_: True
    )
    with pytest.warns(ScottWarning, match="could not be compiled"):
        found = fit(tiny_network(), compile="auto", **settings)
    expected = fit(tiny_network(), compile=False, **settings)
    for x, y in zip(found.parameters(), expected.parameters(), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adagrad"])
@pytest.mark.parametrize("network", [Einsum, Penalised])
def test_the_check_would_have_found_gradients_in_another_layout(
    monkeypatch, network, optimizer
):
    monkeypatch.setattr(
        "pts_scott.engine.update_check.in_layout_of", lambda _, values: values
    )
    with pytest.raises(SelfCheckError, match="without fused kernels"):
        fit(network(), optimizer=optimizer)


def test_an_optimizer_has_to_hold_all_parameters():
    with pytest.raises(SelfCheckError, match=r"does not hold 'network\.two'"):
        fit(
            SharedGradient(),
            optimizer=lambda p: torch.optim.SGD(p[:-1], lr=0.1),
        )


def test_a_fused_optimizer_of_a_user_is_refused_where_torch_updates_wrongly():
    with pytest.raises(SelfCheckError, match=r"fused=False, or make .* contiguous"):
        fit(Slice(), optimizer=lambda p: torch.optim.Adam(p, lr=RATE, fused=True))
    fit(Slice(), optimizer=lambda p: torch.optim.Adam(p, lr=RATE))


class Watch(pl.Callback):
    """Sees what the self-check leaves behind."""

    def on_train_epoch_start(self, trainer, module):
        self.count = module.state.counters.gradients
        self.gradients = [p.grad for p in module.losses.parameters()]
        self.values = [p.detach().clone() for p in module.losses.parameters()]
        self.level = module.losses.network.level.clone()
        self.state = dict(trainer.optimizers[0].state)
        self.seconds = module.clock.seconds


def test_the_check_leaves_no_trace():
    watch, network = Watch(), Running()
    before = [p.detach().clone() for p in network.parameters()]
    fit(network, optimizer="adam", trainer_kwargs={**QUIET, "callbacks": [watch]})
    assert watch.count == 0
    assert watch.gradients == [None]
    assert all(map(torch.equal, watch.values, before))
    assert float(watch.level) == 0.0
    assert not watch.state
    assert watch.seconds < 0.1


@pytest.mark.parametrize("network", [Dropout, NumpyNoise, PythonNoise])
def test_the_check_draws_nothing(monkeypatch, network):
    def trained() -> torch.Tensor:
        with isolated_rng(3, CPU):
            return fit(network(), method="scott").weight.detach()

    checked = trained()
    setup = "pts_scott.training.engine_setup"
    facts = NetworkFacts(torch.zeros(0, dtype=torch.long), frozenset())
    monkeypatch.setattr(f"{setup}.check_network", lambda *_, **__: facts)
    monkeypatch.setattr(f"{setup}.EngineCheck.run", lambda *_: None)
    assert torch.equal(checked, trained())


class BadEverywhereButOnce(Linear):
    """Not finite on windows that the first look at the model does not meet."""

    limit = np.inf

    def loss(self, past_target, future_target):
        bad = past_target[:, -1] > self.limit
        return torch.where(bad, torch.nan, super().loss(past_target, future_target))


class Spoil(pl.Callback):
    def on_train_start(self, trainer, module):
        module.losses.network.limit = self.limit


@pytest.mark.parametrize("limit", [1.4, -9.0])
def test_windows_that_are_not_finite_are_left_out_of_the_check(limit):
    spoil = Spoil()
    spoil.limit = limit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScottWarning)
        fit(
            BadEverywhereButOnce(),
            method="scott",
            trainer_kwargs={**QUIET, "callbacks": [spoil]},
        )


def test_the_seconds_of_the_check_are_reported_apart():
    trainer = quiet_trainer(method="plain")
    trainer.fit(tiny_network(), wave_windows())
    assert 0 < trainer.self_check_seconds < 5


# -- what a snapshot must see ---------------------------------------------------------


class Block(Linear):
    """A hidden layer, which activation checkpointing runs again in the backward pass."""

    reentrant: bool | None = None

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 6, dtype=torch.float64)
        with torch.no_grad():
            self.hidden.weight.copy_(weight(6, 6) + torch.eye(6))
            self.hidden.bias.zero_()

    def forecast(self, past):
        def block(x):
            return torch.tanh(self.hidden(x))

        if self.reentrant is None:
            return super().forecast(block(past))
        past = past.detach().requires_grad_(self.reentrant)
        return super().forecast(checkpoint(block, past, use_reentrant=self.reentrant))


class Recomputed(Block):
    reentrant = False


class Reentrant(Block):
    reentrant = True


class Detached(Linear):
    """Uses its weight under another name, where no gradient flows."""

    def __init__(self) -> None:
        super().__init__()
        self.held = [self.weight]

    def forecast(self, past):
        return super().forecast(past) * (1 + self.held[0].detach().square().sum())


@pytest.mark.parametrize("method", ["scott", "plain"])
def test_a_backward_pass_that_recomputes_sees_the_snapshot(method):
    settings = {"method": method, "anchor_batch_size": 2}
    one, other = fit(Recomputed(), **settings), fit(Block(), **settings)
    for x, y in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("method", ["scott", "plain"])
def test_a_block_that_autograd_does_not_see_is_refused(method):
    with pytest.raises(SelfCheckError, match="use_reentrant=False"):
        fit(Reentrant(), method=method)


def test_a_parameter_seen_under_another_name_is_refused_without_a_gradient_too():
    with pytest.raises(HiddenParameterError, match="at a snapshot is wrong"):
        fit(Detached(), method="scott")
    fit(Detached(), method="plain")


class Scalar(Linear):
    """Of a scalar in double precision, compiled code loses what is written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def forecast(self, past):
        return super().forecast(past) + self.scale


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_a_compiled_scalar_is_right_or_refused(method):
    settings = {"method": method, "anchor_batch_size": 2}
    expected = fit(Scalar(), **settings)
    try:
        found = fit(Scalar(), compile=True, **settings)
    except SelfCheckError as error:
        assert "compile=False" in str(error)  # noqa: PT017 (either is right)
        return
    for x, y in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-10)


# -- what compiled steps take for constant --------------------------------------------


class Annealed(Linear):
    beta = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.beta = 1.0

    def loss(self, past_target, future_target):
        return self.beta * super().loss(past_target, future_target)


class Anneal(pl.Callback):
    def on_train_epoch_start(self, trainer, module):
        module.losses.network.beta = 1.0 / (1 + trainer.current_epoch)


@pytest.mark.usefixtures("traced")
def test_an_attribute_that_a_callback_changes_ends_compiled_steps():
    settings = {"epochs": 3, "trainer_kwargs": {**QUIET, "callbacks": [Anneal()]}}
    with pytest.warns(ScottWarning, match="'beta' of the network was changed"):
        found = fit(Annealed(), compile=True, **settings)
    expected = fit(Annealed(), **settings)
    torch.testing.assert_close(found.weight, expected.weight, rtol=1e-10, atol=1e-12)


class WarmsUp(Linear):
    """Counts its passes, and changes with them, later."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def loss(self, past_target, future_target):
        self.passes += self.training
        return super().loss(past_target, future_target) * (1 + (self.passes > 200))


def test_a_network_that_counts_is_not_compiled():
    with pytest.warns(ScottWarning, match="changes its own attributes"):
        fit(WarmsUp(), compile=True)


# -- hooks, and parameters without a gradient -----------------------------------------


def hooked() -> nn.Module:
    network = Linear()
    network.weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return network


def test_gradient_hooks_are_called_or_refused():
    found = fit(hooked())
    torch.testing.assert_close(found.weight, plain_loop(hooked(), "sgd").weight)
    with pytest.raises(SelfCheckError, match="not that at the snapshot"):
        fit(hooked(), method="scott")
    with pytest.warns(ScottWarning, match="gradient hooks, so its steps are not"):
        fit(hooked(), compile=True)
    network = Linear()
    network.weight.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(SelfCheckError, match="would not be called"):
        fit(network)


class Spare(Linear):
    """Has a head that this loss does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Parameter(torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("method", ["plain", "scott", "stratified"])
@pytest.mark.usefixtures("traced")
def test_what_no_loss_depends_on_is_not_worn_away_by_weight_decay(method, compile):
    network = fit(Spare(), method=method, optimizer="adam", compile=compile)
    assert network.head.tolist() == [1.0, 1.0, 1.0]


class Attention(Linear):
    """The gradient of a bias of keys is zero, but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forecast(self, past):
        scores = (past[:, :3] + self.key).softmax(1)
        return super().forecast(past) + (scores * past[:, 3:]).sum(1, keepdim=True)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_a_gradient_of_nothing_but_rounding_is_no_reason_to_refuse(optimizer):
    fit(Attention(), optimizer=optimizer, compile=True)


# -- unusual buffers, random numbers for some windows, other optimizers ---------------


class OddBuffers(Linear):
    """One buffer in two modules, one that is expanded, one that is sparse."""

    def __init__(self) -> None:
        super().__init__()
        level = torch.zeros((), dtype=torch.float64)
        self.register_buffer("level", level)
        self.part = nn.Module()
        self.part.register_buffer("level", level)
        self.register_buffer("ones", torch.ones(1, dtype=torch.float64).expand(6))
        self.register_buffer("graph", torch.eye(6, dtype=torch.float64).to_sparse())

    def forecast(self, past):
        return super().forecast(past * self.ones + self.level)


@pytest.mark.parametrize("method", ["plain", "scott"])
def test_buffers_may_be_shared_expanded_and_sparse(method):
    found = fit(OddBuffers(), method=method)
    torch.testing.assert_close(found.weight, fit(Linear(), method=method).weight)


class NoiseForSome(Linear):
    """Draws for windows above a limit that no probe has met."""

    def loss(self, past_target, future_target):
        if self.training and bool((past_target[:, -1] > self.limit).any()):
            past_target = past_target + torch.randn_like(past_target)
        return super().loss(past_target, future_target)


class Limit(pl.Callback):
    def __init__(self, limit: float) -> None:
        self.limit = limit

    def on_train_epoch_start(self, trainer, module):
        module.losses.network.limit = self.limit


def test_numbers_drawn_for_some_windows_only_are_noticed():
    network = NoiseForSome()
    network.limit = np.inf
    kwargs = {**QUIET, "callbacks": [Limit(1.0)]}
    with pytest.warns(ScottWarning, match="draws random numbers for some windows"):
        fit(network, method="scott", trainer_kwargs=kwargs)


def test_complex_parameters_are_refused():
    network = Linear()
    network.spectrum = nn.Parameter(torch.ones(3, dtype=torch.complex128))
    with pytest.raises(ModelError, match="view_as_real"):
        fit(network)


class BadGradient(Linear):
    def loss(self, past_target, future_target):
        zero = (0.0 * self.weight).sum()
        return super().loss(past_target, future_target) + zero.sqrt()


def test_a_network_without_any_finite_gradient_is_refused():
    with pytest.raises(ModelError, match="its gradient is not, on any of"):
        fit(BadGradient())


class HalfFirst(nn.Module):
    """Its first parameter is coarser than the others."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
        self.weight = nn.Parameter(weight(2, 6).float())

    def loss(self, past_target, future_target):
        forecast = past_target @ self.weight.T + self.shift.float()
        return (forecast - future_target).square().mean(dim=1)


@pytest.mark.usefixtures("traced")
def test_compiled_numbers_do_not_have_the_precision_of_the_first_parameter():
    found = []
    for compiled in (True, False):
        network = HalfFirst()
        quiet_trainer(
            method="plain",
            optimizer="adamw",
            weight_decay=1.0,  # 1 - lr * weight_decay is 1 in half precision
            num_batches_per_epoch=60,
            compile=compiled,
        ).fit(network, wave_windows(torch.float32))
        found.append(network.weight.detach())
    torch.testing.assert_close(*found, rtol=2e-3, atol=2e-4)


class Assigning(torch.optim.Optimizer):
    """Keeps its state in new tensors and in lists, as torch's own do not."""

    def __init__(self, parameters, lr=0.01) -> None:
        super().__init__(parameters, {"lr": lr, "steps": 0})

    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] += 1
            for p in group["params"]:
                state = self.state[p]
                before = state.get("momentum", torch.zeros_like(p))
                state["momentum"] = 0.9 * before + p.grad
                state["all"] = [*state.get("all", [])[-1:], p.grad.clone()]
                with torch.no_grad():
                    p.sub_(group["lr"] * (state["momentum"] + 0 * state["all"][0]))


class BadForOne(Linear):
    """A finite loss, and a gradient that is not, on windows above a limit."""

    def loss(self, past_target, future_target):
        bad = past_target[:, -1] > 2.9
        zero = (0.0 * self.weight).sum()
        root = torch.where(bad, zero, 1.0).sqrt()
        return super().loss(past_target, future_target) + root


@pytest.mark.filterwarnings("ignore::pts_scott.errors.FaultWarning")
def test_a_rollback_restores_the_state_of_any_optimizer():
    network = fit(BadForOne(), optimizer=lambda p: Assigning(p), epochs=8)
    assert bool(network.weight.isfinite().all())
