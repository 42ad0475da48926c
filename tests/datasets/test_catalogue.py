"""Datasets by name and from files, what a report says, and splits by time."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from gluonts.dataset.repository import datasets as repository
from helpers.series import wave_entries
from helpers.training import quiet_trainer

from pts_scott import Stratifier, VAREstimator, WindowIndex, datasets
from pts_scott.data.offsets import moment_of, parse_offset
from pts_scott.datasets.catalogue import KNOWN
from pts_scott.datasets.series_data import SeriesData
from pts_scott.datasets.synthetic import synthetic_series
from pts_scott.errors import (
    ArgumentError,
    ConstantSeriesError,
    DatasetNotFoundError,
    EmptyDatasetError,
    FileLayoutError,
    ScottWarning,
    SplitError,
)


def real(name, **arguments):
    """A dataset of the folder, or skip the test."""
    folder = os.environ.get("PTS_SCOTT_DATA")
    if not folder or KNOWN[name].find(Path(folder)) is None:
        pytest.skip(f"PTS_SCOTT_DATA does not name a folder with {KNOWN[name].file}")
    return datasets.load(name, **arguments)


def series(*targets, freq="h", starts="2020-01-01"):
    starts = [starts] * len(targets) if isinstance(starts, str) else starts
    entries = [
        {"item_id": f"s{number}", "start": pd.Timestamp(start), "target": target}
        for number, (start, target) in enumerate(zip(starts, targets))
    ]
    return datasets.load(entries, freq=freq)


def ramp(length=200):
    return np.arange(1.0, length + 1)


def moments(data, row=0):
    offset = parse_offset(data.freq)
    later = [data.starts[row] + k * offset for k in range(1, len(data.targets[row]))]
    return [data.starts[row], *later]


@pytest.fixture
def no_folder(monkeypatch):
    monkeypatch.delenv("PTS_SCOTT_DATA", raising=False)


@pytest.fixture
def no_download(monkeypatch):
    def fail(name, **arguments):
        raise OSError("no network")

    monkeypatch.setattr(repository, "get_dataset", fail)


# By name.


@pytest.mark.parametrize(
    "name", [name for name, known in KNOWN.items() if not known.download]
)
def test_a_part_of_a_dataset_is_read_from_the_folder(name):
    data, known = real(name, constant="keep"), KNOWN[name]
    assert (len(data), len(data.targets[0])) == (known.series, known.steps)
    assert f"{known.series}x{known.steps}" in data.name
    assert set(data.starts) == {pd.Timestamp(known.start)}


def test_the_real_values_are_those_of_the_file(exchange_rate):
    data = real("exchange_rate")
    np.testing.assert_array_equal(np.stack(data.targets), exchange_rate)
    assert (data.freq, data.starts[0]) == ("B", pd.Timestamp("1990-01-01"))
    assert data.item_ids == tuple("01234567")


@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_a_full_dataset_is_found_by_folder_or_environment(
    tmp_path, monkeypatch, ending, no_folder
):
    rows = np.random.default_rng(0).random((7588, 8)).round(4)
    pd.DataFrame(rows).to_csv(
        tmp_path / f"exchange_rate{ending}", header=False, index=False
    )
    given = datasets.load("exchange_rate", folder=tmp_path)
    monkeypatch.setenv("PTS_SCOTT_DATA", str(tmp_path))
    named = datasets.load("exchange_rate")
    for data in (given, named):
        np.testing.assert_array_equal(np.stack(data.targets), rows.T)


def test_a_file_of_another_shape_is_not_taken_for_the_dataset(tmp_path):
    (tmp_path / "traffic.txt").write_text("1,2\n3,4\n5,6\n")
    with pytest.raises(
        FileLayoutError, match="3 rows × 2 columns, but traffic has 17544"
    ):
        datasets.load("traffic", folder=tmp_path)


def test_synthetic_is_the_papers_data():
    data = datasets.load("synthetic", seed=3)
    np.testing.assert_array_equal(np.stack(data.targets), synthetic_series(seed=3))
    assert data.item_ids == ("TS1", "TS2", "TS3", "TS4")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("exchange-rate", "'exchange-rate'.* Did you mean 'exchange_rate'"),
        ("Traffic", "Did you mean 'traffic'"),
        ("syntetic", "Did you mean 'synthetic'"),
        ("zzz", "Known names: 'exchange_rate', 'traffic'"),
        ("folder/none.csv", "no file"),
    ],
)
def test_a_name_that_is_not_known_is_refused_with_the_nearest(name, words):
    with pytest.raises(DatasetNotFoundError, match=words):
        datasets.load(name)


def test_a_part_without_a_file_says_at_once_how_to_get_it(no_folder, tmp_path):
    words = (
        r"no download\. Put traffic-21x17544.txt.gz .* PTS_SCOTT_DATA .*17544 rows × 21"
    )
    with pytest.raises(DatasetNotFoundError, match=words):
        datasets.load("traffic-21x17544")
    with pytest.raises(DatasetNotFoundError, match=f"no traffic-.* in '{tmp_path}'"):
        datasets.load("traffic-21x17544", folder=tmp_path)


def test_a_download_that_fails_says_which_file_to_put_where(no_folder, no_download):
    words = "OSError: no network.* Put traffic.txt.gz .*17544 rows × 862 columns, comma"
    with pytest.raises(DatasetNotFoundError, match=words):
        datasets.load("traffic")


def downloaded(lengths, monkeypatch, tmp_path):
    """Let GluonTS' repository have rolling entries of those lengths."""
    rows = np.random.default_rng(0).random((KNOWN["exchange_rate"].series, max(lengths)))
    calls = []

    def get_dataset(name, regenerate):
        calls.append((name, regenerate))
        start = pd.Timestamp("1990-01-01")
        entries = [
            {"item_id": number, "start": start, "target": row[:length]}
            for length in lengths
            for number, row in enumerate(rows)
        ]
        return SimpleNamespace(test=entries)

    monkeypatch.setattr(repository, "get_dataset", get_dataset)
    monkeypatch.setattr(repository, "default_dataset_path", tmp_path)
    return rows, calls


