"""Operations on directions: norms without overflow, memory layouts, precisions."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.series import wave_windows
from helpers.training import quiet_trainer
from torch import nn

from pts_scott.engine.tensors import (
    add,
    clip_scale,
    finest_type,
    in_layout_of,
    is_dense,
    largest_square,
    own_tensors,
    squared_norm,
    zeros_like,
)


def test_gradient_of_zero_has_the_shape_of_the_parameters():
    (zero,) = zeros_like((torch.ones(3),))
    assert zero.tolist() == [0, 0, 0]


def test_squared_norm_is_over_all_tensors():
    assert float(squared_norm([torch.tensor([3.0]), torch.tensor([4.0])])) == 25.0


def test_squared_norm_does_not_overflow_in_single_precision():
    large = [torch.full((2,), 1e30)]
    assert float(squared_norm(large)) == pytest.approx(2e60, rel=1e-6)


def test_squared_norm_above_the_largest_is_infinite():
    assert float(squared_norm([torch.tensor([3.0])], largest=9.0)) == 9.0
    assert float(squared_norm([torch.tensor([3.0])], largest=8.0)) == math.inf
    assert not math.isfinite(squared_norm([torch.tensor([math.nan])], largest=8.0))


def test_largest_square_is_that_of_the_coarsest_parameter():
    single, double = torch.ones(1), torch.ones(1, dtype=torch.float64)
    assert largest_square([double]) == torch.finfo(torch.float64).max
    assert largest_square([double, single]) == torch.finfo(torch.float32).max
    # Optimizers keep the moments of half precision in single precision.
    assert largest_square([single.half()]) == torch.finfo(torch.float32).max


def test_windows_are_weighted_in_the_finest_type():
    half, double = torch.ones(1).half(), torch.ones(1).double()
    assert finest_type([half, double, half]) == torch.float64


def test_clipping_shortens_long_updates_only():
    assert float(clip_scale(torch.tensor(16.0), 1.0)) == pytest.approx(0.25, rel=1e-5)
    assert float(clip_scale(torch.tensor(0.25), 1.0)) == 1.0
    assert float(clip_scale(torch.tensor(0.0), 1.0)) == 1.0


def test_values_take_the_memory_layout_of_their_parameter():
    parameter, values = torch.zeros(2, 3), torch.arange(6.0).reshape(3, 2).T
    (found,) = in_layout_of((parameter,), (values,))
    assert found.stride() == parameter.stride()
    assert torch.equal(found, values)
    same = torch.ones(2, 3)
    assert in_layout_of((parameter,), (same,))[0] is same


def test_dense_tensors_have_neither_gaps_nor_overlaps():
    assert is_dense(torch.ones(2, 3))
    assert is_dense(torch.ones(2, 3).T)
    assert not is_dense(torch.ones(2, 9)[:, 2:8])
    assert not is_dense(torch.ones(1, 3).expand(2, 3))


def test_shared_and_expanded_tensors_are_copied_before_a_change():
    one, expanded = torch.ones(2), torch.ones(1).expand(2)
    found = own_tensors((one, one, expanded))
    assert found[0] is one
    assert found[1] is not one
    assert found[2] is not expanded
    total = add((one, one), (torch.ones(2), torch.full((2,), 2.0)))
    assert [t.tolist() for t in total] == [[2.0, 2.0], [3.0, 3.0]]


class MixedPrecision(nn.Module):
    """A layer in double precision between layers in single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.fine = nn.Linear(4, 4, dtype=torch.float64)
        self.last = nn.Linear(4, 2)

    def loss(self, past_target, future_target):
        middle = self.fine(self.first(past_target).double())
        return (self.last(middle.float()) - future_target).square().mean(dim=1)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_parameters_of_several_types_are_trained(optimizer):
    network = MixedPrecision()
    types = [p.dtype for p in network.parameters()]
    before = [p.detach().clone() for p in network.parameters()]
    quiet_trainer(
        learning_rate=0.02, batch_size=4, optimizer=optimizer, clip_gradient=1.0
    ).fit(network, wave_windows(torch.float32))
    assert [p.dtype for p in network.parameters()] == types
    assert not any(torch.equal(p, b) for p, b in zip(network.parameters(), before))
