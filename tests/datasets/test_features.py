"""Features of series: read from frames, cut with them, and passed to estimators."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pts_scott import load
from pts_scott.errors import ArgumentError, DataError, FileLayoutError, ScottWarning

TIMES = pd.date_range("2024-01-01", periods=30, freq="D")


def shop_frame(horizon: int = 0) -> pd.DataFrame:
    """Return sales of two shops with a price and visitors, and prices ahead."""
    parts = []
    for number, shop in enumerate(("b", "a")):
        times = TIMES[: 30 - 5 * number]
        steps = np.arange(float(len(times)))
        part = pd.DataFrame({"shop": shop, "day": times, "sales": 10 * number + steps})
        part["price"], part["visitors"] = 100 * number + steps, 7 * steps
        part.loc[len(part) - horizon :, ["sales", "visitors"]] = np.nan
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


NAMES = {"item_id": "shop", "timestamp": "day", "target": "sales"}
STATIC = pd.DataFrame(
    {"item_id": ["a", "b"], "size": [3.5, 2], "town": ["x", "y"], "new": [True, False]}
)


def test_features_of_a_long_frame_follow_its_series():
    data = load(shop_frame(4), **NAMES, known=["price"], past=["visitors"])
    assert data.item_ids == ("b", "a")
    assert [len(target) for target in data.targets] == [26, 21]
    second = data.entries(horizon=4)[1]
    assert np.array_equal(second["feat_dynamic_real"], [100 + np.arange(25.0)])
    assert np.array_equal(second["past_feat_dynamic_real"], [7 * np.arange(21.0)])
    assert data.entries()[1]["feat_dynamic_real"].shape == (1, 21)
    assert data.features.names() == ["price", "visitors"]


def test_features_of_each_series_come_from_a_second_frame():
    data = load(shop_frame()[["shop", "day", "sales"]], **NAMES, static=STATIC)
    first = data.entries()[0]
    assert first["feat_static_real"].tolist() == [2.0]
    assert first["feat_static_cat"].tolist() == [1, 0]
    assert data.features.cardinalities == (2, 2)
    by_index = STATIC.set_index("item_id")
    again = load(shop_frame()[["shop", "day", "sales"]], **NAMES, static=by_index)
    assert np.array_equal(again.features.categories, data.features.categories)


def test_static_features_are_found_by_the_name_of_the_column_of_series():
    static = STATIC.rename(columns={"item_id": "shop"})
    data = load(shop_frame()[["shop", "day", "sales"]], **NAMES, static=static)
    assert data.features.real_names == ("size",)
    assert data.entries()[0]["feat_static_real"].tolist() == [2.0]
    with pytest.raises(FileLayoutError, match="named in a column 'shop' or in the index"):
        load(shop_frame()[["shop", "day", "sales"]], **NAMES, static=static[:1])


@pytest.mark.filterwarnings("ignore:Rows without a target")
def test_features_begin_with_the_first_target():
    frame = shop_frame(4)
    frame.loc[:2, ["sales", "visitors"]] = np.nan  # of series "b"
    data = load(frame, **NAMES, known=["price"], past=["visitors"])
    first = data.entries(horizon=4)[0]
    assert first["start"] == TIMES[3]
    assert first["target"].tolist() == list(range(3, 26))
    assert first["feat_dynamic_real"].tolist() == [list(range(3, 30))]
    assert first["past_feat_dynamic_real"].tolist() == [[7 * k for k in range(3, 26)]]


@pytest.mark.filterwarnings("ignore:series of data without a window")
def test_parts_of_a_split_have_their_features():
    data = load(shop_frame(2), **NAMES, known=["price"], past=["visitors"], static=STATIC)
    parts = data.split(context_length=2, prediction_length=1)
    for part in (parts.train, parts.fit, parts.tuning, parts.test, parts.backtest):
        for entry in part.entries():
            offset = 100 if entry["item_id"] == "a" else 0
            expected = entry["target"] - offset / 10 + offset
            assert np.array_equal(entry["feat_dynamic_real"][0], expected)
            assert entry["past_feat_dynamic_real"].shape == (1, len(entry["target"]))
    # What is known beyond the end belongs to the parts that reach it.
    assert parts.backtest.entries(horizon=2)[0]["feat_dynamic_real"].shape[1] == 30


def test_single_series_has_features_too():
    frame = shop_frame().query("shop == 'b'").drop(columns="shop")
    data = load(
        frame, timestamp="day", target="sales", known=["price"], past=["visitors"]
    )
    assert data.item_ids == ("sales",)
    assert data.entries()[0]["feat_dynamic_real"].shape == (1, 30)


def test_constant_series_are_dropped_with_their_features():
    frame = shop_frame()
    frame.loc[frame["shop"] == "b", "sales"] = 1.0
    options = {**NAMES, "known": ["price"], "past": ["visitors"], "static": STATIC}
    data = load(frame, **options, constant="drop")
    entry = data.entries()[0]
    assert entry["feat_dynamic_real"][0, 0] == 100
    assert entry["feat_static_real"].tolist() == [3.5]


class TwoFeatures:
    def __init__(self, num_feat_dynamic_real=0, cardinality=None):
        """Take known features and categories."""


def test_estimators_are_told_of_the_features_they_can_use():
    data = load(shop_frame(), **NAMES, known=["price"], past=["visitors"], static=STATIC)
    with pytest.warns(ScottWarning, match="no argument for 'visitors', 'size'"):
        arguments = data.estimator_arguments(TwoFeatures)
    assert arguments == {"num_feat_dynamic_real": 1, "cardinality": [2, 2]}


def test_frames_of_autogluon_bring_their_static_features():
    frame = shop_frame()[["shop", "day", "sales"]].set_index(["shop", "day"])
    frame.index.names = ["item_id", "timestamp"]
    object.__setattr__(frame, "static_features", STATIC.set_index("item_id"))
    assert load(frame, target="sales").features.cardinalities == (2, 2)


class FeaturesByField:
    """Takes features by the fields of entries, as PyTorchTS' TFT does."""

    def __init__(
        self,
        static_cardinalities=None,
        static_feature_dims=None,
        dynamic_feature_dims=None,
        past_dynamic_features=(),
    ):
        """Take all features."""