def test_of_a_download_the_longest_entry_of_each_series_is_kept(
    no_folder, monkeypatch, tmp_path
):
    rows, calls = downloaded((7400, 7588, 7500), monkeypatch, tmp_path)
    data = datasets.load("exchange_rate")
    np.testing.assert_array_equal(np.stack(data.targets), rows)
    assert (data.name, data.note) == ("exchange_rate", "")
    assert calls == [("exchange_rate", True)]


def test_what_is_downloaded_in_part_does_not_bear_the_name_of_the_whole(
    no_folder, monkeypatch, tmp_path
):
    downloaded((6200, 6221), monkeypatch, tmp_path)
    data = datasets.load("exchange_rate")
    assert data.name == "exchange_rate-8x6221"
    assert "6221 of 7588 steps" in str(data.report())


def test_a_whole_download_is_not_fetched_again_but_half_a_one_is(
    no_folder, monkeypatch, tmp_path
):
    _, calls = downloaded((7588,), monkeypatch, tmp_path)
    (tmp_path / "exchange_rate").mkdir()
    datasets.load("exchange_rate")
    (tmp_path / "exchange_rate" / "test").mkdir()
    datasets.load("exchange_rate")
    assert [again for _, again in calls] == [True, False]


def test_known_names_take_no_start_and_no_columns():
    with pytest.raises(ArgumentError, match="its own start and freq"):
        datasets.load("traffic", start="2020-01-01")
    with pytest.raises(ArgumentError, match="target name columns"):
        datasets.load("synthetic", target="y")
    with pytest.raises(ArgumentError, match="entries of a dataset have a start"):
        datasets.load(wave_entries(), start="2020-01-01", freq="h")


def test_available_lists_what_is_there_and_how_to_get_the_rest(tmp_path):
    (tmp_path / "traffic.txt").write_text("1\n")
    table = datasets.available(tmp_path).set_index("name")
    assert [*KNOWN, "synthetic"] == list(table.index)
    assert table.loc["traffic", "where"] == str(tmp_path / "traffic.txt")
    assert table.loc["traffic", "get"] == ""
    assert table.loc["electricity", "where"] == ""
    assert "GluonTS" in table.loc["electricity", "get"]
    assert "electricity-2x26304.txt.gz" in table.loc["electricity-2x26304", "get"]
    assert tuple(table.loc["synthetic", ["series", "steps"]]) == (4, 192000)


# From files and memory.


