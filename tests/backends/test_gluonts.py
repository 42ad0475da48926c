"""GluonTS' own estimators with SCott: one contract, every model."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gluonts.core import serde
from gluonts.dataset.common import ListDataset
from gluonts.evaluation import Evaluator, make_evaluation_predictions
from helpers.instances import doubled, library_batch, splits_of
from helpers.library_contract import assert_survive_into_a_fresh_process, documented
from helpers.training import quiet_trainer
from test_scott import STRATIFIER, reference_path, train

pytest.importorskip("gluonts.torch.scaler", reason="GluonTS 0.9 has no such estimators")

from gluonts.itertools import Filter, Map
from gluonts.torch.model.d_linear import DLinearEstimator
from gluonts.torch.model.deep_npts import (
    DeepNPTSEstimator,
    DeepNPTSNetworkDiscrete,
    DeepNPTSNetworkSmooth,
)
from gluonts.torch.model.deepar import DeepAREstimator
from gluonts.torch.model.i_transformer import ITransformerEstimator
from gluonts.torch.model.lag_tst import LagTSTEstimator
from gluonts.torch.model.mqf2 import MQF2MultiHorizonEstimator
from gluonts.torch.model.patch_tst import PatchTSTEstimator
from gluonts.torch.model.simple_feedforward import (
    SimpleFeedForwardEstimator,
)
from gluonts.torch.model.tft import TemporalFusionTransformerEstimator
from gluonts.torch.model.tide import TiDEEstimator
from gluonts.torch.model.wavenet import WaveNetEstimator
from gluonts.transform import (
    Chain,
    ExpectedNumInstanceSampler,
    FilterTransformation,
    SelectFields,
)

from pts_scott import ScottTrainer, Stratifier, VAREstimator, with_scott
from pts_scott._utils.rng import isolated_rng
from pts_scott.backends import gluonts as backend
from pts_scott.data.pipeline import Pipeline
from pts_scott.engine.losses import Losses, evaluate
from pts_scott.errors import (
    ArgumentError,
    EmptyDatasetError,
    MixedFrequencyError,
    ScottWarning,
    UnknownArgumentError,
    WindowLossError,
)

LENGTHS = {"prediction_length": 4, "context_length": 12}
TRANSFORMER = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "num_encoder_layers": 1}

#: Of GluonTS' DeepNPTS, whose embeddings are in a plain list.
NPTS_WARNING = "ignore:GluonTS holds DeepNPTS' embeddings:pts_scott.errors.ScottWarning"


@dataclass(frozen=True)
class Model:
    """An estimator, its arguments, and those by which it takes features."""

    estimator: type
    arguments: dict[str, Any]
    features: dict[str, Any] = field(default_factory=dict)
    multivariate: bool = False


MODELS = {
    "SimpleFeedForward": Model(SimpleFeedForwardEstimator, LENGTHS),
    "DeepAR": Model(
        DeepAREstimator,
        {**LENGTHS, "freq": "h", "hidden_size": 8, "lags_seq": [1, 2, 24]},
        {
            "num_feat_dynamic_real": 2,
            "num_feat_static_cat": 1,
            "num_feat_static_real": 2,
            "cardinality": [4],
        },
    ),
    "TFT": Model(
        TemporalFusionTransformerEstimator,
        {**LENGTHS, "freq": "h", "hidden_dim": 8, "variable_dim": 8},
        {
            "dynamic_dims": [2],
            "past_dynamic_dims": [1],
            "static_dims": [2],
            "static_cardinalities": [4],
        },
    ),
    "PatchTST": Model(
        PatchTSTEstimator,
        {**LENGTHS, **TRANSFORMER, "patch_len": 4},
        {"num_feat_dynamic_real": 2},
    ),
    "DLinear": Model(DLinearEstimator, LENGTHS),
    "LagTST": Model(LagTSTEstimator, {**LENGTHS, **TRANSFORMER, "freq": "h"}),
    "TiDE": Model(
        TiDEEstimator,
        {**LENGTHS, "freq": "h"},
        {
            "num_feat_dynamic_real": 2,
            "num_feat_static_cat": 1,
            "num_feat_static_real": 2,
            "cardinality": [4],
        },
    ),
    "WaveNet": Model(
        WaveNetEstimator,
        {"prediction_length": 4, "freq": "h", "num_bins": 64},
        {"num_feat_dynamic_real": 2, "num_feat_static_cat": 1, "cardinality": [4]},
    ),
    "iTransformer": Model(
        ITransformerEstimator, {**LENGTHS, **TRANSFORMER}, multivariate=True
    ),
    "MQF2": Model(
        MQF2MultiHorizonEstimator,
        {
            **{**LENGTHS, "freq": "h", "hidden_size": 8, "lags_seq": [1, 2]},
            **{"icnn_hidden_size": 8, "icnn_num_layers": 1},
        },
    ),
}
UNIVARIATE = [name for name, model in MODELS.items() if not model.multivariate]
WITH_FEATURES = [name for name, model in MODELS.items() if model.features]


def dataset(
    model: Model, missing: bool = False, length: int = 160, short: int = 0
) -> ListDataset:
    """Waves with a little noise, and features of every kind."""
    generator = np.random.default_rng(0)
    entries = []
    for number in range(4):
        steps = length - short * number
        time = np.arange(steps)
        target = 4 + number + np.sin(2 * np.pi * (time + number) / 12)
        target = target + 0.1 * generator.standard_normal(steps)
        if missing:
            target[60:66] = np.nan
        entries.append(
            {
                "item_id": f"s{number}",
                "start": pd.Period("2024-01-01", freq="h"),
                "target": target,
                "feat_dynamic_real": generator.standard_normal((2, steps)),
                "past_feat_dynamic_real": generator.standard_normal((1, steps)),
                "feat_static_cat": [number],
                "feat_static_real": [0.5, float(number)],
            }
        )
    if model.multivariate:
        target = np.stack([entry["target"] for entry in entries])
        entries = [{"item_id": "all", "start": entries[0]["start"], "target": target}]
    return ListDataset(entries, freq="h", one_dim_target=not model.multivariate)


def estimator_of(name: str, features: bool = False, **trainer: Any) -> Any:
    model = MODELS[name]
    settings = {"optimizer": "adam", "learning_rate": 1e-2, "num_batches_per_epoch": 60}
    settings |= {"batch_size": 8, **trainer}
    arguments = {**model.arguments, **(model.features if features else {})}
    return with_scott(model.estimator)(**arguments, trainer=quiet_trainer(**settings))


def windows_of(estimator: Any, module: Any, data: ListDataset) -> Any:
    entries = backend._ReadOnce(data, estimator.create_transformation())
    return backend._windows(
        estimator.create_training_data_loader(entries, module), entries
    )


def mean_loss(estimator: Any, module: Any, data: ListDataset) -> float:
    windows = windows_of(estimator, module, data)
    losses = Losses(backend.LibraryLosses(module.model, windows.fields), windows.fields)
    return float(evaluate(losses, windows))


# -- what goes in ---------------------------------------------------------------------


def assert_batches_of_the_library(estimator: Any, data: ListDataset) -> None:
    module = estimator.create_lightning_module()
    loader = estimator.create_training_data_loader([], module)
    parts: list[Any] = []
    chain = loader.iterable
    while hasattr(chain, "transformation"):
        parts.insert(0, chain.transformation)
        chain = chain.base_dataset
    flat = []
    for part in parts:
        flat += part.transformations if isinstance(part, Chain) else [part]
    flat = flat[: 1 + [type(p).__name__ for p in flat].index("SelectFields")]
    windows = windows_of(estimator, module, data)
    transformed = list(estimator.create_transformation().apply(data, is_train=True))
    generator = torch.Generator().manual_seed(0)
    numbers = torch.cat(
        [torch.tensor([0, len(windows) - 1]), windows.draw(40, generator)]
    )
    splits = [splits_of(windows)[number] for number in numbers.tolist()]
    found, expected = (
        windows.gather(numbers),
        library_batch(Chain(flat), transformed, splits),
    )
    assert set(found) == set(expected)
    for key, values in expected.items():
        # WaveNet's scale is a sum, of which the order may differ.
        tolerance = 1e-6 if key == "scale" else 0
        assert found[key].dtype == values.dtype, key
        torch.testing.assert_close(
            found[key], values, rtol=tolerance, atol=0, msg=lambda m, k=key: k + m
        )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("missing", [False, True])
def test_batches_are_those_of_the_librarys_splitter(name, missing):
    data = dataset(MODELS[name], missing)
    assert_batches_of_the_library(estimator_of(name), data)


@pytest.mark.parametrize("name", WITH_FEATURES)
def test_batches_hold_features_of_every_kind(name):
    data = dataset(MODELS[name], short=7)
    assert_batches_of_the_library(estimator_of(name, features=True), data)


class Larger(SimpleFeedForwardEstimator):
    """A user's own, which does something to the data on their way."""

    def create_training_data_loader(self, data, module, **kwargs):
        larger = Map(lambda e: {**e, "target": 1000 * e["target"]}, data)
        return super().create_training_data_loader(larger, module, **kwargs)


