"""Learned strata: planted structure, labels, the transformation, and serialisation."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from gluonts.core import serde
from gluonts.dataset.common import ListDataset
from gluonts.transform import Chain, InstanceSplitter
from helpers.series import EveryWindow

from pts_scott import Stratifier, WindowIndex
from pts_scott.diagnostics.sampler_choice import Measured, SamplerChoice
from pts_scott.errors import NotFittedError, StratificationError
from pts_scott.strata.partition import Strata

CONTEXT, PREDICTION = 12, 3


def entries(count: int = 6, length: int = 300) -> list[dict]:
    rng = np.random.default_rng(0)
    return [
        {
            "item_id": f"s{k}",
            "start": "2021-01-01",
            "target": (10.0 * (k + 1) + rng.standard_normal(length)).astype(np.float32),
        }
        for k in range(count)
    ]


@pytest.fixture(scope="module")
def index() -> WindowIndex:
    return WindowIndex.from_dataset(
        ListDataset(entries(), freq="h"), "h", CONTEXT, PREDICTION
    )


def is_large(index: WindowIndex, numbers: np.ndarray) -> np.ndarray:
    """Return the planted structure: large gradients in two series, before noon."""
    series, rows = index.rows(numbers)
    hours = index.series.timeline.moments[rows].hour
    return np.isin(series, [1, 4]) & (hours < 12)


def planted(index, numbers, seed=0):
    rng = np.random.default_rng(seed)
    size = np.where(is_large(index, numbers), 10.0, 1.0)
    return size[:, None] * rng.standard_normal((len(numbers), 8))


@pytest.fixture(scope="module")
def numbers(index):
    return np.random.default_rng(1).integers(0, len(index), 600)


@pytest.fixture(scope="module")
def fitted(index, numbers):
    sketches = planted(index, numbers) + 5 * is_large(index, numbers)[:, None]
    return Stratifier.learned(8).fit_gradients(index, numbers, sketches)


def test_planted_structure_is_recovered(index, fitted):
    everything = np.arange(len(index))
    codes, large = fitted.codes_at(index, everything), is_large(index, everything)
    majority = pd.Series(large).groupby(codes).transform("mean") > 0.5
    assert (majority == large).mean() > 0.97


def test_gains_of_planted_structure_hold_out_of_sample(index, numbers):
    sketches = torch.from_numpy(planted(index, numbers))
    choice = SamplerChoice(index, {"learned": Stratifier.learned(8)}, 32)
    (finding,) = choice.compare(Measured(numbers, sketches), np.arange(len(index)))
    assert finding.spread.is_gain
    # Neyman's bound: (w σ + w' σ')² / (w σ² + w' σ'²) with w = 1/6, σ = 10, σ' = 1.
    bound = (10 / 6 + 5 / 6) ** 2 / (100 / 6 + 5 / 6)
    assert bound <= finding.spread.value < bound + 0.25


def test_permuted_gradients_show_no_spurious_gain(index, numbers):
    rng = np.random.default_rng(2)
    gains = []
    for _ in range(20):
        sketches = planted(index, numbers)[rng.permutation(len(numbers))]
        choice = SamplerChoice(index, {"learned": Stratifier.learned(8)}, 32)
        measured = Measured(numbers, torch.from_numpy(sketches))
        (finding,) = choice.compare(measured, np.arange(len(index)))
        gains += [finding.spread.is_gain, finding.proportional.is_gain]
    # Two standard errors: one in forty by chance.
    assert sum(gains) <= 4


def test_fitted_policy_equals_its_transformation(index, fitted):
    splitter = InstanceSplitter(
        target_field="target",
        is_pad_field="is_pad",
        start_field="start",
        forecast_start_field="forecast_start",
        instance_sampler=EveryWindow(min_past=CONTEXT, min_future=PREDICTION),
        past_length=CONTEXT,
        future_length=PREDICTION,
    )
    chain = Chain([splitter, fitted])
    tagged = [
        instance["stratum"]
        for instance in chain(ListDataset(entries(), "h"), is_train=True)
    ]
    codes = fitted.codes(index).windows
    assert tagged == codes.tolist()
    assert len(set(tagged)) > 2


def test_fitting_is_deterministic(index, numbers):
    sketches = planted(index, numbers)
    first, second = (
        Stratifier.learned(8, seed=3).fit_gradients(index, numbers, sketches)
        for _ in range(2)
    )
    assert np.array_equal(first.nodes, second.nodes)


@pytest.mark.parametrize(
    "again",
    [
        lambda policy: serde.load_json(serde.dump_json(policy)),
        lambda policy: Stratifier.learned(8).with_learned(policy.learned_state()),
    ],
)
def test_serialised_policy_gives_the_same_strata(again, index, fitted):
    copy = again(fitted)
    assert np.array_equal(copy.codes(index).windows, fitted.codes(index).windows)
    assert copy.leaf_labels() == fitted.leaf_labels()


def test_product_with_a_learned_policy_is_fitted_and_restored(index, numbers):
    product = Stratifier.learned(4) * Stratifier.calendar("weekend")
    assert product.needs_gradients
    sketches = planted(index, numbers)
    done = product.fit_gradients(index, numbers, sketches)
    assert not done.needs_gradients
    again = product.with_learned(done.learned_state())
    strata, same = done.stratify(index), again.stratify(index)
    assert torch.equal(strata.order, same.order)
    members = strata.members(np.arange(len(index)))
    assert np.array_equal(
        members,
        np.searchsorted(strata.codes, done.codes_at(index, np.arange(len(index)))),
    )


@pytest.mark.parametrize("swapped", [False, True])
def test_fitted_factor_of_a_product_stays_as_it_is(index, numbers, fitted, swapped):
    factors = [fitted, Stratifier.learned(4)]
    product = factors[1] * factors[0] if swapped else factors[0] * factors[1]
    done = product.fit_gradients(index, numbers, planted(index, numbers, seed=7))
    kept, learned = done.factors()[::-1] if swapped else done.factors()
    assert kept is fitted
    assert learned.strata == 4
    again = product.with_learned(done.learned_state())
    everything = np.arange(len(index))
    for factor, restored in zip(done.factors(), again.factors(), strict=True):
        found = restored.codes_at(index, everything)
        assert np.array_equal(found, factor.codes_at(index, everything))


def test_labels_say_what_windows_have_in_common(index, fitted):
    strata = fitted.stratify(index)
    labels = strata.labels(range(len(strata)))
    assert len(set(labels)) == len(labels)
    large = np.array(
        [is_large(index, strata.order.numpy()[[s]])[0] for s in strata.starts]
    )
    for label, is_part in zip(labels, large, strict=True):
        if is_part:
            assert "hour 0 to 11" in label or "hour" in label
            assert "s1" in label or "s4" in label


def test_pool_has_the_strata_of_its_windows(index, fitted):
    pool = np.arange(0, len(index), 3)
    strata = Strata.of_pool(fitted, index, pool)
    assert sorted(strata.order.tolist()) == pool.tolist()
    codes = fitted.codes_at(index, strata.order.numpy())
    expected = np.repeat(strata.codes, strata.sizes.numpy())
    assert np.array_equal(codes, expected)
    assert strata.labels([0]) == [fitted.leaf_labels()[int(strata.codes[0])]]


def test_few_measured_windows_make_few_strata(index):
    numbers = np.arange(0, len(index), len(index) // 20)[:20]
    fitted = Stratifier.learned(32).fit_gradients(index, numbers, planted(index, numbers))
    assert 1 <= len(fitted.stratify(index)) <= 2


def test_codes_in_chunks_equal_codes_at_once(index, fitted, monkeypatch):
    expected = fitted.codes(index).windows
    monkeypatch.setattr("pts_scott.strata.learned.CHUNK", 100)
    assert np.array_equal(fitted.codes(index).windows, expected)


def test_unfitted_policy_says_how_it_is_fitted(index):
    with pytest.raises(NotFittedError, match="found from gradients during training"):
        Stratifier.learned(8).stratify(index)


def test_unknown_series_are_named(fitted):
    instance = {
        "item_id": "new",
        "forecast_start": pd.Period("2021-01-02", "h"),
        "past_target": np.ones(CONTEXT, dtype=np.float32),
    }
    with pytest.raises(StratificationError, match="knows no series 'new'"):
        fitted.code(instance)


def test_other_frequencies_are_refused(fitted):
    daily = ListDataset(entries(length=60), freq="D")
    index = WindowIndex.from_dataset(daily, "D", CONTEXT, PREDICTION)
    with pytest.raises(StratificationError, match="hour"):
        fitted.stratify(index)


def test_text_of_a_config_makes_the_policy():
    assert str(Stratifier.parse("learned(16)")) == "Stratifier.learned(16)"


def test_copies_do_not_hold_the_windows(index, fitted):
    fitted.codes(index)
    again = pickle.loads(pickle.dumps(fitted))
    assert len(pickle.dumps(fitted)) < 20_000
    assert np.array_equal(again.codes(index).windows, fitted.codes(index).windows)


def test_series_of_one_name_are_one_series(numbers):
    repeated = [{**e, "item_id": "s0"} for e in entries()]
    same = WindowIndex.from_dataset(
        ListDataset(repeated, freq="h"), "h", CONTEXT, PREDICTION
    )
    fitted = Stratifier.learned(8).fit_gradients(same, numbers, planted(same, numbers))
    again = Stratifier.learned(8).with_learned(fitted.learned_state())
    assert np.array_equal(again.codes(same).windows, fitted.codes(same).windows)
