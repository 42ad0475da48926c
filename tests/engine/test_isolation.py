"""Passes that must repeat, or are in evaluation mode, do not use cuDNN."""

from __future__ import annotations

import pytest
import torch
from helpers.odd_networks import Linear
from helpers.series import wave_windows

from pts_scott.engine.gradients import Gradients
from pts_scott.engine.isolation import evaluation_passes, without_cudnn
from pts_scott.engine.losses import Losses
from pts_scott.engine.plain_passes import PlainPasses
from pts_scott.engine.training_effects import training_effects

CPU = torch.device("cpu")


def test_cudnn_is_switched_off_on_cuda_and_restored():
    before = torch.backends.cudnn.enabled
    with without_cudnn(torch.device("cuda")):
        assert not torch.backends.cudnn.enabled
    assert torch.backends.cudnn.enabled is before
    with without_cudnn(CPU):
        assert torch.backends.cudnn.enabled is before


class Watched(Linear):
    """Records whether cuDNN may be used in its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[bool] = set()

    def loss(self, past_target, future_target):
        self.seen.add(torch.backends.cudnn.enabled)
        return super().loss(past_target, future_target)


@pytest.fixture
def as_on_cuda(monkeypatch):
    """Switch cuDNN off on the CPU, too."""

    def off(device):
        return torch.backends.cudnn.flags(enabled=False)

    for name in ("isolation", "training_effects", "plain_passes", "gradients"):
        monkeypatch.setattr(f"pts_scott.engine.{name}.without_cudnn", off)


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize("stochastic", [False, True])
def test_passes_that_must_repeat_do_not_use_cudnn(stochastic):
    windows = wave_windows()
    losses = Losses(Watched())
    seen, numbers = losses.network.seen, torch.arange(4)
    training_effects(losses, windows)
    with evaluation_passes(losses, CPU):
        losses(windows.gather(numbers))
    assert seen == {False}
    seen.clear()
    passes = PlainPasses(losses, windows.gather, stochastic=stochastic)
    with passes.restored():
        passes.losses(numbers)
    random = frozenset({"torch"}) if stochastic else frozenset()
    Gradients(losses, stochastic=random).uniform(windows.gather(numbers))
    assert seen == {not stochastic and torch.backends.cudnn.enabled}