class OnlyOne(SimpleFeedForwardEstimator):
    def create_training_data_loader(self, data, module, **kwargs):
        one = list(Filter(lambda entry: entry["item_id"] == "s1", data))
        return super().create_training_data_loader(one, module, **kwargs)


class Counted(SimpleFeedForwardEstimator):
    def create_training_data_loader(self, data, module, **kwargs):
        assert len(list(data)) == len(list(data)) == 4  # a look at them beforehand
        return super().create_training_data_loader(data, module, **kwargs)


class Thinned(SimpleFeedForwardEstimator):
    def create_transformation(self):
        odd = FilterTransformation(lambda entry: entry["item_id"] in ("s1", "s3"))
        return odd + super().create_transformation()


@pytest.mark.parametrize(
    ("own", "series", "level"),
    [(Larger, 4, 1000), (OnlyOne, 1, 1), (Counted, 4, 1), (Thinned, 2, 1)],
)
def test_what_a_users_estimator_does_to_the_data_is_done(own, series, level):
    estimator = with_scott(own)(**LENGTHS, trainer=quiet_trainer())
    module = estimator.create_lightning_module()
    windows = windows_of(estimator, module, dataset(MODELS["SimpleFeedForward"]))
    assert len(windows.series.item_ids) == series
    assert float(windows.series.values.max()) > 5 * level
    estimator.train(dataset(MODELS["SimpleFeedForward"]))


