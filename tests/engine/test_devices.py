"""All tensors of a step are on the training device, as torch's meta device shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.engine import assemble
from helpers.series import wave_entries, wave_windows
from helpers.training import tiny_network
from torch.distributions import Distribution

from pts_scott import WindowIndex
from pts_scott.backends import backend
from pts_scott.method.methods import METHODS
from pts_scott.models.networks import (
    LSTMNetwork,
    NBEATSNetwork,
    VARNetwork,
    nbeats_network,
)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("method", METHODS)
def test_outer_loop_creates_no_tensor_on_another_device(method, optimizer):
    network, windows = tiny_network(torch.float32), wave_windows(torch.float32)
    run = assemble(network, windows, method, optimizer, device="meta")
    assert len(run.outer_loop(3).steps) == 3


NBEATS = {
    "context_length": 6,
    "prediction_length": 2,
    "periodicity": 1,
    "num_stacks": 3,
    "widths": [4] * 3,
    "num_blocks": [1] * 3,
    "num_block_layers": [2] * 3,
    "expansion_coefficient_lengths": [2] * 3,
    "stack_types": ["G", "T", "S"],
}


@pytest.fixture
def unvalidated_distributions():
    """Switch off the validation of distributions: meta tensors have no values."""
    Distribution.set_default_validate_args(False)
    yield
    Distribution.set_default_validate_args(__debug__)


@pytest.mark.usefixtures("unvalidated_distributions")
@pytest.mark.parametrize(
    "make",
    [
        lambda: VARNetwork(context_length=6, prediction_length=2),
        lambda: LSTMNetwork(prediction_length=2, hidden_size=4),
        lambda: NBEATSNetwork(**NBEATS),
        lambda: nbeats_network(**NBEATS),
        lambda: backend.simple_feedforward(6, 2, [4, 4], None, False),
    ],
    ids=["var", "lstm", "nbeats", "backend nbeats", "feedforward"],
)
@pytest.mark.parametrize("context", ["full", "padded"])
@pytest.mark.parametrize("missing", [False, True])
def test_models_create_no_tensor_on_another_device(make, context, missing):
    entries = wave_entries()
    if missing:
        entries[0]["target"][8] = np.nan
    windows = WindowIndex.from_dataset(entries, "h", 6, 2, context=context)
    run = assemble(make(), windows, device="meta", clip_gradient=1.0)
    assert len(run.outer_loop(2).steps) == 2


def test_tensor_on_another_device_is_noticed():
    network, windows = tiny_network(torch.float32), wave_windows(torch.float32)
    with pytest.raises(RuntimeError, match="device|meta"):
        assemble(network, windows, device="meta", strata_device="cpu").outer_loop(1)