def test_a_file_is_loaded_under_its_own_name(tmp_path):
    path = tmp_path / "my.sales.csv"
    path.write_text("date,a\n2020-01-01,1\n2020-01-02,2\n2020-01-03,4\n")
    for given in (path, str(path)):
        data = datasets.load(given)
        assert (data.name, data.freq, data.item_ids) == ("my.sales", "D", ("a",))


def test_a_frame_and_entries_are_loaded():
    times = pd.date_range("2020-01-01", periods=5)
    frame = pd.DataFrame({"when": times, "id": "x", "v": np.arange(5.0)})
    data = datasets.load(frame, timestamp="when", item_id="id", target="v")
    assert data.item_ids == ("x",)
    assert len(datasets.load(wave_entries(), freq="h")) == 3


def test_its_own_dataset_is_loaded_as_the_same_series():
    data = datasets.load(wave_entries(), freq="h")
    again = datasets.load(data.dataset(), freq="h")
    assert again.starts == data.starts
    for one, other in zip(again.targets, data.targets):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(
    ("freq", "start"),
    [("h", "2020-01-01"), ("B", "2020-01-01"), ("MS", "2020-01-01"), ("M", "2020-01-01")],
)
def test_estimators_train_on_it_and_predictors_forecast_it(freq, start):
    data = series(ramp(80), ramp(70) + 3, freq=freq, starts=start)
    estimator = VAREstimator(
        freq=data.freq, prediction_length=2, context_length=6, trainer=quiet_trainer()
    )
    predictor = estimator.train(data.dataset())
    forecasts = list(predictor.predict(data.dataset()))
    assert [forecast.item_id for forecast in forecasts] == ["s0", "s1"]
    for row, forecast in enumerate(forecasts):
        after = moments(data, row)[-1] + parse_offset(data.freq)
        assert moment_of(forecast.start_date) == after


def test_entries_make_the_same_windows_as_the_dataset():
    data = datasets.load(wave_entries(), freq="h")
    one = WindowIndex.from_dataset(data.entries(), data.freq, 6, 2)
    other = WindowIndex.from_dataset(data.dataset(), data.freq, 6, 2)
    every = torch.arange(len(one))
    for name, values in one.gather(every).items():
        assert torch.equal(values, other.gather(every)[name])


# Constant series.


@pytest.mark.parametrize("value", [0.0, 2.5, np.nan])
def test_a_constant_series_is_refused_dropped_or_kept(value):
    flat = np.full(9, value)
    flat[3] = np.nan
    entries = [
        {"item_id": name, "start": "2020-01-01", "target": target}
        for name, target in (("good", ramp(9)), ("flat", flat))
    ]
    shown = "missing" if np.isnan(value) else f"{value:g}"
    words = f"1 of 2 series .*flat = {shown}.*constant='drop'.*constant='keep'"
    with pytest.raises(ConstantSeriesError, match=words):
        datasets.load(entries, freq="D")
    dropped = datasets.load(entries, freq="D", constant="drop")
    assert (dropped.item_ids, dropped.dropped) == (("good",), ("flat",))
    assert "left out: 'flat'" in str(dropped.report())
    assert datasets.load(entries, freq="D", constant="keep").item_ids == ("good", "flat")


def test_a_dataset_of_constant_series_only_has_nothing_left():
    entries = [{"start": "2020-01-01", "target": np.ones(4)}]
    with pytest.raises(EmptyDatasetError, match="all series .* are constant"):
        datasets.load(entries, freq="D", constant="drop")
    with pytest.raises(ArgumentError, match="constant='dorp': .* Did you mean 'drop'"):
        datasets.load(entries, freq="D", constant="dorp")


def test_the_client_that_is_always_zero_is_found():
    with pytest.raises(ConstantSeriesError, match="1 of 321 .*'182 = 0'"):
        real("electricity-321x840")
    assert real("electricity-321x840", constant="drop").dropped == ("182",)


# Reports.