@pytest.mark.parametrize("name", ["SimpleFeedForward", "DLinear", "PatchTST", "DeepAR"])
@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_targets_of_any_type_are_trained_on(name, kind):
    target = (np.arange(160) % 7).astype(kind)
    entries = [{"start": pd.Period("2024-01-01", freq="h"), "target": target}]
    estimator = estimator_of(name, num_batches_per_epoch=2, method="plain")
    estimator.train(entries)
    assert np.isfinite(estimator.trainer.history["train_loss"]).all()


def test_weeks_may_end_on_any_day():
    arguments = {**LENGTHS, "lags_seq": [1, 2], "hidden_size": 4}
    target = np.arange(120.0) % 7
    entries = [{"start": pd.Period("2020-01-01", freq="W-MON"), "target": target}]
    trainer = quiet_trainer(method="plain", num_batches_per_epoch=2)
    with_scott(DeepAREstimator)(freq="W", **arguments, trainer=trainer).train(entries)
    with pytest.raises(MixedFrequencyError, match="W-MON"):
        with_scott(DeepAREstimator)(freq="W-TUE", **arguments).train(entries)


# -- what comes out -------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """Every model after a few steps, with features where it takes them."""
    predictors = {}
    for name, model in MODELS.items():
        estimator = estimator_of(name, features=True, num_batches_per_epoch=6)
        predictors[name] = estimator.train(dataset(model))
    return predictors


