"""Stratifier: one policy, the same strata as a Transformation and over the index."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gluonts.core import serde
from gluonts.dataset.common import ListDataset
from gluonts.transform import AddObservedValuesIndicator, Chain
from helpers.calendar_steps import moments, next_business_day, plain_steps
from helpers.instances import splitter
from helpers.series import dataset, wave_windows
from hypothesis import given, settings
from hypothesis import strategies as st

from pts_scott import Stratifier, WindowIndex
from pts_scott.datasets.synthetic import synthetic_stratifier, synthetic_windows
from pts_scott.errors import (
    ArgumentError,
    DataError,
    EmptyStratumError,
    FrequencyError,
    MissingExtraError,
    NotFittedError,
    StratificationError,
    TooManyStrataError,
)
from pts_scott.strata.partition import default_stratifier
from pts_scott.strata.policies import CALENDAR_PARTS

# Monthly and longer steps leave fewer calendar parts to tell them apart.
PARTS_OF = {
    "15min": tuple(CALENDAR_PARTS),
    "h": tuple(CALENDAR_PARTS),
    "3h": tuple(CALENDAR_PARTS),
    "D": ("weekday", "weekend", "day", "week", "month", "quarter", "season", "year"),
    "B": ("weekday", "day", "week", "month", "quarter", "season", "year"),
    "W-WED": ("day", "week", "month", "quarter", "season", "year"),
    "M": ("month", "quarter", "season", "year"),
    "Q": ("quarter", "season", "year"),
}


def by_parity(item_id: str, forecast_start: pd.Timestamp, instance: Any) -> Any:
    level = float(instance["past_target"].mean()) > 0
    return (item_id, forecast_start.dayofyear % 2, level)


@st.composite
def problems(draw: Any) -> tuple[list[dict], str, Stratifier, dict[str, int]]:
    freq = draw(st.sampled_from(sorted(PARTS_OF)))
    entries = [
        {
            "item_id": f"item {number}",
            "start": draw(
                st.datetimes(
                    min_value=pd.Timestamp("1995-01-01").to_pydatetime(),
                    max_value=pd.Timestamp("2030-01-01").to_pydatetime(),
                ).map(lambda moment: moment.replace(second=0, microsecond=0))
            ),
            "target": np.random.default_rng(number).standard_normal(
                draw(st.integers(12, 40))
            ),
        }
        for number in range(draw(st.integers(1, 3)))
    ]
    parts = draw(
        st.lists(st.sampled_from(PARTS_OF[freq]), min_size=1, max_size=3, unique=True)
    )
    policies = [
        Stratifier.calendar(*parts),
        Stratifier.periodic(2, unit=draw(st.integers(1, 4))),
        Stratifier.ranges(2),
        Stratifier.series(),
        Stratifier.random(2, seed=draw(st.integers(0, 9))),
        Stratifier.finest(),
        Stratifier.custom(by_parity),
    ]
    chosen = draw(st.lists(st.sampled_from(policies), min_size=1, max_size=3))
    policy = chosen[0]
    for factor in chosen[1:]:
        policy = policy * factor
    lengths = {
        "context_length": draw(st.integers(1, 5)),
        "prediction_length": draw(st.integers(1, 3)),
        "stride": draw(st.integers(1, 4)),
    }
    return entries, freq, policy, lengths


@given(problems())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_stratum_by_transformation_equals_stratum_by_index(problem):
    entries, freq, policy, lengths = problem
    data = list(ListDataset(entries, freq=freq))
    windows = WindowIndex.from_dataset(data, freq, **lengths)
    fitted = policy.fit(windows)
    chain = Chain(
        [
            AddObservedValuesIndicator("target", "observed_values"),
            splitter(*lengths.values()),
            fitted,
        ]
    )
    tagged = [instance["stratum"] for instance in chain(iter(data), is_train=True)]
    assert tagged == fitted.codes(windows).expand(windows).tolist()


# Each calendar part in plain Python.
PLAIN_PARTS = {
    "hour": lambda m: m.hour,
    "weekday": lambda m: m.weekday(),
    "weekend": lambda m: m.weekday() >= 5,
    "day": lambda m: m.day - 1,
    "week": lambda m: m.isocalendar()[1] - 1,
    "month": lambda m: m.month - 1,
    "quarter": lambda m: (m.month - 1) // 3,
    "season": lambda m: m.year * 4 + (m.month - 1) // 3,
    "year": lambda m: m.year,
}


@given(st.sampled_from(sorted(PARTS_OF)), moments())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_calendar_parts_are_those_of_plain_datetimes(freq, first):
    if freq == "B" and first.weekday() >= 5:
        first = next_business_day(first)
    assert set(PLAIN_PARTS) == set(CALENDAR_PARTS)
    entry = {"start": pd.Period(first, freq), "target": np.zeros(30)}
    windows = WindowIndex.from_dataset([entry], freq, 2, 1)
    starts = plain_steps(freq, first, 30)[2:]
    for part in PARTS_OF[freq]:
        expected = [int(PLAIN_PARTS[part](moment)) for moment in starts]
        codes = Stratifier.calendar(part).codes(windows).expand(windows)
        assert codes.tolist() == expected, part


@pytest.mark.parametrize("kind", ["period", "timestamp"])
@pytest.mark.parametrize("freq", ["h", "D", "B"])
def test_periods_and_timestamps_are_tagged_alike(kind, freq):
    moment = pd.Timestamp("2024-05-15")  # a Wednesday
    start = pd.Period(moment, freq) if kind == "period" else moment
    instance = {"item_id": "a", "forecast_start": start}
    assert Stratifier.calendar("weekday").code(instance) == 2
    expected = Stratifier.periodic(5).code({"forecast_start": pd.Period(moment, freq)})
    assert Stratifier.periodic(5, freq=freq).code(instance) == expected


def test_the_stratum_is_written_into_the_instance_and_nothing_else_changes():
    instance = {"item_id": "a", "forecast_start": pd.Period("2024-05-15", "D")}
    policy = Stratifier.calendar("weekday")
    (tagged,) = policy(iter([instance]), is_train=True)
    assert tagged == {**instance, "stratum": 2}
    assert "stratum" not in instance


def hourly(hours: int, start: str) -> WindowIndex:
    """Windows of the first 80 % of an hourly benchmark, 72 + 24 as in the paper."""
    rows = np.ones((2, int(hours * 0.8)))
    return WindowIndex.from_dataset(dataset(rows, "h", start), "h", 72, 24)


def test_the_papers_49_strata_on_traffic():
    policy = Stratifier.calendar("weekday", "season")
    assert len(policy.stratify(hourly(17544, "2015-01-01"))) == 49


def test_the_papers_70_strata_on_electricity():
    policy = Stratifier.calendar("weekday", "season")
    assert len(policy.stratify(hourly(26304, "2012-01-01"))) == 70


def test_the_papers_32_strata_on_exchange_rate():
    rows = np.ones((8, int(7588 * 0.8)))
    windows = WindowIndex.from_dataset(dataset(rows, "B"), "B", 8, 1)
    assert len((Stratifier.ranges(4) * Stratifier.series()).stratify(windows)) == 32


def test_the_papers_16_strata_on_synthetic_data():
    strata = synthetic_stratifier().stratify(synthetic_windows(repetitions=5))
    assert len(strata) == 16


def test_a_season_counts_through_time():
    rows = np.ones((1, 2 * 366 * 24))
    windows = WindowIndex.from_dataset(dataset(rows, "h", "2020-01-01"), "h", 1, 1)
    season = Stratifier.calendar("season").stratify(windows)
    quarter = Stratifier.calendar("quarter").stratify(windows)
    assert (len(season), len(quarter)) == (9, 4)  # 732 days reach into a ninth season


def test_weekdays_of_a_business_day_series_are_five():
    rows = np.ones((1, 300))
    entry = {"start": pd.Timestamp("2024-01-01"), "target": rows[0]}
    windows = WindowIndex.from_dataset([entry], "B", 3, 1)
    assert len(Stratifier.calendar("weekday").stratify(windows)) == 5


def test_kmeans_tells_kinds_of_windows_apart():
    t = np.arange(200)
    rows = np.stack([np.sin(t), 100 + np.sin(t / 5), (t % 3 == 0)])
    data = dataset(rows, "h")
    windows = WindowIndex.from_dataset(data, "h", 24, 1)
    policy = Stratifier.kmeans(3).fit(windows)
    strata = policy.stratify(windows)
    per_series = strata.order.numpy() // (len(windows) // 3)
    groups = np.split(per_series, np.cumsum(strata.sizes.numpy())[:-1])
    assert all(len(set(group)) == 1 for group in groups)

    chain = Chain(
        [AddObservedValuesIndicator("target", "observed_values"), splitter(24, 1), policy]
    )
    tagged = [instance["stratum"] for instance in chain(iter(data), is_train=True)]
    assert tagged == policy.codes(windows).expand(windows).tolist()


def test_kmeans_takes_features_of_ones_own():
    windows = wave_windows()
    strata = Stratifier.kmeans(3, features=lambda x: x.mean(axis=1, keepdims=True))
    assert len(strata.stratify(windows)) == 3


@pytest.mark.parametrize(
    "policy",
    [
        Stratifier.calendar("weekday", "hour"),
        Stratifier.periodic(3, unit=2),
        Stratifier.ranges(3) * Stratifier.series(),
        Stratifier.random(4, seed=3),
        Stratifier.finest(),
        Stratifier.kmeans(3, features=("level", "zeros")),
    ],
    ids=repr,
)
def test_a_fitted_policy_survives_gluonts_serialisation(policy):
    windows = wave_windows()
    fitted = policy.fit(windows)
    decoded = serde.load_json(serde.dump_json(fitted))
    assert repr(decoded) == repr(policy)
    expected = fitted.codes(windows).expand(windows)
    np.testing.assert_array_equal(decoded.codes(windows).expand(windows), expected)


def test_codes_do_not_depend_on_the_process():
    # Python's own hash of a string changes from process to process.
    instance = {"item_id": "client 7", "forecast_start": pd.Timestamp("2020-01-01")}
    assert Stratifier.series().code(instance) == 765314024777430191
    assert Stratifier.random(49).code(instance) == 32


@pytest.mark.parametrize(
    ("freq", "expected"),
    [
        ("15min", "Stratifier.calendar('weekday', 'season')"),
        ("h", "Stratifier.calendar('weekday', 'season')"),
        ("D", "Stratifier.calendar('season')"),
        ("B", "Stratifier.calendar('season')"),
        ("W", "Stratifier.calendar('season')"),
        ("MS", "Stratifier.calendar('month')"),
        ("QS", "Stratifier.calendar('quarter')"),
    ],
)
def test_the_default_policy_suits_the_frequency(freq, expected):
    assert repr(default_stratifier(freq)) == expected


def test_a_list_of_parts_is_understood():
    assert (
        repr(Stratifier.calendar(["hour", "day"])) == "Stratifier.calendar('hour', 'day')"
    )


def test_a_dataset_in_place_of_windows_is_refused():
    with pytest.raises(ArgumentError, match="create_windows"):
        Stratifier.series().describe([{"start": "2020-01-01", "target": [1.0]}])


def test_labels_that_python_holds_equal_are_one_stratum(windows):
    labels = [1, 1.0, True, np.int64(1), np.float32(1.0)]
    policy = Stratifier.custom(lambda i, moment, _: (labels[moment.hour % 5], 0.5))
    assert len(policy.stratify(windows)) == 1


def test_a_hash_may_leave_a_stratum_empty(windows):
    assert 20 < len(Stratifier.random(30).stratify(windows)) <= 30


# -- what is refused ----------------------------------------------------------------


def test_an_unknown_calendar_part_names_the_nearest():
    with pytest.raises(ArgumentError, match="'weekday'"):
        Stratifier.calendar("weekdy")


@pytest.mark.parametrize("parts", [(), ("hour", "hour")])
def test_no_part_or_one_part_twice_is_refused(parts):
    with pytest.raises(ArgumentError, match="part"):
        Stratifier.calendar(*parts)


@pytest.mark.parametrize(
    ("freq", "part"), [("D", "hour"), ("W", "weekday"), ("MS", "week"), ("YS", "month")]
)
def test_a_part_that_the_frequency_cannot_tell_apart_is_refused(freq, part):
    entry = {"start": pd.Timestamp("2020-01-01"), "target": np.ones(40)}
    windows = WindowIndex.from_dataset([entry], freq.replace("YS", "AS"), 2, 1)
    with pytest.raises(FrequencyError, match="usable here"):
        Stratifier.calendar(part).stratify(windows)


def test_more_strata_than_windows_are_refused(windows):
    with pytest.raises(TooManyStrataError, match="only 117 windows"):
        Stratifier.random(1000).stratify(windows)


def test_a_stratum_without_windows_is_refused():
    with pytest.raises(EmptyStratumError, match="no window falls into"):
        Stratifier.periodic(8).stratify(wave_windows(stride=8))


@pytest.mark.parametrize(
    "make", [Stratifier.ranges, Stratifier.random, Stratifier.periodic]
)
@pytest.mark.parametrize("count", [0, 1, -3, 2.5, "4"])
def test_a_number_of_strata_below_two_is_refused(make, count):
    with pytest.raises(ArgumentError, match="at least 2"):
        make(count)


def test_the_finest_policy_needs_windows_that_differ():
    entries = [{"item_id": "a", "start": "2020-01-01", "target": np.ones(9)}] * 2
    windows = WindowIndex.from_dataset(entries, "D", 2, 1)
    with pytest.raises(StratificationError, match="its own item_id"):
        Stratifier.finest().stratify(windows)


@pytest.mark.parametrize("policy", [Stratifier.ranges(3), Stratifier.kmeans(3)], ids=repr)
def test_a_policy_that_learns_must_be_fitted_first(policy):
    instance = {
        "item_id": "a",
        "forecast_start": pd.Timestamp("2020-01-01"),
        "past_target": np.zeros(6),
    }
    with pytest.raises(NotFittedError, match="fit"):
        policy.code(instance)


def test_an_instance_without_item_id_is_refused():
    with pytest.raises(DataError, match="item_id"):
        Stratifier.series().code({"forecast_start": pd.Timestamp("2020-01-01")})


def raises(item_id, forecast_start, instance):
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, "boom"),
        (lambda *_: [1], "unhashable"),
        (lambda *_: None, "returned None"),
        (lambda *_: float("nan"), "returned nan"),
    ],
)
def test_a_function_that_fails_is_reported_with_the_window(function, message, windows):
    with pytest.raises(StratificationError, match=rf"'s0' at 2021-03-01.*{message}"):
        Stratifier.custom(function).stratify(windows)


def test_a_missing_extra_is_named_with_the_command(monkeypatch, windows):
    original = builtins.__import__

    def without_sklearn(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_sklearn)
    with pytest.raises(MissingExtraError, match=r"pip install 'pts-scott\[kmeans\]'"):
        Stratifier.kmeans(3).fit(windows)


def test_a_feature_that_does_not_exist_names_the_nearest():
    with pytest.raises(ArgumentError, match="'spectrum'"):
        Stratifier.kmeans(3, features=["spectra"])