def test_a_report_counts_missing_values_and_zeros():
    first, second = ramp(12), ramp(12)
    first[[2, 3, 4, 8]] = np.nan
    second[[0, 1, 7]] = 0
    first[7] = 0
    report = series(first, second).report()
    rows = report.table.set_index("item_id")
    assert tuple(rows.loc["s0"])[1:] == (12, 4, 3, 1, 1)
    assert tuple(rows.loc["s1"])[1:] == (12, 0, 0, 3, 2)
    assert list(report.all_zero) == [pd.Timestamp("2020-01-01 07:00")]
    stretch = report.longest_missing
    assert (stretch.item_id, stretch.steps, stretch.begin.hour, stretch.end.hour) == (
        "s0",
        3,
        2,
        4,
    )
    text = str(report)
    assert "2 series of 12 steps of freq='h', 2020-01-01 to 2020-01-01 11:00" in text
    assert "4 values (16.67%) are missing, in 1 series" in text
    assert "Zero more than 20% of the time: 1 series, 's1'" in text
    assert "All series are zero at 1 step: '2020-01-01 07:00'" in text


def test_a_report_of_clean_series_is_short():
    text = str(series(ramp(9)).report())
    assert "No value is missing." in text
    assert "No value is zero." in text
    assert len(text.splitlines()) == 3


def test_gaps_in_time_are_in_the_report():
    times = pd.date_range("2020-01-01", periods=9).delete([1, 2])
    data = datasets.load(pd.DataFrame({"date": times, "a": ramp(7)}))
    assert "2 steps of series 'a', 2020-01-02 to 2020-01-03" in str(data.report())


def test_the_hours_without_any_traffic_are_found():
    report = real("traffic-21x17544").report()
    assert len(report.all_zero) == 15
    assert "All series are zero at 15 steps" in str(report)


def test_clients_that_are_often_zero_are_named():
    text = str(real("electricity-321x840", constant="keep").report())
    assert "Zero more than 20% of the time: 7 series" in text


# Splits.


def parts_of(data, context=6, prediction=2, **shares):
    return data.split(context, prediction, **shares)


def test_a_split_cuts_all_series_at_the_same_moments():
    data = series(ramp(100), ramp(60), starts=["2020-01-01", "2020-01-02 16:00"])
    parts = parts_of(data)
    first = pd.Timestamp("2020-01-01")
    assert parts.train_end == first + pd.Timedelta(80, "h")
    assert parts.tune_begin == first + pd.Timedelta(72, "h")
    for row in range(2):
        times = moments(data, row)
        for part, begin, end in (
            (parts.train, times[0], parts.train_end),
            (parts.fit, times[0], parts.tune_begin),
            (parts.tuning, parts.tune_begin - pd.Timedelta(6, "h"), parts.train_end),
            (parts.test, parts.train_end, times[-1] + pd.Timedelta(1, "h")),
        ):
            inside = [begin <= time < end for time in times]
            np.testing.assert_array_equal(part.targets[row], data.targets[row][inside])
            assert part.starts[row] == max(begin, times[0])
    np.testing.assert_array_equal(parts.backtest.targets[1], data.targets[1])


@pytest.mark.parametrize("freq", ["h", "B", "MS", "W-WED", "15min"])
def test_no_step_of_a_test_window_is_seen_in_training(freq):
    starts = list(pd.date_range("2020-01-01", periods=3, freq=parse_offset(freq)))
    data = series(ramp(150), ramp(140) + 5, ramp(147), freq=freq, starts=starts)
    parts = parts_of(data)
    for row in range(3):
        seen = set(moments(parts.train, row))
        assert not seen & set(moments(parts.test, row))
        assert max(moments(parts.fit, row)) < parts.tune_begin <= max(seen)
        whole = moments(parts.train, row) + moments(parts.test, row)
        assert whole == moments(data, row), "nothing is lost between the two"


@pytest.mark.parametrize("freq", ["h", "B", "MS"])
def test_tuning_predicts_only_the_last_tenth_of_the_training_range(freq):
    data = series(ramp(150), ramp(150) * 2, freq=freq)
    parts = parts_of(data)
    windows = WindowIndex.from_dataset(parts.tuning.entries(), data.freq, 6, 2)
    rows, steps = windows.locate(torch.arange(len(windows)))
    times = np.array([moments(parts.tuning, row) for row in range(2)])
    first = times[rows.numpy(), steps.numpy()]
    last = times[rows.numpy(), steps.numpy() + 1]
    assert first.min() == parts.tune_begin
    assert last.max() < parts.train_end
    assert len(set(moments(parts.train)) - set(moments(parts.fit))) == 12  # of 120
    assert len(windows) == parts.windows(parts.tuning)


