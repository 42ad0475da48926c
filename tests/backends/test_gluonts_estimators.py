"""Classes that `with_scott` makes of GluonTS' estimators: arguments, copies and files."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from gluonts.core import serde
from helpers.training import quiet_trainer

pytest.importorskip("gluonts.torch.scaler", reason="GluonTS 0.9 has no such estimators")

from gluonts.torch.model.deepar import DeepAREstimator
from helpers.gluonts_models import MODELS, dataset_of, estimator_of

from pts_scott import ScottTrainer, Stratifier, VAREstimator, with_scott
from pts_scott.errors import ArgumentError, UnknownArgumentError


def test_class_has_its_parents_arguments_and_a_trainer():
    estimator = with_scott(DeepAREstimator)
    names = list(inspect.signature(estimator).parameters)
    parents = list(inspect.signature(DeepAREstimator.__init__).parameters)[1:]
    assert names == [*parents, "trainer"]
    assert issubclass(estimator, DeepAREstimator)
    assert with_scott(DeepAREstimator) is estimator
    assert with_scott(estimator) is estimator
    assert isinstance(estimator("h", 4).trainer, ScottTrainer)


def test_estimator_is_serialised_like_its_parent():
    trainer = quiet_trainer(optimizer="adam", gamma=0.2)
    estimator = with_scott(DeepAREstimator)("h", 4, hidden_size=8, trainer=trainer)
    for again in (
        serde.load_json(serde.dump_json(estimator)),
        pickle.loads(pickle.dumps(estimator)),
    ):
        assert type(again) is type(estimator)
        assert again.hidden_size == 8
        assert again.trainer.optimizer == "adam"
        assert again.trainer.hyperparameters.gamma == 0.2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"freq": "D"}, ArgumentError, "multiple values for argument 'freq'"),
        ({"lr": 0.1}, ArgumentError, r"ScottTrainer\(learning_rate=...\)"),
        ({"batch_size": 7}, ArgumentError, r"ScottTrainer\(batch_size=...\)"),
        ({"trainer_kwargs": {"max_epochs": 3}}, ArgumentError, "the trainer controls"),
        ({"hiden_size": 8}, UnknownArgumentError, "Did you mean 'hidden_size'"),
        ({"trainer": 3}, ArgumentError, "expected a ScottTrainer"),
    ],
)
def test_wrong_arguments_raise(arguments, error, message):
    with pytest.raises(error, match=message):
        with_scott(DeepAREstimator)("h", 4, **arguments)


@pytest.mark.parametrize("given", [int, "DeepAR", [], VAREstimator])
def test_anything_but_an_estimator_class_raises(given):
    with pytest.raises(
        ArgumentError, match="takes a subclass of.*take trainer= directly"
    ):
        with_scott(given)
    with pytest.raises(ArgumentError, match=r"write with_scott\(DeepAREstimator\)\("):
        with_scott(DeepAREstimator("h", 4))


class KeywordArguments(DeepAREstimator):
    """A custom estimator that passes most of its arguments on."""

    def __init__(self, extra=1, **kwargs):
        super().__init__(**kwargs)
        self.extra = extra


class PositionalArguments(DeepAREstimator):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class BothArguments(DeepAREstimator):
    def __init__(self, *args, extra=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = extra


class OwnTraining(DeepAREstimator):
    def train_model(self, *args, **kwargs):
        raise NotImplementedError


def test_estimator_with_its_own_train_model_raises():
    with pytest.raises(ArgumentError, match="OwnTraining has its own train_model"):
        with_scott(OwnTraining)


def test_custom_subclass_passes_its_arguments_on():
    estimator = with_scott(KeywordArguments)(freq="h", prediction_length=4, extra=7)
    assert (estimator.extra, estimator.prediction_length) == (7, 4)
    assert with_scott(PositionalArguments)("h", 4, hidden_size=8).hidden_size == 8
    estimator = with_scott(BothArguments)("h", 4, extra=5, hidden_size=8)
    assert (estimator.extra, estimator.hidden_size) == (5, 8)
    with pytest.raises(UnknownArgumentError, match="Did you mean 'hidden_size'"):
        with_scott(KeywordArguments)(freq="h", prediction_length=4, hiden_size=8)


class Derived(with_scott(DeepAREstimator)):
    """A custom subclass of an estimator with SCott."""


def test_copies_keep_the_class_and_changed_attributes():
    for estimator in (Derived("h", 4), with_scott(DeepAREstimator)("h", 4)):
        estimator.dropout_rate = 0.7
        for again in (copy.deepcopy(estimator), pickle.loads(pickle.dumps(estimator))):
            assert type(again) is type(estimator)
            assert again.dropout_rate == 0.7
    with pytest.raises(ArgumentError, match="make the subclass first"):
        serde.dump_json(Derived("h", 4))


def test_estimator_can_be_pickled_after_training():
    estimator = estimator_of("DeepAR", num_batches_per_epoch=2)
    estimator.train(dataset_of(MODELS["DeepAR"]))
    again = pickle.loads(pickle.dumps(estimator))
    assert len(again.trainer.history) == len(estimator.trainer.history)


@pytest.mark.parametrize("used", [0, 1])
def test_a_custom_stratifier_sees_the_datasets_own_features(used):
    # DeepAR stacks them with time features, and replaces those that it does not use.
    holidays = np.isin(np.arange(60), [20, 41]).astype(float)
    entries = [
        {
            "item_id": str(number),
            "start": pd.Period("2024-01-01", "D"),
            "target": np.arange(60.0),
            "feat_dynamic_real": holidays[None],
            "feat_static_cat": [number],
        }
        for number in range(3)
    ]
    estimator = with_scott(DeepAREstimator)(
        freq="D",
        prediction_length=2,
        num_feat_dynamic_real=used,
        lags_seq=[1],
        trainer=quiet_trainer(),
    )
    windows = estimator.create_windows(entries)
    starts = windows.locate(torch.arange(len(windows)))[1].numpy()
    expected = int((holidays[starts] + holidays[starts + 1] > 0).sum())
    by_series = Stratifier.custom(lambda _, start, w: int(w["feat_static_cat"][0]))
    assert len(by_series.stratify(windows)) == 3
    by_holiday = Stratifier.custom(
        lambda _, start, w: bool(w["future_feat_dynamic_real"].any())
    )
    table = by_holiday.stratify(windows).table().set_index("label")
    assert table.loc["True", "windows"] == expected > 0
