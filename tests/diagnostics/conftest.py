"""Fixtures: a small network, and the gradients of all windows."""

from __future__ import annotations

import pytest
import torch
from helpers.training import tiny_network
from helpers.variance import gradient_table, moved, point

from pts_scott.engine.losses import Losses


@pytest.fixture
def losses() -> Losses:
    return Losses(tiny_network())


@pytest.fixture
def tables(losses, windows) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of all windows at the parameters and at the snapshot."""
    return (
        gradient_table(losses, windows, point(losses)),
        gradient_table(losses, windows, moved(losses)),
    )