def test_the_truth_of_a_backtest_lies_in_the_test_range():
    data = series(ramp(100), ramp(95), ramp(84))
    with pytest.warns(ScottWarning, match=r"left out of it \(test: 's2'\)"):
        parts = parts_of(data)
    assert parts.backtest.item_ids == parts.test.item_ids == ("s0", "s1")
    for row in range(2):
        assert moments(parts.backtest, row)[-2] >= parts.train_end


def test_series_without_a_window_in_a_part_are_left_out_of_it():
    late = pd.Timestamp("2020-01-01") + pd.Timedelta(85, "h")
    data = series(
        ramp(100), ramp(15), ramp(30), starts=["2020-01-01", late, "2020-01-01"]
    )
    words = r"train: 's1'; test: 's2'; fit: 's1'; tuning: 's1', 's2'\)"
    with pytest.warns(ScottWarning, match=words):
        parts = parts_of(data)
    assert parts.left_out["tuning"] == ("s1", "s2")
    assert "tuning: 's1', 's2'" in str(parts)
    assert parts.train.item_ids == ("s0", "s2")
    assert parts.test.item_ids == ("s0", "s1")
    assert parts.tuning.item_ids == ("s0",)


@pytest.mark.parametrize(
    ("length", "shares", "words"),
    [
        (6, {}, "train part has 4 of the 6 steps .* needs 8 .*context_length=6"),
        (30, {}, "test part has 6 of the 30 steps"),
        (40, {"tune": 0.9}, "fit part has 4 of the 40 steps"),
        (50, {"tune": 0.04}, "tuning part has 7 of the 50 steps, 6 of them as context"),
    ],
)
def test_series_too_short_to_split_are_refused_with_what_is_needed(length, shares, words):
    with pytest.raises(SplitError, match=words):
        parts_of(series(ramp(length)), **shares)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"context_length": 0, "prediction_length": 2}, "context_length=0"),
        ({"context_length": 2, "prediction_length": 1.5}, "prediction_length=1.5"),
        ({"context_length": 2, "prediction_length": 2, "train": 1.5}, "train=1.5"),
        ({"context_length": 2, "prediction_length": 2, "tune": 0}, "tune=0"),
    ],
)
def test_arguments_of_a_split_are_checked(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        series(ramp(100)).split(**arguments)


def test_a_split_says_what_its_parts_have():
    text = str(parts_of(series(ramp(100), ramp(100) * 2)))
    assert "training ends before 2020-01-04 08:00" in text
    assert "test    2020-01-04 08:00 to 2020-01-05 03:00  2 series  26 windows" in text


def test_five_weeks_of_electricity_can_be_split():
    parts = real("electricity-321x840", constant="drop").split(72, 24)
    assert [len(part.targets[0]) for part in (parts.train, parts.fit, parts.test)] == [
        672,
        605,
        168,
    ]
    assert len(parts.tuning.targets[0]) == 72 + 67


@pytest.mark.parametrize(
    ("name", "strata"), [("traffic-21x17544", 49), ("electricity-2x26304", 70)]
)
def test_the_training_range_has_the_papers_strata(name, strata):
    data = real(name)
    train = data.split(72, 24).train
    windows = WindowIndex.from_dataset(train.entries(), data.freq, 72, 24)
    found = Stratifier.calendar("weekday", "season").stratify(windows)
    assert len(found.weights) == strata


def test_series_data_shows_itself_in_a_line():
    data = series(ramp(9), ramp(5))
    assert repr(data) == "SeriesData('data', freq='h', 2 series of 5 to 9 steps)"
    assert isinstance(data, SeriesData)
    assert len(data) == 2


def test_columns_that_are_not_read_are_named():
    frame = pd.DataFrame(
        {
            "timestamp": pd.date_range("2024-01-01", periods=40, freq="D"),
            "item_id": "a",
            "target": np.arange(40.0),
            "price": 1.0,
            "promo": 0.0,
        }
    )
    with pytest.warns(ScottWarning, match="not read: 'price', 'promo'"):
        data = datasets.load(frame)
    assert "not read: 'price', 'promo'" in str(data.report())
    wide = frame.drop(columns="item_id")
    with pytest.warns(ScottWarning, match="not read: 'price', 'promo'"):
        datasets.load(wide, target="target")
    datasets.load(wide.drop(columns=["price", "promo"]))
