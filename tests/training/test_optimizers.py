"""Optimizers by name, class or factory: no option is ignored silently."""

from __future__ import annotations

import pytest
import schedulefree
import torch
from gluonts.core import serde
from helpers.series import wave_windows
from helpers.training import quiet_trainer, tiny_network

from pts_scott import ScottTrainer
from pts_scott.errors import ArgumentError
from pts_scott.training.optimizers import (
    OPTIMIZERS,
    make_optimizer,
    use_own_kernels,
)


def made_optimizer(**settings):
    """Return the class and the options of the optimizer that a trainer makes."""
    trainer = quiet_trainer(method="plain", **settings)
    trainer.fit(tiny_network(), wave_windows())
    (made,) = trainer.lightning.optimizers
    return type(made), made.param_groups[0]


@pytest.mark.parametrize("given", [torch.optim.AdamW, "adamw"])
def test_optimizer_gets_the_learning_rate_and_weight_decay_of_the_trainer(given):
    kind, group = made_optimizer(optimizer=given, learning_rate=0.05, weight_decay=0.3)
    assert kind is torch.optim.AdamW
    assert (group["lr"], group["weight_decay"]) == (0.05, 0.3)
    assert group["fused"] is True


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n != "muon"])
def test_every_optimizer_of_torch_can_be_given_by_name(name):
    kind, group = made_optimizer(optimizer=name, learning_rate=0.01)
    assert kind is OPTIMIZERS[name]
    assert group["lr"] == 0.01


@pytest.mark.parametrize(
    "numbers", [{"learning_rate": 1e-3}, {"weight_decay": 1e-5}, {"learning_rate": 0.5}]
)
def test_options_that_a_factory_would_ignore_are_refused(numbers):
    (name,) = numbers
    with pytest.raises(ArgumentError, match=f"{name}=.* would be ignored"):
        ScottTrainer(optimizer=lambda p: torch.optim.Adam(p), **numbers)
    ScottTrainer(optimizer=lambda p: torch.optim.Adam(p))


@pytest.mark.parametrize(
    "given",
    [
        torch.optim.LBFGS,
        torch.optim.SparseAdam,
        schedulefree.AdamWScheduleFreeClosure,
    ],
)
def test_optimizers_with_closures_or_sparse_gradients_are_refused(given):
    with pytest.raises(ArgumentError, match="closure, or sparse"):
        ScottTrainer(optimizer=given)
    trainer = quiet_trainer(optimizer=lambda parameters: given(parameters))
    with pytest.raises(ArgumentError, match="closure, or sparse"):
        trainer.fit(tiny_network(), wave_windows())


def test_weight_decay_is_refused_for_optimizers_without_it():
    with pytest.raises(ArgumentError, match="takes no weight_decay"):
        ScottTrainer(optimizer=torch.optim.Rprop, weight_decay=0.1)
    _, group = made_optimizer(optimizer=torch.optim.Rprop)
    assert "weight_decay" not in group


def test_optimizer_instance_is_refused_with_the_remedy():
    made = torch.optim.SGD(tiny_network().parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match=r"optimizer=torch\.optim\.AdamW"):
        ScottTrainer(optimizer=made)


def test_trainer_with_an_optimizer_class_survives_json():
    trainer = ScottTrainer(optimizer=torch.optim.RMSprop, learning_rate=0.2)
    again = serde.load_json(serde.dump_json(trainer))
    parameter = torch.nn.Parameter(torch.zeros(2))
    options = {"learning_rate": 0.2, "weight_decay": 0.0, "fusable": True}
    assert isinstance(
        make_optimizer(again.optimizer, [parameter], **options), torch.optim.RMSprop
    )
    assert again.learning_rate == 0.2


def test_fused_kernels_need_dense_parameters():
    options = {"learning_rate": 0.1, "weight_decay": 0.0, "fusable": True}
    dense = torch.nn.Parameter(torch.zeros(3, 4).T)
    gaps = torch.nn.Parameter(torch.zeros(3, 4)[:, :2])
    for parameters, fused in (([dense], True), ([dense, gaps], None)):
        group = make_optimizer("adam", parameters, **options).param_groups[0]
        assert group["fused"] is fused


@pytest.mark.parametrize("fused", [True, None])
def test_saved_optimizer_gets_the_kernels_of_the_device(fused):
    """Adagrad has a fused kernel on the CPU, and none on some accelerators."""

    def stepped(kind: bool | None, saved=None):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.Adagrad([parameter], lr=0.1, fused=kind)
        if saved is not None:
            use_own_kernels(saved, optimizer)
            optimizer.load_state_dict(saved)
            assert optimizer.param_groups[0]["fused"] is kind
        for _ in range(2):
            parameter.grad = torch.arange(3.0)
            optimizer.step()
        return parameter.detach(), optimizer.state_dict()

    other = None if fused else True
    found, _ = stepped(fused, stepped(other)[1])
    expected, _ = stepped(fused, stepped(fused)[1])
    torch.testing.assert_close(found, expected)
