"""The engine check finds wrong gradients, accepts right ones, and leaves no trace."""

from __future__ import annotations

import warnings

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from helpers.odd_networks import (
    TRAINABLE,
    AliasedParameter,
    Dropout,
    Linear,
    NumpyNoise,
    PythonNoise,
    RunningLevel,
    SharedGradient,
    weight,
)
from helpers.series import wave_windows
from helpers.training import (
    QUIET,
    assert_same_parameters,
    fit_waves,
    plain_loop,
    quiet_trainer,
    tiny_network,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

from pts_scott._utils.rng import isolated_rng
from pts_scott.engine.network_check import NetworkFacts
from pts_scott.errors import HiddenParameterError, ScottWarning, SelfCheckError

CPU = torch.device("cpu")


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("method", ["scott", "stratified"])
@pytest.mark.parametrize("network", TRAINABLE)
def test_trainable_networks_pass(network, method, optimizer):
    fit_waves(network(), method=method, optimizer=optimizer, anchor_batch_size=2)


def test_parameter_used_from_a_list_is_refused_only_where_a_snapshot_is_used():
    with pytest.raises(HiddenParameterError, match=r"wrong in 'network\.weight'"):
        fit_waves(AliasedParameter(), method="scott")
    trained = fit_waves(AliasedParameter())
    expected = plain_loop(AliasedParameter(), "sgd")
    torch.testing.assert_close(trained.weight, expected.weight)


class DetachedAlias(Linear):
    """Uses its weight under another name, where no gradient flows."""

    def __init__(self) -> None:
        super().__init__()
        self.held = [self.weight]

    def forecast(self, past):
        return super().forecast(past) * (1 + self.held[0].detach().square().sum())


def test_detached_alias_of_a_parameter_is_refused_only_where_a_snapshot_is_used():
    with pytest.raises(HiddenParameterError, match="at a snapshot is wrong"):
        fit_waves(DetachedAlias(), method="scott")
    fit_waves(DetachedAlias(), method="plain")


def test_optimizer_must_hold_all_parameters():
    with pytest.raises(SelfCheckError, match=r"does not hold 'network\.two'"):
        fit_waves(
            SharedGradient(),
            optimizer=lambda p: torch.optim.SGD(p[:-1], lr=0.1),
        )


# -- activation checkpointing ---------------------------------------------------------


class Hidden(Linear):
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


class Recomputed(Hidden):
    reentrant = False


class Reentrant(Hidden):
    reentrant = True


@pytest.mark.parametrize("method", ["scott", "plain"])
def test_recomputed_activations_see_the_snapshot(method):
    settings = {"method": method, "anchor_batch_size": 2}
    one, other = fit_waves(Recomputed(), **settings), fit_waves(Hidden(), **settings)
    assert_same_parameters(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("method", ["scott", "plain"])
def test_reentrant_checkpointing_is_refused(method):
    with pytest.raises(SelfCheckError, match="use_reentrant=False"):
        fit_waves(Reentrant(), method=method)


# -- compiled steps -------------------------------------------------------------------


class Scalar(Linear):
    """A scalar in double precision: torch's compiler may lose in-place updates of it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def forecast(self, past):
        return super().forecast(past) + self.scale


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_compiled_scalar_is_right_or_refused(method):
    settings = {"method": method, "anchor_batch_size": 2}
    expected = fit_waves(Scalar(), **settings)
    try:
        found = fit_waves(Scalar(), compile=True, **settings)
    except SelfCheckError as error:
        assert "compile=False" in str(error)  # noqa: PT017 (either is right)
        return
    assert_same_parameters(found, expected, rtol=1e-8, atol=1e-10)


# -- side effects ---------------------------------------------------------------------


class RecordStart(pl.Callback):
    """Records what the checks leave behind when the first epoch starts."""

    def on_train_epoch_start(self, trainer, module):
        self.count = module.state.counters.gradients
        self.gradients = [p.grad for p in module.losses.parameters()]
        self.values = [p.detach().clone() for p in module.losses.parameters()]
        self.level = module.losses.network.level.clone()
        self.state = dict(trainer.optimizers[0].state)
        self.seconds = module.clock.seconds


def test_checks_leave_no_trace():
    start, network = RecordStart(), RunningLevel()
    before = [p.detach().clone() for p in network.parameters()]
    fit_waves(network, optimizer="adam", trainer_kwargs={**QUIET, "callbacks": [start]})
    assert start.count == 0
    assert start.gradients == [None]
    assert all(map(torch.equal, start.values, before))
    assert float(start.level) == 0.0
    assert not start.state
    assert start.seconds < 0.1


@pytest.mark.parametrize("network", [Dropout, NumpyNoise, PythonNoise])
def test_checks_do_not_advance_random_generators(monkeypatch, network):
    def trained() -> torch.Tensor:
        with isolated_rng(3, CPU):
            return fit_waves(network(), method="scott").weight.detach()

    checked = trained()
    setup = "pts_scott.training.engine_setup"
    facts = NetworkFacts(torch.zeros(0, dtype=torch.long), frozenset())
    monkeypatch.setattr(f"{setup}.check_network", lambda *_, **__: facts)
    monkeypatch.setattr(f"{setup}.EngineCheck.run", lambda *_: None)
    assert torch.equal(checked, trained())


class NonFiniteAbove(Linear):
    """Non-finite on windows above a limit, which is set after the model checks."""

    limit = np.inf

    def loss(self, past_target, future_target):
        bad = past_target[:, -1] > self.limit
        return torch.where(bad, torch.nan, super().loss(past_target, future_target))


class SetLimit(pl.Callback):
    def __init__(self, limit: float) -> None:
        self.limit = limit

    def on_train_start(self, trainer, module):
        module.losses.network.limit = self.limit


@pytest.mark.parametrize("limit", [1.4, -9.0])
def test_nonfinite_windows_are_left_out_of_the_check(limit):
    kwargs = {**QUIET, "callbacks": [SetLimit(limit)]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScottWarning)
        fit_waves(NonFiniteAbove(), method="scott", trainer_kwargs=kwargs)


def test_seconds_of_the_checks_are_reported_separately():
    trainer = quiet_trainer(method="plain")
    trainer.fit(tiny_network(), wave_windows())
    assert 0 < trainer.self_check_seconds < 5
