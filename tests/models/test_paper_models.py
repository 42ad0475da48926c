"""The paper's models: training, backtests with GluonTS' tools, files and arguments."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from gluonts.dataset.common import ListDataset
from gluonts.evaluation import (
    Evaluator,
    MultivariateEvaluator,
    make_evaluation_predictions,
)
from gluonts.evaluation.backtest import backtest_metrics
from helpers.paper_models import ESTIMATORS, make, seasonal
from helpers.series import dataset
from helpers.training import quiet_trainer

from pts_scott import (
    LSTMEstimator,
    NBEATSEstimator,
    SimpleFeedForwardEstimator,
    Stratifier,
    VAREstimator,
)
from pts_scott.datasets.synthetic import synthetic_dataset
from pts_scott.engine.losses import Losses, evaluate
from pts_scott.errors import ArgumentError
from pts_scott.strata.synthetic import synthetic_stratifier


def naive_error(rows: np.ndarray, length: int) -> float:
    """Return the mean absolute error of repeating the last value before the forecast."""
    return float(np.abs(rows[:, -length:] - rows[:, -length - 1, None]).mean())


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_training_lowers_the_loss_and_beats_the_naive_forecast(cls):
    rows = seasonal()
    estimator = make(cls)
    predictor = estimator.train(
        dataset(rows[:, :-4], "h"), validation_data=dataset(rows, "h")
    )
    history = estimator.trainer.history
    assert history["train_loss"].tail(5).mean() < history["train_loss"].head(5).mean()
    assert history["val_loss"].notna().sum() == 4

    forecasts, series = make_evaluation_predictions(
        dataset(rows, "h"), predictor=predictor, num_samples=100
    )
    forecasts, series = list(forecasts), list(series)
    assert len(forecasts) == 3
    assert forecasts[0].mean.shape == (4,)
    metrics, _ = Evaluator(num_workers=0)(iter(series), iter(forecasts))
    error = np.mean(
        [np.abs(f.quantile(0.5) - row[-4:]).mean() for f, row in zip(forecasts, rows)]
    )
    assert error < 0.7 * naive_error(rows, 4)
    assert np.isfinite(metrics["MASE"])

    metrics, per_series = backtest_metrics(
        dataset(rows, "h"), predictor, evaluator=Evaluator(num_workers=0), num_samples=100
    )
    assert np.isfinite(metrics["mean_wQuantileLoss"])
    assert len(per_series) == 3


def test_predictors_forecast_the_same_in_a_fresh_process(tmp_path):
    rows, predictors = seasonal(), {}
    for cls in ESTIMATORS:
        predictor = make(cls, trainer=quiet_trainer()).train(dataset(rows, "h"))
        (tmp_path / cls.__name__).mkdir()
        predictor.serialize(tmp_path / cls.__name__)
        predictors[cls.__name__] = predictor
    np.save(tmp_path / "rows.npy", rows)
    code = """
        import sys, warnings
        warnings.simplefilter("ignore")
        from pathlib import Path
        import numpy as np, torch
        from gluonts.dataset.common import ListDataset
        from gluonts.model.predictor import Predictor
        folder = Path(sys.argv[1])
        rows = np.load(folder / "rows.npy")
        data = ListDataset(
            [{"item_id": str(i), "start": "1990-01-01", "target": r}
             for i, r in enumerate(rows)], freq="h")
        for name in sys.argv[2:]:
            predictor = Predictor.deserialize(folder / name)
            torch.manual_seed(0)
            out = np.stack([f.mean for f in predictor.predict(data, num_samples=20)])
            np.save(folder / f"{name}.npy", out)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path), *predictors]
    subprocess.run(command, check=True)
    for name, predictor in predictors.items():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            forecasts = predictor.predict(dataset(rows, "h"), num_samples=20)
            expected = np.stack([forecast.mean for forecast in forecasts])
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), expected, rtol=1e-5)


@pytest.mark.parametrize("cls", [VAREstimator, LSTMEstimator])
def test_multivariate_targets_are_forecast_together(cls):
    rows = seasonal(series=2)
    data = ListDataset(
        [{"item_id": "both", "start": "2020-01-01", "target": rows}],
        freq="h",
        one_dim_target=False,
    )
    predictor = make(cls).train(data)
    forecasts, series = make_evaluation_predictions(
        data, predictor=predictor, num_samples=1
    )
    forecasts, series = list(forecasts), list(series)
    assert forecasts[0].samples.shape == (1, 4, 2)
    error = np.abs(forecasts[0].samples[0].T - rows[:, -4:]).mean()
    assert error < 0.7 * naive_error(rows, 4)
    metrics, _ = MultivariateEvaluator(num_workers=0)(iter(series), iter(forecasts))
    assert np.isfinite(metrics["MASE"])


