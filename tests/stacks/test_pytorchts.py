"""PyTorchTS: ScottTrainer in place of its trainer, and its networks' losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import dataset, quiet_trainer

pts = pytest.importorskip("pts", reason="the GluonTS stack has no PyTorchTS")

from pts.model.n_beats import NBEATSEstimator  # noqa: E402
from pts.model.n_beats.n_beats_network import NBEATSTrainingNetwork  # noqa: E402
from pts.model.simple_feedforward import SimpleFeedForwardEstimator  # noqa: E402

from pts_scott.errors import MissingValuesError, WindowLossError  # noqa: E402
from pts_scott.networks import mape_loss, smape_loss  # noqa: E402
from pts_scott.stacks.pytorchts import _window_losses  # noqa: E402


def rows(length: int = 120) -> np.ndarray:
    t = np.arange(length)
    return 10 + np.stack([np.sin(t / 3), np.cos(t / 5)])


def test_it_is_a_trainer_of_pytorchts():
    assert isinstance(quiet_trainer(), pts.Trainer)


@pytest.mark.parametrize(
    ("cls", "kwargs"),
    [
        (SimpleFeedForwardEstimator, {}),
        (NBEATSEstimator, {"num_stacks": 2, "widths": [16]}),
    ],
)
def test_the_librarys_own_estimators_take_it_untouched(cls, kwargs):
    trainer = quiet_trainer(
        optimizer="adam", anchor_batch_size=16, num_batches_per_epoch=200
    )
    estimator = cls(
        freq="H", prediction_length=4, context_length=12, trainer=trainer, **kwargs
    )
    data = dataset(rows(), "H")
    predictor = estimator.train(data, validation_data=data, prefetch_factor=None)
    history = trainer.history
    assert history["train_loss"].tail(3).mean() < history["train_loss"].head(3).mean()
    assert history["val_loss"].notna().sum() == 1
    (forecast, _) = predictor.predict(data, num_samples=10)
    assert np.isfinite(forecast.mean).all()


@pytest.mark.parametrize("name", ["feedforward", "nbeats"])
def test_the_window_losses_have_the_librarys_mean(name):
    cls = SimpleFeedForwardEstimator if name == "feedforward" else NBEATSEstimator
    estimator = cls(freq="H", prediction_length=4, context_length=12)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = estimator.create_training_network(torch.device("cpu"))
        past, future = 1 + torch.rand(6, 12), 1 + torch.rand(6, 4)
    losses = _window_losses(net).loss(past, future)
    torch.testing.assert_close(losses.mean(), net(past, future), rtol=1e-5, atol=1e-6)


def test_percentage_losses_are_the_librarys_own():
    net = NBEATSTrainingNetwork(
        loss_function="MAPE",
        freq="H",
        prediction_length=4,
        context_length=12,
        num_stacks=1,
        widths=[4],
        num_blocks=[1],
        num_block_layers=[1],
        expansion_coefficient_lengths=[2],
        sharing=[False],
        stack_types=["G"],
    )
    generator = torch.Generator().manual_seed(0)
    forecast = torch.randn(6, 4, generator=generator)
    future = torch.randn(6, 4, generator=generator)
    future[0, 0] = 0.0
    ones = torch.ones_like(future)
    torch.testing.assert_close(
        mape_loss(forecast, future, ones), net.mape_loss(forecast, future)
    )
    torch.testing.assert_close(
        smape_loss(forecast, future, ones), net.smape_loss(forecast, future)
    )


def test_a_network_that_gives_only_a_mean_is_refused_with_what_to_do():
    with pytest.raises(WindowLossError, match="Use an estimator of pts_scott"):
        quiet_trainer()(net=torch.nn.Linear(1, 1), train_iter=[])


def test_missing_values_are_refused_where_the_library_has_no_mask():
    gaps = rows()
    gaps[1, 50] = np.nan
    estimator = SimpleFeedForwardEstimator(
        freq="H", prediction_length=4, context_length=12, trainer=quiet_trainer()
    )
    with pytest.raises(MissingValuesError, match="'1' has no value at 1990-01-03 02:00"):
        estimator.train(dataset(gaps, "H"), prefetch_factor=None)