def test_estimators_are_told_of_features_by_field():
    options = {**NAMES, "known": ["price"], "past": ["visitors"]}
    data = load(shop_frame(), **options, static=STATIC.drop(columns="new"))
    assert data.estimator_arguments(FeaturesByField) == {
        "static_cardinalities": {"feat_static_cat": 2},
        "static_feature_dims": {"feat_static_real": 1},
        "dynamic_feature_dims": {"feat_dynamic_real": 1, "past_feat_dynamic_real": 1},
        "past_dynamic_features": ["past_feat_dynamic_real"],
    }
    data = load(shop_frame()[list(NAMES.values())], **NAMES, static=STATIC)
    with pytest.warns(ScottWarning, match=r"no argument for 'town', 'new'.* use them"):
        arguments = data.estimator_arguments(FeaturesByField)
    assert arguments == {"static_feature_dims": {"feat_static_real": 1}}


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        (
            None,
            {"known": ["prize"]},
            FileLayoutError,
            "'prize' is not a column .*'price'",
        ),
        (None, {"known": "price"}, ArgumentError, "expected a list"),
        (None, {"known": ["sales"]}, ArgumentError, "also the column"),
        ("hole", {"known": ["price"]}, DataError, "'price' of series 'b' is missing"),
        ("gap", {"known": ["price"]}, DataError, "missing at 2024-01-04"),
        ("text", {"known": ["price"]}, FileLayoutError, "not a number"),
        (None, {"static": STATIC[:1]}, FileLayoutError, "no row for series 'b'"),
        (None, {"static": pd.concat([STATIC, STATIC])}, FileLayoutError, "several rows"),
        (None, {"static": [1]}, ArgumentError, "expected a DataFrame"),
    ],
)
@pytest.mark.filterwarnings("ignore:Columns that were not read")
def test_mistakes_in_features_are_told(change, options, error, message):
    frame = shop_frame()
    if change == "hole":
        frame.loc[3, "price"] = np.nan
    elif change == "gap":
        frame = frame.drop(index=3)
    elif change == "text":
        frame["price"] = frame["price"].astype(object)
        frame.loc[3, "price"] = "cheap"
    with pytest.raises(error, match=message):
        load(frame, **NAMES, **options)


def test_features_that_end_too_early_are_told():
    data = load(shop_frame(2), **NAMES, known=["price"], past=["visitors"])
    with pytest.raises(DataError, match=r"reach 2 steps beyond .* a forecast needs 3"):
        data.entries(horizon=3)