@pytest.mark.parametrize("loss_function", ["MAPE", "sMAPE", "MASE"])
def test_nbeats_trains_with_each_loss_function(loss_function):
    rows = seasonal()
    estimator = make(
        NBEATSEstimator, context_length=36, loss_function=loss_function, num_stacks=1
    )
    estimator.train(dataset(rows, "h"))
    losses = estimator.trainer.history["train_loss"]
    assert losses.tail(5).mean() < losses.head(5).mean()


# Forecasts of the linear models must reach a hundred times the scale of a context.
SYNTHETIC_RATES = {
    SimpleFeedForwardEstimator: 1e-3,
    NBEATSEstimator: 1e-3,
    LSTMEstimator: 2e-2,
    VAREstimator: 2e-2,
}


@pytest.mark.parametrize("cls", ESTIMATORS)
@pytest.mark.parametrize("method", ["scott", "stratified"])
def test_training_lowers_the_loss_on_synthetic_data(cls, method):
    trainer = quiet_trainer(
        method=method,
        optimizer="adam",
        learning_rate=SYNTHETIC_RATES[cls],
        stratifier=synthetic_stratifier(),
        anchor_batch_size=4,
        num_batches_per_epoch=150,
    )
    estimator = make(cls, 24, 72, trainer=trainer, stride=24)
    windows = estimator.create_windows(synthetic_dataset(repetitions=30))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = estimator.create_network(None)
    before = float(evaluate(Losses(network), windows))
    trainer.fit(network, windows)
    after = float(evaluate(Losses(network), windows))
    assert len(trainer.strata) == 16
    assert after < 0.97 * before


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_training_lowers_the_loss_on_real_exchange_rates(cls, exchange_rate):
    cut = int(exchange_rate.shape[1] * 0.8)
    trainer = quiet_trainer(
        optimizer="adam",
        stratifier=Stratifier.ranges(4) * Stratifier.series(),
        num_batches_per_epoch=300,
    )
    estimator = make(cls, 1, 8, freq="B", trainer=trainer)
    predictor = estimator.train(dataset(exchange_rate[:, :cut], "B"))
    losses = trainer.history["train_loss"]
    assert len(trainer.strata) == 32
    assert losses.tail(3).mean() < losses.head(3).mean()
    test = dataset(exchange_rate[:, : cut + 1], "B")
    metrics, _ = backtest_metrics(
        test, predictor, evaluator=Evaluator(num_workers=0), num_samples=50
    )
    assert np.isfinite(metrics["ND"])


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_default_sizes_are_those_of_the_paper(cls):
    network = cls(freq="h", prediction_length=24, context_length=72).create_network(None)
    size = sum(p.numel() for p in network.parameters())
    layers = [(72, 80), (80, 80), (80, 80), (80, 80 * 24), (80, 1), (80, 1), (80, 1)]
    block = [(72, 512), (512, 512), (512, 512), (512, 512), (32, 72), (32, 24)]
    expected = {
        VAREstimator: 72 * 24 + 24,
        LSTMEstimator: 4 * (101 * 100 + 200) + 4 * (200 * 100 + 200) + 100 * 24 + 24,
        SimpleFeedForwardEstimator: sum(a * b + b for a, b in layers),
        NBEATSEstimator: 30 * (sum(a * b + b for a, b in block) + 2 * 512 * 32),
    }
    assert size == expected[cls]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"prediction_length": 0}, "prediction_length=0"),
        ({"context_length": -1}, "context_length=-1"),
        ({"trainer": "scott"}, "trainer=ScottTrainer"),
        ({"stride": 0}, "stride=0"),
        ({"scaling": "no"}, "scaling='no'"),
        ({"loss_function": "smape"}, "Did you mean 'sMAPE'"),
        ({"widths": 8.5}, "widths=8.5"),
        ({"context": "none"}, "context='none'"),
        ({"loss_function": "MAE"}, "loss_function='MAE'"),
        ({"stack_types": "X"}, "stack_types='X'"),
        ({"widths": [8, 8, 8]}, "widths has 3 values for 2 stacks"),
        ({"loss_function": "MASE", "context_length": 5}, "make it longer"),
    ],
)
def test_nbeats_value_out_of_range_raises(kwargs, message):
    with pytest.raises(ArgumentError, match=message):
        NBEATSEstimator(
            **{"freq": "h", "prediction_length": 2, "num_stacks": 2, **kwargs}
        )


@pytest.mark.parametrize("given", [[], 40, "40", [0], [1.5]])
def test_invalid_hidden_dimensions_raise(given):
    with pytest.raises(ArgumentError, match="hidden_dimensions"):
        SimpleFeedForwardEstimator(freq="h", prediction_length=2, hidden_dimensions=given)
