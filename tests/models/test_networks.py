"""Networks: one loss per window, independent of its batch, masked where values miss."""

from __future__ import annotations

import pytest
import torch

from pts_scott.backends import backend
from pts_scott.engine.losses import Losses
from pts_scott.models.networks import (
    LSTMNetwork,
    NBEATSNetwork,
    VARNetwork,
    nbeats_network,
)

C, P = 6, 3


def nbeats(**kwargs):
    sizes = {
        "widths": [8, 8],
        "num_blocks": [1, 1],
        "num_block_layers": [2, 2],
        "expansion_coefficient_lengths": [3, 3],
        "stack_types": ["G", "G"],
    }
    return nbeats_network(
        context_length=C,
        prediction_length=P,
        **{"periodicity": 2, "num_stacks": 2, **sizes, **kwargs},
    )


MODELS = {
    "feedforward": lambda: backend.simple_feedforward(C, P, [8, 8], None, False),
    "nbeats-mape": nbeats,
    "nbeats-smape": lambda: nbeats(loss_function="sMAPE"),
    "nbeats-mase": lambda: nbeats(loss_function="MASE"),
    "nbeats-trend-season": lambda: nbeats(stack_types=["T", "S"]),
    "nbeats-own": lambda: NBEATSNetwork(
        context_length=C, prediction_length=P, periodicity=2, num_stacks=2, widths=[8, 8]
    ),
    "lstm": lambda: LSTMNetwork(prediction_length=P, hidden_size=5),
    "lstm-multivariate": lambda: LSTMNetwork(
        prediction_length=P, dimensions=2, hidden_size=5
    ),
    "var": lambda: VARNetwork(context_length=C, prediction_length=P),
    "var-multivariate": lambda: VARNetwork(
        context_length=C, prediction_length=P, dimensions=2
    ),
}


def random_batch(dimensions: int | None, size: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = () if dimensions is None else (dimensions,)
    past = 3 + torch.rand((size, C, *shape), generator=generator, dtype=torch.float64)
    future = 3 + torch.rand((size, P, *shape), generator=generator, dtype=torch.float64)
    past[1] = 0.0  # mean scalers often give a context of zeros the scale of the batch
    past[2] *= 1000
    return {
        "past_target": past,
        "future_target": future,
        "past_observed_values": torch.ones_like(past),
        "future_observed_values": torch.ones_like(future),
        "past_is_pad": torch.zeros(size, C, dtype=torch.float64),
    }


@pytest.mark.parametrize("name", MODELS)
def test_loss_of_a_window_does_not_depend_on_its_batch(name):
    losses = Losses(MODELS[name]().double())
    batch = random_batch(2 if "multivariate" in name else None)
    together = losses(batch)
    assert together.shape == (5,)
    for window in range(5):
        alone = losses({key: value[window : window + 1] for key, value in batch.items()})
        torch.testing.assert_close(together[window], alone[0], rtol=1e-9, atol=1e-12)
    order = torch.tensor([3, 1, 4, 0, 2])
    moved = losses({key: value[order] for key, value in batch.items()})
    torch.testing.assert_close(moved, together[order], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_missing_future_value_does_not_change_the_loss(name):
    losses = Losses(MODELS[name]().double())
    batch = random_batch(2 if "multivariate" in name else None)
    batch["future_observed_values"][0, 1] = 0.0
    before = losses(batch)
    batch["future_target"][0, 1] = 12345.0
    torch.testing.assert_close(losses(batch), before)
    if name != "nbeats-smape":  # at its maximum already where signs differ
        batch["future_target"][0, 0] = 12345.0
        assert not torch.isclose(losses(batch)[0], before[0])


@pytest.mark.parametrize("name", [n for n in MODELS if n != "feedforward"])
def test_point_networks_forecast_in_the_units_of_the_data(name):
    network = MODELS[name]().double()
    batch = random_batch(2 if "multivariate" in name else None)
    names = ("past_target", "past_observed_values")
    forecast = network(*(batch[n] for n in names))
    assert forecast.shape == (5, 1, *batch["future_target"].shape[1:])
    batch["past_target"] = 10 * batch["past_target"]
    scaled = network(*(batch[n] for n in names))
    nonzero = [0, 2, 3, 4]  # a context of zeros always has scale 1
    torch.testing.assert_close(scaled[nonzero], 10 * forecast[nonzero])


def test_lstm_reads_the_steps_of_a_window_in_order():
    network = LSTMNetwork(prediction_length=P, hidden_size=5).double()
    context = random_batch(None)["past_target"]
    states, _ = network.lstm(context[:1].reshape(1, C, 1))
    expected = network.output(states[:, -1])
    torch.testing.assert_close(network.predict(context)[:1], expected)


def test_multivariate_var_has_the_full_matrix():
    network = VARNetwork(context_length=C, prediction_length=P, dimensions=2)
    assert network.linear.weight.shape == (P * 2, C * 2)
    context = torch.rand(1, C, 2)
    expected = network.linear(context.reshape(1, -1)).reshape(1, P, 2)
    torch.testing.assert_close(network.predict(context), expected)
