"""An outer loop taken back: nothing of it is left."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from pts_scott.engine.rollback import Rollback

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9),
}


def steps(optimizer, parameters, seed, number=3):
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
def test_steps_after_it_are_those_that_would_have_been_made(name, before):
    found = []
    for faulty in (False, True):
        parameters = tuple(nn.Linear(3, 2).parameters())
        for parameter in parameters:
            nn.init.ones_(parameter)
        optimizer = OPTIMIZERS[name](parameters)
        undo = Rollback(optimizer, parameters)
        undo.keep()
        steps(optimizer, parameters, 0, before)
        undo.keep()
        if faulty:
            steps(optimizer, parameters, 1)
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, torch.nan)
            optimizer.step()
            assert undo.is_due()
            undo.take_back()
        assert not undo.is_due()
        steps(optimizer, parameters, 2)
        found.append(parameters)
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_a_state_that_is_read_from_a_file_is_kept():
    parameters = tuple(nn.Linear(3, 2).parameters())
    optimizer = OPTIMIZERS["adam"](parameters)
    undo = Rollback(optimizer, parameters)
    steps(optimizer, parameters, 0)
    undo.keep()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    undo.keep()
    expected = copy.deepcopy(optimizer.state_dict()["state"])
    steps(optimizer, parameters, 1)
    undo.take_back()
    assert_same_state(optimizer, expected)


def test_of_large_networks_the_optimizer_begins_anew(monkeypatch):
    monkeypatch.setattr("pts_scott.engine.rollback.SMALL", 0)
    parameters = tuple(nn.Linear(3, 2).parameters())
    optimizer = OPTIMIZERS["adam"](parameters)
    undo = Rollback(optimizer, parameters)
    steps(optimizer, parameters, 0)
    undo.keep()
    expected = [p.detach().clone() for p in parameters]
    steps(optimizer, parameters, 1)
    undo.take_back()
    for x, y in zip(parameters, expected, strict=True):
        torch.testing.assert_close(x.detach(), y, rtol=0, atol=0)
    assert not optimizer.state
    steps(optimizer, parameters, 2)
    assert not undo.is_due()


def test_a_state_that_the_constructor_makes_is_kept_however_large(monkeypatch):
    """Adagrad cannot make it anew."""
    monkeypatch.setattr("pts_scott.engine.rollback.SMALL", 0)
    parameters = tuple(nn.Linear(3, 2).parameters())
    optimizer = OPTIMIZERS["adagrad"](parameters)
    undo = Rollback(optimizer, parameters, initialised=bool(optimizer.state))
    steps(optimizer, parameters, 0)
    undo.keep()
    expected = copy.deepcopy(optimizer.state_dict()["state"])
    steps(optimizer, parameters, 1)
    undo.take_back()
    assert_same_state(optimizer, expected)
    steps(optimizer, parameters, 2)
