"""Rollback restores the parameters and the optimizer state of any optimizer."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.odd_networks import BadForSome
from helpers.training import fit_waves
from torch import nn

from pts_scott.engine.rollback import Rollback, affords_state

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9),
}


def steps(optimizer, parameters, seed, number=3):
    """Make some steps along random gradients."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(number):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def assert_same_state(optimizer, expected):
    for number, own in optimizer.state_dict()["state"].items():
        for name, value in own.items():
            torch.testing.assert_close(value, expected[number][name], rtol=0, atol=0)


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_after_a_rollback_equal_steps_without_the_loop(name, before):
    found = []
    for faulty in (False, True):
        parameters = tuple(nn.Linear(3, 2).parameters())
        for parameter in parameters:
            nn.init.ones_(parameter)
        optimizer = OPTIMIZERS[name](parameters)
        rollback = Rollback(optimizer, parameters)
        rollback.save()
        steps(optimizer, parameters, 0, before)
        rollback.save()
        if faulty:
            steps(optimizer, parameters, 1)
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, torch.nan)
            optimizer.step()
            assert rollback.is_needed()
            rollback.restore()
        assert not rollback.is_needed()
        steps(optimizer, parameters, 2)
        found.append(parameters)
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_state_loaded_from_a_checkpoint_is_restored():
    parameters = tuple(nn.Linear(3, 2).parameters())
    optimizer = OPTIMIZERS["adam"](parameters)
    rollback = Rollback(optimizer, parameters)
    steps(optimizer, parameters, 0)
    rollback.save()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    rollback.save()
    expected = copy.deepcopy(optimizer.state_dict()["state"])
    steps(optimizer, parameters, 1)
    rollback.restore()
    assert_same_state(optimizer, expected)


def test_optimizer_state_of_large_networks_is_reset(monkeypatch):
    monkeypatch.setattr("pts_scott.engine.rollback.SMALL", 0)
    parameters = tuple(nn.Linear(3, 2).parameters())
    optimizer = OPTIMIZERS["adam"](parameters)
    with_state = affords_state(parameters)
    assert not with_state
    rollback = Rollback(optimizer, parameters, with_state=with_state)
    steps(optimizer, parameters, 0)
    rollback.save()
    expected = [p.detach().clone() for p in parameters]
    steps(optimizer, parameters, 1)
    rollback.restore()
    for x, y in zip(parameters, expected, strict=True):
        torch.testing.assert_close(x.detach(), y, rtol=0, atol=0)
    assert not optimizer.state
    steps(optimizer, parameters, 2)
    assert not rollback.is_needed()


def test_state_made_by_the_constructor_is_restored_at_any_size(monkeypatch):
    """Adagrad makes its state in the constructor and cannot make it again."""
    monkeypatch.setattr("pts_scott.engine.rollback.SMALL", 0)
    parameters = tuple(nn.Linear(3, 2).parameters())
    optimizer = OPTIMIZERS["adagrad"](parameters)
    rollback = Rollback(optimizer, parameters, with_state=True)
    steps(optimizer, parameters, 0)
    rollback.save()
    expected = copy.deepcopy(optimizer.state_dict()["state"])
    steps(optimizer, parameters, 1)
    rollback.restore()
    assert_same_state(optimizer, expected)
    steps(optimizer, parameters, 2)


class ReplacesState(torch.optim.Optimizer):
    """Keeps its state in new tensors and in lists, as torch's optimizers do not."""

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


@pytest.mark.filterwarnings("ignore::pts_scott.errors.FaultWarning")
def test_rollback_restores_the_state_of_custom_optimizers():
    network = fit_waves(BadForSome(), optimizer=lambda p: ReplacesState(p), epochs=8)
    assert bool(network.weight.isfinite().all())


def test_replaced_state_and_options_are_restored():
    parameters = tuple(nn.Linear(3, 2).parameters())
    optimizer = ReplacesState(parameters)
    rollback = Rollback(optimizer, parameters)
    steps(optimizer, parameters, 0)
    before = [p.detach().clone() for p in parameters]
    momentum = [optimizer.state[p]["momentum"].clone() for p in parameters]
    with rollback.rolled_back():
        steps(optimizer, parameters, 1)
        assert optimizer.param_groups[0]["steps"] == 6
    assert optimizer.param_groups[0]["steps"] == 3
    for p, value, state in zip(parameters, before, momentum, strict=True):
        assert torch.equal(p.detach(), value)
        assert torch.equal(optimizer.state[p]["momentum"], state)
