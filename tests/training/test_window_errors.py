"""Errors that a network raises, traced to a window or to divergence."""

from __future__ import annotations

import pytest
import torch
from helpers.faults import fit_with_warnings
from helpers.series import wave_windows
from helpers.training import tiny_network
from torch import nn

from pts_scott.engine.losses import Losses
from pts_scott.errors import DivergenceError, WindowLossError
from pts_scott.training.fault_log import FaultLog
from pts_scott.training.window_errors import named_window_errors


class BoundedNetwork(nn.Module):
    """A network that raises beyond a bound, as torch's distributions do."""

    def __init__(self, bound: float = 1e6) -> None:
        super().__init__()
        self.network, self.bound = tiny_network(), bound

    def loss(self, past_target, future_target):
        losses = self.network.loss(past_target, future_target)
        if not bool((losses < self.bound).all()):
            raise ValueError("expected parameter loc to be within bounds")
        return losses


def test_error_caused_by_divergence_does_not_blame_the_data():
    with pytest.raises(DivergenceError, match="Lower learning_rate") as caught:
        fit_with_warnings(BoundedNetwork(), learning_rate=1000.0)
    assert "category" not in str(caught.value)
    assert "within bounds" in str(caught.value)


def test_error_on_one_window_names_that_window():
    windows = wave_windows()
    losses = Losses(BoundedNetwork(), windows.fields)
    numbers = torch.arange(len(windows))
    batch = windows.gather(numbers, losses.fields)
    with torch.no_grad():
        values = losses.network.network.loss(**batch)
    worst = int(values.argmax())
    losses.network.bound = float(values.max())  # only the worst window is not below it
    faults = FaultLog(losses, windows, 10, lambda: False)
    faults.begin(numbers[numbers != worst][:4])
    with (
        pytest.raises(WindowLossError, match="within bounds") as caught,
        named_window_errors(losses, windows, lambda: numbers, faults, 3),
    ):
        losses.network.loss(**batch)
    series, _ = windows.rows(numbers[worst : worst + 1].numpy())
    assert f"{windows.series.item_ids[int(series[0])]} from 2021-03-0" in str(
        caught.value
    )


def test_error_that_no_window_causes_is_raised_unchanged():
    windows, losses = wave_windows(), Losses(tiny_network())
    faults = FaultLog(losses, windows, 10, lambda: False)
    faults.begin(torch.arange(4))
    for current in (lambda: None, lambda: torch.arange(4)):
        with (
            pytest.raises(ZeroDivisionError),
            named_window_errors(losses, windows, current, faults, 3),
        ):
            raise ZeroDivisionError
