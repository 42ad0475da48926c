"""Series in memory: as a dataset, as entries, as text."""

from __future__ import annotations

import pytest
import torch
from helpers.loaded_series import load_targets, moments, ramp
from helpers.series import wave_entries
from helpers.training import quiet_trainer

from pts_scott import VAREstimator, WindowIndex, datasets
from pts_scott.data.offsets import moment_of, parse_offset
from pts_scott.datasets.series_data import SeriesData


@pytest.mark.parametrize(
    ("freq", "start"),
    [("h", "2020-01-01"), ("B", "2020-01-01"), ("MS", "2020-01-01"), ("M", "2020-01-01")],
)
def test_estimator_trains_on_the_dataset_and_predictor_forecasts_it(freq, start):
    data = load_targets(ramp(80), ramp(70) + 3, freq=freq, starts=start)
    estimator = VAREstimator(
        freq=data.freq, prediction_length=2, context_length=6, trainer=quiet_trainer()
    )
    predictor = estimator.train(data.dataset())
    forecasts = list(predictor.predict(data.dataset()))
    assert [forecast.item_id for forecast in forecasts] == ["s0", "s1"]
    for row, forecast in enumerate(forecasts):
        after = moments(data, row)[-1] + parse_offset(data.freq)
        assert moment_of(forecast.start_date) == after


def test_entries_give_the_same_windows_as_the_dataset():
    data = datasets.load(wave_entries(), freq="h")
    one = WindowIndex.from_dataset(data.entries(), data.freq, 6, 2)
    other = WindowIndex.from_dataset(data.dataset(), data.freq, 6, 2)
    every = torch.arange(len(one))
    for name, values in one.gather(every).items():
        assert torch.equal(values, other.gather(every)[name])


def test_repr_is_one_line():
    data = load_targets(ramp(9), ramp(5))
    assert repr(data) == "SeriesData('data', freq='h', 2 series of 5 to 9 steps)"
    assert isinstance(data, SeriesData)
    assert len(data) == 2
