"""AutoGluon with our models: fitted, combined, saved, and loaded in a new process."""

from __future__ import annotations

import subprocess
import sys
from typing import ClassVar

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest

pytest.importorskip("autogluon.timeseries", reason="AutoGluon is not installed")

from autogluon.common import space
from autogluon.timeseries import TimeSeriesDataFrame, TimeSeriesPredictor
from autogluon.timeseries.models.registry import ModelRegistry

from pts_scott import ScottTrainer, Stratifier
from pts_scott.errors import ArgumentError, UnknownArgumentError
from pts_scott.integrations import autogluon as integration

pytestmark = pytest.mark.filterwarnings("ignore")  # AutoGluon's own, of many libraries

SMALL = {"max_epochs": 2, "num_batches_per_epoch": 5, "batch_size": 8}
NAMES = [name.removesuffix("Model") for name in integration.__all__]
LENGTH, HORIZON = 120, 4


def frame(freq: str = "h", covariates: bool = True) -> TimeSeriesDataFrame:
    """Return four series with a known price, past visitors, and a kind."""
    rng = np.random.default_rng(0)
    parts = []
    for number in range(4):
        times = pd.date_range("2024-01-01", periods=LENGTH, freq=freq)
        wave = 10 + number + 3 * np.sin(np.arange(LENGTH) * 2 * np.pi / 24)
        part = pd.DataFrame({"item_id": f"s{number}", "timestamp": times})
        part["target"] = wave + rng.normal(size=LENGTH)
        if covariates:
            part["price"] = rng.normal(size=LENGTH)
            part["promotion"] = np.where(part["price"] > 0, "yes", "no")
            part["visitors"] = rng.normal(size=LENGTH)
        parts.append(part)
    static = pd.DataFrame(
        {"item_id": [f"s{n}" for n in range(4)], "kind": list("aabb"), "size": 1.5}
    )
    return TimeSeriesDataFrame.from_data_frame(
        pd.concat(parts), static_features_df=static if covariates else None
    )


def predictor(folder, freq: str = "h", covariates: bool = True) -> TimeSeriesPredictor:
    known = ["price", "promotion"] if covariates else None
    return TimeSeriesPredictor(
        prediction_length=HORIZON,
        freq=freq,
        path=str(folder),
        known_covariates_names=known,
        verbosity=0,
    )


def model_class(name: str) -> type:
    return ModelRegistry.get_model_class(name)


def fitted(name: str, hyperparameters: dict, folder, freq: str = "h", **kwargs):
    """Fit one model without AutoGluon's trainer, which would catch its errors."""
    data = frame(freq, covariates=False)
    model = model_class(name)(
        freq=freq,
        prediction_length=HORIZON,
        path=str(folder),
        hyperparameters={**SMALL, **hyperparameters},
    )
    model.fit(train_data=data, **kwargs)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_model_is_fitted_with_covariates_and_forecasts(name, tmp_path):
    data = frame()
    found = predictor(tmp_path).fit(
        data, hyperparameters={name: SMALL}, skip_model_selection=True
    )
    assert found.model_names() == [name]
    past = data.slice_by_timestep(None, -HORIZON)
    known = data.slice_by_timestep(-HORIZON, None)[["price", "promotion"]]
    forecast = found.predict(past, known_covariates=known)
    assert len(forecast) == 4 * HORIZON
    assert np.isfinite(forecast.to_numpy()).all()


@pytest.mark.slow
def test_ensemble_with_a_model_of_autogluon_is_saved_loaded_and_scored(tmp_path):
    data = frame()
    chosen = {
        "ScottSimpleFeedForward": SMALL,
        "ScottDLinear": {**SMALL, "method": "scott", "stratifier": "calendar('hour')"},
        "SimpleFeedForward": SMALL,
    }
    found = predictor(tmp_path / "p").fit(data, hyperparameters=chosen)
    assert {*chosen, "WeightedEnsemble"} <= set(found.model_names())
    board = found.leaderboard(data).set_index("model")["score_test"]
    assert board.notna().all()
    code = (
        "from autogluon.timeseries import TimeSeriesPredictor\n"
        "import pandas as pd, sys\n"
        "p = TimeSeriesPredictor.load(sys.argv[1])\n"
        "data = pd.read_pickle(sys.argv[2])\n"
        "scores = p.leaderboard(data).set_index('model')['score_test']\n"
        "scores.to_pickle(sys.argv[3])\n"
    )
    places = [tmp_path / "p", tmp_path / "data.pkl", tmp_path / "scores.pkl"]
    pd.to_pickle(data, places[1])
    subprocess.run([sys.executable, "-c", code, *map(str, places)], check=True)
    again = pd.read_pickle(places[2])
    pd.testing.assert_series_equal(again.sort_index(), board.sort_index(), rtol=1e-6)


