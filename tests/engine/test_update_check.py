"""The update check compares updates with those of the same optimizer without fusion."""

from __future__ import annotations

import pytest
import torch
from helpers.odd_networks import (
    ExpandedGradient,
    Linear,
    SlicedParameter,
    TransposedGradient,
)
from helpers.series import wave_windows
from helpers.training import RATE, fit_waves, tiny_network
from torch import nn

from pts_scott.engine.losses import Losses
from pts_scott.engine.plain_passes import PlainPasses
from pts_scott.engine.update_check import differing_updates
from pts_scott.errors import SelfCheckError


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adagrad"])
@pytest.mark.parametrize("network", [TransposedGradient, ExpandedGradient])
def test_gradients_in_another_memory_layout_would_be_found(
    monkeypatch, network, optimizer
):
    monkeypatch.setattr(
        "pts_scott.engine.update_check.in_layout_of", lambda _, values: values
    )
    with pytest.raises(SelfCheckError, match="without fused kernels"):
        fit_waves(network(), optimizer=optimizer)


def test_fused_optimizer_is_refused_where_torch_updates_wrongly():
    def adam(fused: bool | None):
        return lambda p: torch.optim.Adam(p, lr=RATE, fused=fused)

    with pytest.raises(SelfCheckError, match=r"fused=False, or make .* contiguous"):
        fit_waves(SlicedParameter(), optimizer=adam(fused=True))
    fit_waves(SlicedParameter(), optimizer=adam(fused=None))


class KeyBias(Linear):
    """A bias of attention keys, whose gradient is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forecast(self, past):
        scores = (past[:, :3] + self.key).softmax(1)
        return super().forecast(past) + (scores * past[:, 3:]).sum(1, keepdim=True)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_gradient_of_rounding_errors_alone_is_not_refused(optimizer):
    fit_waves(KeyBias(), optimizer=optimizer, compile=True)


def test_wrongly_moved_parameters_are_named():
    windows, losses = wave_windows(), Losses(tiny_network())
    passes = PlainPasses(losses, lambda numbers: windows.gather(numbers, losses.fields))
    optimizer = torch.optim.SGD(passes.parameters, lr=0.1)
    v = tuple(torch.ones_like(p) for p in passes.parameters)
    before = [p.detach().clone() for p in passes.parameters]
    after = [p - 0.1 for p in before]
    assert differing_updates(passes, optimizer, v) == []
    assert differing_updates(passes, optimizer, v, before, after) == []
    after[1] = before[1] - 0.11
    wrong = differing_updates(passes, optimizer, v, before, after)
    assert wrong == [passes.names[1]]
