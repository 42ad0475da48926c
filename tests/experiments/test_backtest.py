"""The backtest is GluonTS' own, on the end of the test range."""

from __future__ import annotations

import pandas as pd
import torch
from gluonts.evaluation import Evaluator, make_evaluation_predictions

from pts_scott._utils.rng import isolated_rng
from pts_scott.experiments.backtest import backtest, select_series
from pts_scott.experiments.run import perform


def test_backtest_equals_gluonts_own(setting):
    run = perform(setting, "SGD", seed=0)
    series = setting.split.backtest
    ours = backtest(run.predictor, series, samples=20, seed=0)
    with isolated_rng(0, torch.device("cpu")):
        forecasts, truth = make_evaluation_predictions(
            series.dataset(), predictor=run.predictor, num_samples=20
        )
        metrics, _ = Evaluator(num_workers=0)(truth, forecasts)
    assert ours["CRPS"] == metrics["mean_wQuantileLoss"]
    assert ours["MASE"] == metrics["MASE"]


def test_backtest_forecasts_the_end_of_the_test_range(setting):
    ends = [
        start + len(target) * pd.Timedelta("1h")
        for start, target in zip(
            setting.split.backtest.starts, setting.split.backtest.targets
        )
    ]
    assert set(ends) == {pd.Timestamp("2024-01-01") + pd.Timedelta(300, "h")}
    assert ends[0] - pd.Timedelta("4h") >= setting.split.train_end


def test_selected_series_are_evenly_spaced(setting):
    series = setting.split.backtest
    assert select_series(series, None) is series
    assert select_series(series, 3) is series
    first, last = series.item_ids[0], series.item_ids[-1]
    assert list(select_series(series, 2).item_ids) == [first, last]