@pytest.mark.slow
def test_search_spaces_and_refitting_work_as_for_models_of_autogluon(tmp_path):
    spaces = {**SMALL, "batch_size": space.Categorical(4, 8)}
    found = predictor(tmp_path, covariates=False).fit(
        frame(covariates=False),
        hyperparameters={"ScottDLinear": spaces},
        hyperparameter_tune_kwargs={
            "num_trials": 2,
            "scheduler": "local",
            "searcher": "random",
        },
        refit_full=True,
        enable_ensemble=False,
    )
    assert any("FULL" in name for name in found.model_names())
    assert len(found.model_names()) >= 3


@pytest.mark.parametrize("freq", ["D", "h", "15min", "W-MON", "MS", "B"])
def test_windows_have_the_frequency_of_the_data(freq, tmp_path):
    settings = {"stratifier": Stratifier.series()}
    model = fitted("ScottDLinear", settings, tmp_path, freq)
    assert model.gts_predictor is not None


def test_hyperparameters_of_autogluon_reach_the_trainer(tmp_path):
    settings = {"lr": 0.02, "method": "plain", "weight_decay": 0.0, "hidden_size": 3}
    model = model_class("ScottDeepAR")(
        freq="h",
        prediction_length=HORIZON,
        path=str(tmp_path),
        hyperparameters={**SMALL, **settings, "trainer_kwargs": {"max_epochs": 7}},
    )
    model.fit(train_data=frame(covariates=False), val_data=frame(covariates=False))
    estimator = model._get_estimator()
    trainer = estimator.trainer
    assert isinstance(trainer, ScottTrainer)
    assert (trainer.epochs, trainer.num_batches_per_epoch) == (7, 5)
    assert trainer.given_arguments["learning_rate"] == 0.02
    assert trainer.batch_size == 8
    assert estimator.hidden_size == 3
    assert estimator.arguments["freq"] in ("h", "1h")
    assert estimator.lags_seq  # those of hourly data, which AutoGluon sets


def test_network_is_that_of_autogluon(tmp_path):
    """AutoGluon gives estimators a daily frequency, from which TiDE has its features."""
    ours = fitted("ScottTiDE", {}, tmp_path / "ours").gts_predictor
    own = fitted("TiDE", {}, tmp_path / "own").gts_predictor
    shapes = [
        {name: tuple(p.shape) for name, p in x.prediction_net.state_dict().items()}
        for x in (ours, own)
    ]
    assert shapes[0] == shapes[1]


class Epochs(pl.Callback):
    ended: ClassVar[list[int]] = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.ended.append(trainer.current_epoch)


@pytest.mark.parametrize("as_list", [True, False])
def test_models_with_callbacks_of_the_user_are_saved_and_loaded(as_list, tmp_path):
    Epochs.ended.clear()
    callbacks = [Epochs()] if as_list else Epochs()
    settings = {"trainer_kwargs": {"callbacks": callbacks}}
    model = fitted("ScottDLinear", settings, tmp_path)
    assert Epochs.ended == [0, 1]
    again = type(model).load(model.save())
    data = frame(covariates=False)
    pd.testing.assert_frame_equal(again.predict(data), model.predict(data))


def test_time_limit_ends_training(tmp_path):
    settings = {"max_epochs": 10_000, "num_batches_per_epoch": 50}
    model = fitted("ScottDLinear", settings, tmp_path, time_limit=5)
    trainer = model._get_estimator().trainer
    assert trainer.epochs == 10_000
    assert model.fit_time is None or model.fit_time < 60


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"batchsize": 8}, UnknownArgumentError, "no argument 'batchsize'. Did you mean"),
        ({"method": "scot"}, ArgumentError, "method"),
        ({"stratifier": "weekday"}, ArgumentError, "weekday"),
        ({"hidden_sise": 8}, UnknownArgumentError, "hidden_sise"),
    ],
)
def test_mistakes_are_told(settings, error, message, tmp_path):
    with pytest.raises(error, match=message):
        fitted("ScottDeepAR", settings, tmp_path)
