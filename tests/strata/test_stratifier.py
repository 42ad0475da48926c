"""Stratifier: every policy, as a Transformation, over the index, and serialised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gluonts.core import serde
from gluonts.dataset.common import ListDataset
from gluonts.transform import AddObservedValuesIndicator, Chain
from helpers.instances import splitter
from helpers.series import wave_windows
from helpers.strata import PARTS_OF
from helpers.training import quiet_trainer, tiny_network
from hypothesis import given, settings
from hypothesis import strategies as st

from pts_scott import Stratifier, WindowIndex
from pts_scott.strata.codes import Codes


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
def test_fitted_policy_survives_gluonts_serialisation(policy):
    windows = wave_windows()
    fitted = policy.fit(windows)
    decoded = serde.load_json(serde.dump_json(fitted))
    assert repr(decoded) == repr(policy)
    expected = fitted.codes(windows).expand(windows)
    np.testing.assert_array_equal(decoded.codes(windows).expand(windows), expected)


POLICIES = [
    Stratifier.calendar("hour"),
    Stratifier.periodic(3),
    Stratifier.ranges(3),
    Stratifier.series(),
    Stratifier.random(4),
    Stratifier.finest(),
    Stratifier.kmeans(3),
    Stratifier.custom(by_parity),
    Stratifier.ranges(3) * Stratifier.series(),
    Stratifier.parse("ranges(3) * series()"),
]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_every_policy_is_an_instance_of_stratifier(policy):
    assert isinstance(policy, Stratifier)
    assert issubclass(type(policy), Stratifier)
    assert not isinstance(policy, HalfDays)


@pytest.mark.parametrize(
    "other",
    ["series()", None, AddObservedValuesIndicator("target", "observed")],
    ids=type,
)
def test_other_objects_are_not_stratifiers(other):
    assert not isinstance(other, Stratifier)
    assert not issubclass(type(other), Stratifier)
    with pytest.raises(TypeError):
        Stratifier.series() * other


class HalfDays(Stratifier):
    """A user's own policy: mornings and afternoons."""

    def __init__(self, noon: int = 12) -> None:
        self.noon = noon

    def codes(self, windows: WindowIndex) -> Codes:
        moments = windows.series.timeline.moments
        return Codes(moments=(moments.hour >= self.noon).astype(np.int64))

    def code(self, instance: Mapping[str, Any]) -> int:
        return int(pd.Timestamp(instance["forecast_start"]).hour >= self.noon)

    def _arguments(self) -> dict[str, Any]:
        return {"noon": self.noon}


def test_user_subclass_is_a_policy_like_any_other(windows):
    policy = HalfDays()
    assert isinstance(policy, Stratifier)
    assert policy.describe(windows)["label"].tolist() == ["code 0", "code 1"]
    for product in (policy * Stratifier.series(), Stratifier.series() * policy):
        assert isinstance(product, Stratifier)
        assert len(product.stratify(windows)) == 6
    instance = {"item_id": "a", "forecast_start": pd.Timestamp("2024-05-15 13:00")}
    (tagged,) = policy(iter([instance]), is_train=True)
    assert tagged["stratum"] == 1


def test_trainer_accepts_a_user_subclass(windows):
    trainer = quiet_trainer(method="scott", stratifier=HalfDays())
    trainer.fit(tiny_network(), windows)
    assert trainer.history["anchors"].iloc[-1] > 0


def test_base_class_alone_cannot_be_instantiated():
    with pytest.raises(TypeError, match="abstract"):
        Stratifier()
