"""The update rules of compiled steps equal those of ``torch.optim``."""

from __future__ import annotations

import pytest
import schedulefree
import torch

from pts_scott.engine.update_rules import RULES, can_fuse

OPTIONS = {
    torch.optim.SGD: {"lr": 0.1, "weight_decay": 0.1},
    torch.optim.Adam: {"lr": 0.1, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-3},
    torch.optim.AdamW: {"lr": 0.1, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-3},
    torch.optim.Adagrad: {"lr": 0.1, "weight_decay": 0.1, "lr_decay": 0.1, "eps": 1e-3},
}


@pytest.mark.parametrize("kind", RULES)
def test_rule_equals_the_optimizer_of_torch(kind):
    generator = torch.Generator().manual_seed(0)
    theta = torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
    optimizer = kind([theta], foreach=False, **OPTIONS[kind])
    found, rule = theta.detach().clone(), RULES[kind]
    state = tuple(torch.zeros_like(found) for _ in rule.state)
    group = optimizer.param_groups[0]
    for step in range(1, 5):
        v = torch.randn(5, generator=generator, dtype=torch.float64)
        numbers = tuple(map(theta.new_tensor, rule.numbers(step, group)))
        rule.update(found, v, state, numbers, group)
        theta.grad = v.clone()
        optimizer.step()
        torch.testing.assert_close(found, theta.detach(), rtol=1e-12, atol=1e-14)
    for name, value in zip(rule.state, state, strict=True):
        expected = optimizer.state[theta][name]
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)


def test_only_plain_optimizers_are_fused():
    parameters = tuple(torch.nn.Parameter(torch.ones(n)) for n in (1, 2))

    def fuses(optimizer):
        return can_fuse(optimizer, parameters)

    assert fuses(torch.optim.Adam(parameters, fused=True))
    assert fuses(torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1))
    assert fuses(torch.optim.Adagrad(parameters, lr_decay=0.1))
    assert not fuses(torch.optim.Adam(parameters, amsgrad=True))
    decoupled = torch.optim.Adam(parameters)
    decoupled.param_groups[0]["decoupled_weight_decay"] = True  # an argument from 2.7 on
    assert not fuses(decoupled)
    assert fuses(torch.optim.AdamW(parameters))
    assert not fuses(torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    assert not fuses(torch.optim.SGD(parameters, lr=0.1, maximize=True))
    assert not fuses(torch.optim.SGD(parameters[:1], lr=0.1))
    assert not fuses(torch.optim.SGD([{"params": [p]} for p in parameters], lr=0.1))
    assert not fuses(schedulefree.AdamWScheduleFree(parameters))
    assert not fuses(schedulefree.SGDScheduleFree(parameters))
    watched = torch.optim.SGD(parameters, lr=0.1)
    watched.register_step_post_hook(lambda *_: None)
    assert not fuses(watched)
    uneven = torch.optim.Adagrad(parameters)
    uneven.state[parameters[0]]["step"] += 1
    assert not fuses(uneven)
