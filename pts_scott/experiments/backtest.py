"""The GluonTS backtest of a trained model, under the paper's names of the metrics."""

from __future__ import annotations

import warnings

import numpy as np
from gluonts.env import env
from gluonts.evaluation import Evaluator, make_evaluation_predictions
from gluonts.model.predictor import Predictor

from pts_scott._utils.rng import isolated_rng
from pts_scott._utils.spacing import evenly_spaced
from pts_scott.datasets.series_data import SeriesData
from pts_scott.models.forecasts import forecast_device

#: Our names of the metrics, and GluonTS' names.
BACKTEST_METRICS = {
    "CRPS": "mean_wQuantileLoss",
    "MASE": "MASE",
    "sMAPE": "sMAPE",
    "ND": "ND",
    "NRMSE": "NRMSE",
}


def backtest(
    predictor: Predictor, series: SeriesData, samples: int, seed: int
) -> dict[str, float]:
    """Forecast the last steps of each series and evaluate with GluonTS' evaluator.

    Parameters
    ----------
    predictor
        The trained model.
    series
        Whole series; their last ``prediction_length`` steps are forecast.
    samples
        Sample paths per forecast.
    seed
        Seed of the sample paths.
    """
    evaluator = Evaluator(num_workers=0)
    with warnings.catch_warnings(), np.errstate(all="ignore"), env._let(use_tqdm=False):
        warnings.simplefilter("ignore")
        with isolated_rng(seed, forecast_device(predictor)):
            forecasts, truth = make_evaluation_predictions(
                series.dataset(), predictor=predictor, num_samples=samples
            )
            metrics, _ = evaluator(truth, forecasts, num_series=len(series.item_ids))
    return {ours: float(metrics[theirs]) for ours, theirs in BACKTEST_METRICS.items()}


def select_series(series: SeriesData, limit: int | None) -> SeriesData:
    """Return at most ``limit`` evenly spaced series; all if None."""
    count = len(series.item_ids)
    if limit is None or limit >= count:
        return series
    return series.pick(evenly_spaced(count, limit).tolist())