@pytest.mark.parametrize("method", ["scott", "plain"])
@pytest.mark.parametrize("name", MODELS)
def test_it_trains_and_the_loss_falls(name, method):
    estimator, data = estimator_of(name, method=method), dataset(MODELS[name])
    with isolated_rng(estimator.trainer.seed, torch.device("cpu")):
        untrained = estimator.create_lightning_module().eval()
    output = estimator.train_model(data)
    after = mean_loss(estimator, output.trained_net, data)
    before = mean_loss(estimator, untrained, data)
    assert after < before - 0.1 * abs(before)
    history = estimator.trainer.history
    assert history["step"].iloc[-1] == 60
    assert (history["anchors"].iloc[-1] > 0) == (method == "scott")
    assert output.trainer.global_step == 60


@pytest.mark.parametrize("name", MODELS)
def test_its_predictor_forecasts_and_backtests(name, trained):
    data = dataset(MODELS[name])
    forecasts, truth = make_evaluation_predictions(data, trained[name], num_samples=20)
    forecasts, truth = list(forecasts), list(truth)
    assert all(np.isfinite(f.quantile(0.5)).all() for f in forecasts)
    if MODELS[name].multivariate:
        from gluonts.evaluation import MultivariateEvaluator as Evaluation
    else:
        Evaluation = Evaluator  # noqa: N806
    metrics, _ = Evaluation(num_workers=0)(truth, forecasts)
    assert np.isfinite(metrics["ND"])


@pytest.mark.filterwarnings(NPTS_WARNING)
def test_predictors_survive_into_a_fresh_process(trained, tmp_path):
    data = {  # features reach over the range that is forecast
        name: [{**entry, "target": entry["target"][..., :-4]} for entry in dataset(model)]
        for name, model in MODELS.items()
    }
    data["DeepNPTS"] = data["DeepAR"]
    predictors = {**trained, "DeepNPTS": npts("scott").train(data["DeepAR"])}
    assert_survive_into_a_fresh_process(predictors, data, tmp_path)


@pytest.mark.parametrize("name", UNIVARIATE)
def test_missing_values_are_masked_as_the_library_masks_them(name):
    """The windows' mean loss is that of the library's own training step."""
    model = MODELS[name]
    estimator = estimator_of(name)
    data = dataset(model, missing=True)
    with isolated_rng(0, torch.device("cpu")):
        module = estimator.create_lightning_module().eval()
    windows = windows_of(estimator, module, data)
    numbers = torch.arange(50, 80)
    batch = windows.gather(numbers)
    network = backend.LibraryLosses(module.model, windows.fields)
    network.see_first(windows)
    losses = Losses(network, windows.fields)
    module.log = lambda *args, **kwargs: None
    with torch.no_grad():
        with isolated_rng(1, torch.device("cpu")):  # MQF2's loss is random
            expected = module.training_step(batch, 0)
        with isolated_rng(1, torch.device("cpu")):
            found = losses(batch).mean()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["DeepAR", "LagTST", "WaveNet"])
def test_a_context_without_a_value_does_not_borrow_its_neighbours_scale(name):
    data = list(dataset(MODELS[name]))
    for entry in data:
        entry["target"][60:90] = np.nan
    estimator = estimator_of(name, num_batches_per_epoch=2)
    with isolated_rng(0, torch.device("cpu")):
        module = estimator.create_lightning_module().eval()
    windows = windows_of(estimator, module, data)
    network = backend.LibraryLosses(module.model, windows.fields)
    losses = Losses(network, windows.fields)
    starts = torch.tensor([start for _, start in splits_of(windows)])
    empty, full = (int((starts == step).nonzero()[0]) for step in (88, 140))
    with torch.no_grad(), network.own_scales(windows):
        together = losses(windows.gather(torch.tensor([empty, full])))
        alone = losses(windows.gather(torch.tensor([empty])))
    torch.testing.assert_close(together[:1], alone)
    trained = estimator.train_model(data).trained_net.model
    assert getattr(getattr(trained, "scaler", None), "default_scale", None) is None


# -- the class ------------------------------------------------------------------------


