"""Forecasts as data frames."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pandas as pd
import torch
from gluonts.model.forecast import Forecast, SampleForecast
from gluonts.model.predictor import Predictor

from pts_scott._utils.arguments import real_number, whole_number
from pts_scott._utils.rng import isolated_rng
from pts_scott.datasets.catalogue import as_dataset
from pts_scott.errors import ArgumentError


def forecast_frame(
    predictor: Predictor,
    data: Any,
    quantiles: Sequence[float] = (0.1, 0.5, 0.9),
    num_samples: int = 100,
    seed: int | None = None,
) -> pd.DataFrame:
    """Forecast the steps after the end of each series, as a data frame in long form.

    Parameters
    ----------
    predictor
        What an estimator's ``train`` returned.
    data
        A DataFrame or Series, what `load` returned, or a GluonTS dataset. With known
        features, rows without a target at the end of each series hold those of the
        steps to forecast.
    quantiles
        Between 0 and 1.
    num_samples
        Samples from which models without a closed form estimate them.
    seed
        Seed of these samples; by default, they differ from call to call.

    Returns
    -------
    pd.DataFrame
        One row per series and step, with columns ``item_id``, ``timestamp``, ``mean``
        and one for each quantile, named like ``"0.1"``.

    Raises
    ------
    ArgumentError
        If a quantile is not between 0 and 1, the dataset is empty, or its series have
        several dimensions.
    DataError
        If known features are missing for the steps to forecast.

    Examples
    --------
    >>> predictor = estimator.train(frame)                        # doctest: +SKIP
    >>> forecast_frame(predictor, frame, quantiles=[0.05, 0.95])  # doctest: +SKIP
    """
    levels = [_level(value) for value in quantiles]
    count = whole_number("num_samples", num_samples)
    freq = getattr(predictor, "freq", None)
    dataset = as_dataset(data, freq, predictor.prediction_length)
    frames = []
    alone: AbstractContextManager[None] = nullcontext()
    if seed is not None:
        seed = whole_number("seed", seed, minimum=0)
        alone = isolated_rng(seed, forecast_device(predictor))
    with alone:
        for forecast in predictor.predict(dataset, num_samples=count):
            frames.append(_frame(forecast, levels))
    if not frames:
        raise ArgumentError("there is no series to forecast: the dataset is empty.")
    return pd.concat(frames, ignore_index=True)


def forecast_device(predictor: Predictor) -> torch.device:
    """Return the device on which a predictor draws its samples."""
    return torch.device(getattr(predictor, "device", None) or "cpu")


def _level(value: Any) -> float:
    return real_number("quantiles", value, 0, 1, exclusive=True)


def _frame(forecast: Forecast, levels: list[float]) -> pd.DataFrame:
    if isinstance(forecast, SampleForecast) and forecast.samples.ndim > 2:
        raise ArgumentError(
            "forecasts of several dimensions have no long form; iterate over "
            "predictor.predict(dataset) instead."
        )
    index = forecast.index
    moments = index.to_timestamp() if isinstance(index, pd.PeriodIndex) else index
    columns = {str(level): np.asarray(forecast.quantile(level)) for level in levels}
    return pd.DataFrame(
        {
            "item_id": forecast.item_id,
            "timestamp": pd.DatetimeIndex(moments),
            "mean": np.asarray(forecast.mean),
            **columns,
        }
    )