def test_it_has_the_parents_arguments_and_a_trainer():
    estimator = with_scott(DeepAREstimator)
    names = list(inspect.signature(estimator).parameters)
    parents = list(inspect.signature(DeepAREstimator.__init__).parameters)[1:]
    assert names == [*parents, "trainer"]
    assert issubclass(estimator, DeepAREstimator)
    assert with_scott(DeepAREstimator) is estimator
    assert with_scott(estimator) is estimator
    assert isinstance(estimator("h", 4).trainer, ScottTrainer)


def test_it_is_serialised_like_its_parent():
    trainer = quiet_trainer(optimizer="adam", gamma=0.2)
    estimator = with_scott(DeepAREstimator)("h", 4, hidden_size=8, trainer=trainer)
    for again in (
        serde.load_json(serde.dump_json(estimator)),
        pickle.loads(pickle.dumps(estimator)),
    ):
        assert type(again) is type(estimator)
        assert again.hidden_size == 8
        assert again.trainer.optimizer == "adam"
        assert again.trainer.settings.gamma == 0.2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"freq": "D"}, ArgumentError, "multiple values for argument 'freq'"),
        ({"lr": 0.1}, ArgumentError, r"ScottTrainer\(learning_rate=...\)"),
        ({"batch_size": 7}, ArgumentError, r"ScottTrainer\(batch_size=...\)"),
        ({"trainer_kwargs": {"max_epochs": 3}}, ArgumentError, "the trainer decides"),
        ({"hiden_size": 8}, UnknownArgumentError, "Did you mean 'hidden_size'"),
        ({"trainer": 3}, ArgumentError, "expected a ScottTrainer"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        with_scott(DeepAREstimator)("h", 4, **arguments)


@pytest.mark.parametrize("given", [int, "DeepAR", [], VAREstimator])
def test_only_estimator_classes_are_taken(given):
    with pytest.raises(
        ArgumentError, match="takes a class of.*take trainer= as they are"
    ):
        with_scott(given)
    with pytest.raises(ArgumentError, match=r"write with_scott\(DeepAREstimator\)\("):
        with_scott(DeepAREstimator("h", 4))


class Mine(DeepAREstimator):
    """A user's own, which hands most of its arguments on."""

    def __init__(self, mine=1, **kwargs):
        super().__init__(**kwargs)
        self.mine = mine


class MineByPlace(DeepAREstimator):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class MineWithMore(DeepAREstimator):
    def __init__(self, *args, mine=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.mine = mine


class OwnTraining(DeepAREstimator):
    def train_model(self, *args, **kwargs):
        raise NotImplementedError


def test_a_way_to_train_of_the_users_own_is_not_passed_over():
    with pytest.raises(ArgumentError, match="OwnTraining has a train_model of its own"):
        with_scott(OwnTraining)


def test_a_users_subclass_hands_its_arguments_on():
    estimator = with_scott(Mine)(freq="h", prediction_length=4, mine=7)
    assert (estimator.mine, estimator.prediction_length) == (7, 4)
    assert with_scott(MineByPlace)("h", 4, hidden_size=8).hidden_size == 8
    estimator = with_scott(MineWithMore)("h", 4, mine=5, hidden_size=8)
    assert (estimator.mine, estimator.hidden_size) == (5, 8)
    with pytest.raises(UnknownArgumentError, match="Did you mean 'hidden_size'"):
        with_scott(Mine)(freq="h", prediction_length=4, hiden_size=8)


class Derived(with_scott(DeepAREstimator)):
    """A user's own, made of an estimator with SCott."""


def test_copies_are_of_the_same_class_and_know_what_was_set():
    for estimator in (Derived("h", 4), with_scott(DeepAREstimator)("h", 4)):
        estimator.dropout_rate = 0.7
        for again in (copy.deepcopy(estimator), pickle.loads(pickle.dumps(estimator))):
            assert type(again) is type(estimator)
            assert again.dropout_rate == 0.7
    with pytest.raises(ArgumentError, match="make the subclass first"):
        serde.dump_json(Derived("h", 4))


def test_an_estimator_can_be_pickled_after_training():
    estimator = estimator_of("DeepAR", num_batches_per_epoch=2)
    estimator.train(dataset(MODELS["DeepAR"]))
    again = pickle.loads(pickle.dumps(estimator))
    assert len(again.trainer.history) == len(estimator.trainer.history)


def test_windows_that_the_model_sees_in_bins_are_clustered_by_their_values():
    estimator = estimator_of(
        "WaveNet", stratifier=Stratifier.kmeans(3), num_batches_per_epoch=2
    )
    estimator.train(dataset(MODELS["WaveNet"]))
    assert len(estimator.trainer.strata) == 3


def test_training_goes_on_from_a_predictor():
    name = "DeepAR"
    data = dataset(MODELS[name])
    first = estimator_of(name)
    predictor = first.train(data)
    nothing = estimator_of(name, learning_rate=1e-12, num_batches_per_epoch=1)
    again = nothing.train_from(predictor, data)
    for one, other in zip(
        predictor.network.state_dict().values(), again.network.state_dict().values()
    ):
        torch.testing.assert_close(one, other)
    with pytest.raises(ArgumentError, match="train_from"):
        nothing.train(data, ckpt_path="last.ckpt")


def test_one_seed_gives_one_model():
    data = dataset(MODELS["TFT"])
    one, other = (estimator_of("TFT").train_model(data).trained_net for _ in range(2))
    for x, y in zip(one.parameters(), other.parameters()):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_validation_data_without_a_window_are_named():
    data = dataset(MODELS["DeepAR"])
    short = [{**entry, "target": entry["target"][:3]} for entry in data]
    with (
        pytest.warns(ScottWarning, match="are left out"),
        pytest.raises(EmptyDatasetError, match="^validation data: no series"),
    ):
        estimator_of("DeepAR").train(data, validation_data=short)


@pytest.mark.parametrize("where", ["training", "validation"])
def test_a_category_that_does_not_exist_is_traced_to_its_series(where):
    data = list(dataset(MODELS["DeepAR"]))
    bad = [dict(entry) for entry in data]
    bad[1]["feat_static_cat"] = np.array([4])  # of four, of which the first is 0
    estimator = estimator_of("DeepAR", features=True, num_batches_per_epoch=6)
    pair = (bad, None) if where == "training" else (data, bad)
    with pytest.raises(WindowLossError, match=r"fails on.*'s1 from 2024.*cardinality"):
        estimator.train(*pair)


def test_the_best_parameters_on_validation_data_are_kept():
    data = dataset(MODELS["DeepAR"])
    estimator = estimator_of("DeepAR", output="best", epochs=3, num_batches_per_epoch=20)
    output = estimator.train_model(data, validation_data=data)
    history = estimator.trainer.history["val_loss"].dropna()
    entries = backend._ReadOnce(data, output.transformation)
    loader = estimator.create_validation_data_loader(entries, output.trained_net)
    last = backend._windows(loader, entries)
    losses = backend.LibraryLosses(output.trained_net.model, last.fields)
    found = float(evaluate(Losses(losses, last.fields), last))
    assert found == pytest.approx(history.min(), rel=1e-5)


# -- two that are not like the others -------------------------------------------------


def npts(method: str, network_type: Any = DeepNPTSNetworkDiscrete, **more: Any) -> Any:
    settings = {"optimizer": "adam", "learning_rate": 1e-2, "num_batches_per_epoch": 60}
    trainer = quiet_trainer(method=method, batch_size=8, **settings, **more)
    return with_scott(DeepNPTSEstimator)(
        "h", 4, 12, trainer=trainer, network_type=network_type
    )


def test_the_embeddings_of_deep_npts_are_known_not_to_be_trained():
    estimator = npts("plain")
    with pytest.warns(ScottWarning, match="neither trained nor saved"):
        predictor = estimator.train(dataset(MODELS["DeepAR"]))
    (embedding,) = predictor.network.net.embedder.embedders
    assert not embedding.weight.requires_grad


@pytest.mark.filterwarnings(NPTS_WARNING)
@pytest.mark.parametrize("method", ["scott", "plain"])
def test_deep_npts_trains_though_it_has_a_loop_of_its_own(method):
    data = dataset(MODELS["DeepAR"])
    estimator = npts(method)
    predictor = estimator.train(data)
    history = estimator.trainer.history["train_loss"]
    assert history.tail(2).mean() < history.head(2).mean()
    forecasts, truth = make_evaluation_predictions(data, predictor, num_samples=20)
    metrics, _ = Evaluator(num_workers=0)(list(truth), list(forecasts))
    assert np.isfinite(metrics["ND"])
    with pytest.raises(ArgumentError, match=r"ScottTrainer\(epochs=...\)"):
        with_scott(DeepNPTSEstimator)("h", 4, 12, epochs=3)


@pytest.mark.filterwarnings(NPTS_WARNING)
def test_deep_npts_minds_validation_data():
    estimator, data = npts("scott", output="best", epochs=3), dataset(MODELS["DeepAR"])
    predictor = estimator.train(data, validation_data=data)
    losses = estimator.trainer.history["val_loss"].dropna()
    assert len(losses) == 3
    network = predictor.network.net
    last = Pipeline.read(npts_chain(estimator)).windows(data).last()
    found = evaluate(Losses(backend.NPTSLosses(network, estimator), last.fields), last)
    assert float(found) == pytest.approx(losses.min(), rel=1e-5)


def npts_chain(estimator: Any) -> Chain:
    sampler = ExpectedNumInstanceSampler(
        num_instances=1.0, min_past=estimator.context_length, min_future=1
    )
    fields = [*estimator.features_fields, estimator.target_field]
    splitter = estimator.instance_splitter(sampler, is_train=True)
    return estimator.input_transform() + splitter + SelectFields(fields)


def test_batches_of_deep_npts_are_those_of_the_librarys_splitter():
    estimator, data = npts("scott"), dataset(MODELS["DeepAR"], missing=True)
    chain = npts_chain(estimator)
    windows = Pipeline.read(chain).windows(data)
    numbers = torch.arange(0, len(windows), 11)
    splits = [splits_of(windows)[number] for number in numbers.tolist()]
    expected = library_batch(chain, list(data), splits)
    for key, values in windows.gather(numbers).items():
        torch.testing.assert_close(values, expected[key], rtol=0, atol=0, equal_nan=True)


@pytest.mark.filterwarnings(NPTS_WARNING)
def test_the_smooth_network_of_deep_npts_trains_too():
    estimator = npts("scott", network_type=DeepNPTSNetworkSmooth)
    estimator.train(dataset(MODELS["DeepAR"]))
    history = estimator.trainer.history["train_loss"]
    assert history.tail(2).mean() < history.head(2).mean()


@pytest.mark.parametrize("method", ["scott", "plain"])
@pytest.mark.parametrize("name", ["DeepAR", "TFT"])
def test_fast_equals_the_plain_reference(name, method):
    """Step by step, on two of the harder models, with the same draws."""
    estimator = estimator_of(name, features=True)
    estimator.dropout_rate = 0.0
    with isolated_rng(1, torch.device("cpu")):
        module = estimator.create_lightning_module().double()
    windows = doubled(windows_of(estimator, module, dataset(MODELS[name], length=80)))
    network = backend.LibraryLosses(module.model, windows.fields)
    copied = copy.deepcopy(network)
    strata = STRATIFIER.stratify(windows)
    trainer = train(method, "sgd", network=network, windows=windows, gamma=0.6)
    expected = reference_path(method, "sgd", 0.6, windows, strata, copied)
    assert len(trainer.path) == len(expected)
    for found, wanted in zip(trainer.path, expected):
        for x, y in zip(found, wanted):
            torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-8)


#: The docs' table: which model is held to which tests above.
COLUMNS = ("trains", "loss falls", "predicts", "serialises", "backtests")
CONTRACT = {name: dict.fromkeys(COLUMNS, True) for name in [*MODELS, "DeepNPTS"]}


def test_the_documentation_says_what_the_tests_show():
    assert documented("GluonTS") == CONTRACT
