"""PyTorchTS: ScottTrainer in place of its trainer, for every model: one contract."""

from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from helpers.instances import doubled, library_batch, splits_of
from helpers.library_contract import (
    assert_survive_into_a_fresh_process,
    documented,
    forecast_with_seed,
)
from helpers.series import dataset
from helpers.training import quiet_trainer
from test_scott import STRATIFIER, reference_path, train

pts = pytest.importorskip("pts", reason="the GluonTS stack has no PyTorchTS")

from gluonts.core import serde  # noqa: E402
from gluonts.dataset.common import ListDataset  # noqa: E402
from gluonts.evaluation import (  # noqa: E402
    Evaluator,
    MultivariateEvaluator,
    make_evaluation_predictions,
)
from gluonts.transform import Chain, SelectFields  # noqa: E402
from pts.model import get_module_forward_input_names  # noqa: E402
from pts.model.causal_deepar import CausalDeepAREstimator  # noqa: E402
from pts.model.deepar import DeepAREstimator  # noqa: E402
from pts.model.deepvar import DeepVAREstimator  # noqa: E402
from pts.model.lstnet import LSTNetEstimator  # noqa: E402
from pts.model.n_beats import NBEATSEnsembleEstimator, NBEATSEstimator  # noqa: E402
from pts.model.n_beats.n_beats_network import NBEATSTrainingNetwork  # noqa: E402
from pts.model.simple_feedforward import SimpleFeedForwardEstimator  # noqa: E402
from pts.model.tempflow import TempFlowEstimator  # noqa: E402
from pts.model.tft import TemporalFusionTransformerEstimator  # noqa: E402
from pts.model.time_grad import TimeGradEstimator  # noqa: E402
from pts.model.transformer import TransformerEstimator  # noqa: E402
from pts.model.transformer_tempflow import TransformerTempFlowEstimator  # noqa: E402
from pts.modules import ImplicitQuantileOutput  # noqa: E402

from pts_scott import (  # noqa: E402
    ScottTrainer,
    Stratifier,
    with_scott,
)
from pts_scott._utils.rng import isolated_rng  # noqa: E402
from pts_scott.backends.pytorchts_losses import LibraryLosses, one_by_one  # noqa: E402
from pts_scott.data.pipeline import Pipeline  # noqa: E402
from pts_scott.engine.losses import Losses, evaluate  # noqa: E402
from pts_scott.errors import (  # noqa: E402
    ArgumentError,
    MissingValuesError,
    ScottWarning,
    WindowLossError,
)
from pts_scott.models.networks import mape_loss, smape_loss  # noqa: E402

LENGTHS = {"freq": "H", "prediction_length": 4, "context_length": 12}
LAGS = {**LENGTHS, "lags_seq": [1, 2, 24], "num_cells": 8}
TRANSFORMER = {
    **{k: v for k, v in LAGS.items() if k != "num_cells"},
    "d_model": 8,
    "num_heads": 2,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "dim_feedforward_scale": 2,
}
FLOW = {"target_dim": 4, "n_blocks": 2, "hidden_size": 8, "conditioning_length": 8}
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Model:
    """An estimator with its arguments, and the data that it takes."""

    estimator: type
    arguments: dict[str, Any]
    multivariate: bool = False
    control: bool = False
    features: dict[str, Any] = field(default_factory=dict)
    random: bool = False  # its loss draws random numbers
    fall: float = 0.1  # by which share of its size the loss falls in 60 steps
    learning_rate: float = 1e-2
    steps: int = 60


MODELS = {
    "SimpleFeedForward": Model(SimpleFeedForwardEstimator, LENGTHS),
    "N-BEATS": Model(
        NBEATSEstimator,
        {**LENGTHS, "num_stacks": 2, "widths": [16]},
    ),
    "DeepAR": Model(
        DeepAREstimator,
        {**LAGS, "input_size": 11},
        features={
            **{"use_feat_dynamic_real": True, "use_feat_static_real": True},
            **{"use_feat_static_cat": True, "cardinality": [4], "input_size": 15},
        },
    ),
    "Causal DeepAR": Model(
        CausalDeepAREstimator, {**LAGS, "input_size": 15}, control=True
    ),
    "Transformer": Model(
        TransformerEstimator,
        {**TRANSFORMER, "input_size": 30},
        features={"use_feat_static_cat": True, "cardinality": [4]},
    ),
    "TFT": Model(
        TemporalFusionTransformerEstimator,
        {**LENGTHS, "variable_dim": 8, "embed_dim": 8},
        features={
            "static_cardinalities": {"feat_static_cat": 4},
            "static_feature_dims": {"feat_static_real": 2},
            "dynamic_feature_dims": {"feat_dynamic_real": 2, "past_only": 1},
            "past_dynamic_features": ["past_only"],
        },
    ),
    "LSTNet": Model(
        LSTNetEstimator,
        {
            **{"freq": "H", "prediction_length": 4, "context_length": 24},
            **{"num_series": 4, "channels": 8, "skip_size": 4, "ar_window": 6},
            **{"kernel_size": 6},
        },
        multivariate=True,
    ),
    "DeepVAR": Model(
        DeepVAREstimator, {**LAGS, "input_size": 23, "target_dim": 4}, multivariate=True
    ),
    "TempFlow": Model(
        TempFlowEstimator, {**LAGS, **FLOW, "input_size": 20}, multivariate=True
    ),
    "Transformer TempFlow": Model(
        TransformerTempFlowEstimator,
        {
            **{k: v for k, v in TRANSFORMER.items() if k != "dim_feedforward_scale"},
            **{**FLOW, "input_size": 20, "dim_feedforward_scale": 2},
        },
        multivariate=True,
        learning_rate=1e-3,
        fall=0.05,
    ),
    "TimeGrad": Model(
        TimeGradEstimator,
        {
            **{**LAGS, "input_size": 20, "target_dim": 4, "diff_steps": 10},
            **{"conditioning_length": 8, "residual_channels": 4, "residual_layers": 2},
        },
        multivariate=True,
        random=True,
        fall=0.3,
        steps=100,
    ),
}
WITH_FEATURES = [name for name, model in MODELS.items() if model.features]


def data_of(model: Model, missing: bool = False, length: int = 160) -> ListDataset:
    generator = np.random.default_rng(0)
    time = np.arange(length)
    entries = []
    for number in range(4):
        target = 4 + number + np.sin(2 * np.pi * (time + number) / 12)
        target = target + 0.1 * generator.standard_normal(length)
        if missing:
            target[60:66] = np.nan
        entry = {
            "item_id": f"s{number}",
            "start": "2024-01-01",
            "target": target,
            "feat_static_cat": [number],
            "feat_static_real": [0.5, float(number)],
            "feat_dynamic_real": generator.standard_normal((2, length)),
            "past_only": generator.standard_normal((1, length), dtype=np.float32),
        }
        control = np.cos(2 * np.pi * time / 12)
        entries.append({**entry, "control": control} if model.control else entry)
    if model.multivariate:
        target = np.stack([entry["target"] for entry in entries])
        entries = [{"item_id": "all", "start": "2024-01-01", "target": target}]
    return ListDataset(entries, freq="H", one_dim_target=not model.multivariate)


def estimator_of(name: str, features: bool = False, **trainer: Any) -> Any:
    model = MODELS[name]
    # The library takes keys out of dictionaries that it is given.
    arguments = copy.deepcopy({**model.arguments, **(model.features if features else {})})
    settings = {"optimizer": "adam", "learning_rate": model.learning_rate}
    settings |= {"num_batches_per_epoch": model.steps, "batch_size": 8, **trainer}
    return with_scott(model.estimator)(**arguments, trainer=quiet_trainer(**settings))


def chain_of(estimator: Any, net: torch.nn.Module, mode: str = "training") -> Chain:
    """The library's own pipeline, as its train_model puts it together."""
    names = get_module_forward_input_names(net)
    return (
        estimator.create_transformation()
        + estimator.create_instance_splitter(mode)
        + SelectFields(names)
    )


def network_of(estimator: Any, seed: int = 1) -> torch.nn.Module:
    with isolated_rng(seed, CPU):
        return estimator.create_training_network(CPU)


def batch_of(name: str, missing: bool = False, size: int = 16) -> Any:
    """A network, and a batch of windows for it."""
    estimator = estimator_of(name)
    net = network_of(estimator)
    data = data_of(MODELS[name], missing)
    windows = Pipeline.read(chain_of(estimator, net)).windows(data)
    numbers = torch.linspace(30, len(windows) - 1, size).long()
    return net, windows, numbers


def library_loss(net: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    output = net(**{name: values.clone() for name, values in batch.items()})
    return output[0] if isinstance(output, (list, tuple)) else output


# -- what goes in ---------------------------------------------------------------------


def assert_batches_of_the_library(estimator: Any, data: ListDataset) -> None:
    chain = chain_of(estimator, network_of(estimator))
    windows = Pipeline.read(chain).windows(data)
    generator = torch.Generator().manual_seed(0)
    ends = torch.tensor([0, len(windows) - 1])
    numbers = torch.cat([ends, windows.draw(30, generator)])
    splits = [splits_of(windows)[number] for number in numbers.tolist()]
    found, expected = windows.gather(numbers), library_batch(chain, list(data), splits)
    assert set(found) == set(expected)
    for key, values in expected.items():
        assert found[key].dtype == values.dtype, key
        same = torch.equal(found[key], values) or torch.equal(
            found[key].nan_to_num(), values.nan_to_num()
        )
        assert same, key


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_batches_are_those_of_the_librarys_splitter(name, missing):
    assert_batches_of_the_library(estimator_of(name), data_of(MODELS[name], missing))


@pytest.mark.parametrize("name", WITH_FEATURES)
def test_features_of_every_kind_are_in_the_batches_and_train(name):
    estimator, data = estimator_of(name, features=True), data_of(MODELS[name])
    assert_batches_of_the_library(estimator, data)
    estimator.train_model(data)
    history = estimator.trainer.history["train_loss"]
    assert history.tail(2).mean() < history.head(2).mean()


# -- one loss a window ----------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_window_losses_have_the_librarys_mean(name):
    net, windows, numbers = batch_of(name)
    losses = LibraryLosses(net)
    batch = windows.gather(numbers)
    losses.fit_statistics(windows.gather(torch.arange(len(windows))))
    losses.eval()
    with torch.no_grad():
        with isolated_rng(3, CPU):
            found = losses.loss(**{name: v.clone() for name, v in batch.items()})
        with isolated_rng(3, CPU):
            expected = library_loss(net, batch)
    assert found.shape == (len(numbers),)
    torch.testing.assert_close(found.mean(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", [n for n, m in MODELS.items() if not m.random])
def test_each_is_the_librarys_loss_of_that_window_alone(name, missing):
    if missing and name in ("SimpleFeedForward", "N-BEATS"):
        pytest.skip("the library has no mask for missing values here")
    net, windows, numbers = batch_of(name, missing)
    losses = LibraryLosses(net)
    losses.fit_statistics(windows.gather(torch.arange(30, len(windows))))
    losses.eval()
    batch = windows.gather(numbers)
    with torch.no_grad():
        together = losses.loss(**{name: v.clone() for name, v in batch.items()})
        alone = one_by_one(net, {name: v.clone() for name, v in batch.items()})
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_an_anchor_of_window_losses_is_unbiased():
    """E Σ w_i f_ξi over strata is the mean over all windows: what a mean would miss."""
    net, windows, _ = batch_of("DeepAR")
    losses = LibraryLosses(net).eval()
    with torch.no_grad():
        every = losses.loss(**windows.gather(torch.arange(len(windows)))).double()
    strata = Stratifier.custom(
        lambda item_id, start, instance: item_id == "s0" and start.hour < 3
    ).stratify(windows)
    generator = torch.Generator().manual_seed(0)
    draws = strata.draw(2, generator, 4000).reshape(4000, len(strata), 2)
    weighted = (every[draws].mean(dim=2) * strata.weights).sum(dim=1)
    plain = every[draws].flatten(1).mean(dim=1)  # what the batch's mean would estimate
    error = weighted.std() / 4000**0.5
    assert abs(weighted.mean() - every.mean()) < 5 * error
    assert abs(plain.mean() - every.mean()) > 20 * plain.std() / 4000**0.5


class Unknown(torch.nn.Module):
    """A network of somebody else, with a mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(12, 4)

    def forward(self, past_target, future_target):
        return (self.linear(past_target) - future_target).square().mean()


def test_an_unknown_network_is_asked_window_by_window():
    with pytest.warns(ScottWarning, match="Unknown is not known here"):
        losses = LibraryLosses(Unknown())
    past, future = torch.randn(5, 12), torch.randn(5, 4)
    found = losses.loss(past_target=past, future_target=future)
    expected = (losses.wrapped.linear(past) - future).square().mean(dim=1)
    torch.testing.assert_close(found, expected)


def test_a_network_without_a_loss_is_refused():
    with pytest.raises(WindowLossError, match="does not return a loss first"):
        one_by_one(torch.nn.Identity(), {"input": torch.ones(2, 3)})


@pytest.mark.parametrize("method", ["scott", "plain"])
@pytest.mark.parametrize("name", ["DeepAR", "TFT"])
def test_fast_equals_the_plain_reference(name, method):
    """Step by step, on two of the harder models, with the same draws."""
    estimator = estimator_of(name, features=True)
    estimator.dropout_rate = 0.0
    network = LibraryLosses(network_of(estimator).double())
    data = data_of(MODELS[name], length=80)
    windows = doubled(Pipeline.read(chain_of(estimator, network.wrapped)).windows(data))
    copied = copy.deepcopy(network)
    strata = STRATIFIER.stratify(windows)
    trainer = train(method, "sgd", network=network, windows=windows, gamma=0.6)
    expected = reference_path(method, "sgd", 0.6, windows, strata, copied)
    assert len(trainer.path) == len(expected)
    for found, wanted in zip(trainer.path, expected):
        for x, y in zip(found, wanted):
            torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss_function", ["MAPE", "sMAPE", "MASE"])
@pytest.mark.parametrize("lengths", [(30, 4), (12, 16)])
def test_nbeats_trains_the_librarys_own_losses(loss_function, lengths):
    arguments = {**MODELS["N-BEATS"].arguments, "loss_function": loss_function}
    arguments["context_length"], arguments["prediction_length"] = lengths
    estimator = with_scott(NBEATSEstimator)(**arguments, trainer=quiet_trainer())
    net = network_of(estimator)
    windows = Pipeline.read(chain_of(estimator, net)).windows(data_of(MODELS["N-BEATS"]))
    batch = windows.gather(torch.arange(40, 60))
    with torch.no_grad():
        found = LibraryLosses(net).loss(**batch)
        torch.testing.assert_close(found, one_by_one(net, batch), rtol=1e-4, atol=1e-5)


class OwnLoss(NBEATSTrainingNetwork):
    def forward(self, past_target, future_target):
        return 3 * super().forward(past_target, future_target)


def test_a_subclass_with_a_loss_of_its_own_keeps_it():
    net = network_of(estimator_of("N-BEATS"))
    net.__class__ = OwnLoss
    with pytest.warns(ScottWarning, match="OwnLoss is not known here"):
        losses = LibraryLosses(net)
    batch = {"past_target": torch.rand(3, 12), "future_target": torch.rand(3, 4)}
    with torch.no_grad():
        expected = one_by_one(net, batch)
        torch.testing.assert_close(losses.loss(**batch), expected)


# -- what comes out -------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """Every model after a few steps."""
    return {
        name: estimator_of(name, num_batches_per_epoch=6).train(data_of(MODELS[name]))
        for name in MODELS
    }


@pytest.mark.parametrize("method", ["scott", "plain"])
@pytest.mark.parametrize("name", MODELS)
def test_it_trains_and_the_loss_falls(name, method):
    model = MODELS[name]
    estimator, data = estimator_of(name, method=method), data_of(model)
    output = estimator.train_model(data)
    net = output.trained_net
    windows = Pipeline.read(chain_of(estimator, net)).windows(data)
    untrained = LibraryLosses(network_of(estimator, estimator.trainer.seed))
    untrained.fit_statistics(windows.gather(torch.arange(len(windows))))
    losses = []
    for network in (untrained, LibraryLosses(net)):
        with isolated_rng(0, CPU):
            losses.append(float(evaluate(Losses(network, windows.fields), windows)))
    before, after = losses
    assert after < before - model.fall * abs(before)
    history = estimator.trainer.history
    assert history["step"].iloc[-1] == model.steps
    assert (history["anchors"].iloc[-1] > 0) == (method == "scott")


@pytest.mark.parametrize("name", MODELS)
def test_its_predictor_forecasts_and_backtests(name, trained):
    model = MODELS[name]
    forecasts, truth = make_evaluation_predictions(
        data_of(model), trained[name], num_samples=20
    )
    forecasts, truth = list(forecasts), list(truth)
    assert all(np.isfinite(f.quantile(0.5)).all() for f in forecasts)
    evaluation = MultivariateEvaluator if model.multivariate else Evaluator
    metrics, _ = evaluation(num_workers=0)(truth, forecasts)
    assert np.isfinite(metrics["ND"])


def test_predictors_survive_into_a_fresh_process(trained, tmp_path):
    data = {  # a control reaches over the range that is forecast
        name: [{**entry, "target": entry["target"][..., :-4]} for entry in data_of(model)]
        for name, model in MODELS.items()
    }
    assert_survive_into_a_fresh_process(trained, data, tmp_path)


# -- the library's estimators, untouched ----------------------------------------------


def rows(length: int = 120) -> np.ndarray:
    t = np.arange(length)
    return 10 + np.stack([np.sin(t / 3), np.cos(t / 5)])


def test_it_is_a_trainer_of_pytorchts():
    assert isinstance(quiet_trainer(), pts.Trainer)


@pytest.mark.parametrize("name", ["SimpleFeedForward", "N-BEATS", "DeepAR", "TimeGrad"])
def test_the_librarys_own_estimators_take_it_untouched(name):
    model = MODELS[name]
    trainer = quiet_trainer(optimizer="adam", batch_size=8)
    data = data_of(model)
    predictor = model.estimator(**model.arguments, trainer=trainer).train(
        data, validation_data=data, prefetch_factor=None
    )
    assert trainer.history["val_loss"].notna().sum() == 1
    forecast = next(iter(predictor.predict(data, num_samples=10)))
    assert np.isfinite(forecast.mean).all()


def test_with_scott_needs_no_prefetch_factor_and_is_serialised():
    estimator = estimator_of("DeepAR", gamma=0.2)
    assert issubclass(type(estimator), DeepAREstimator)
    for again in (
        serde.load_json(serde.dump_json(estimator)),
        pickle.loads(pickle.dumps(estimator)),
    ):
        assert type(again) is type(estimator)
        assert again.trainer.settings.gamma == 0.2
    with pytest.raises(ArgumentError, match="takes a class of PyTorchEstimator"):
        with_scott(ScottTrainer)
    with pytest.raises(ArgumentError, match=r"ScottTrainer\(learning_rate=...\)"):
        with_scott(DeepAREstimator)(**MODELS["DeepAR"].arguments, lr=1e-3)


class Scaled:
    """A dataset of somebody else, which holds another one."""

    def __init__(self, iterable):
        self.iterable = iterable

    def __iter__(self):
        for entry in self.iterable:
            yield {**entry, "target": 1000 * entry["target"]}

    def __len__(self):
        return len(self.iterable)


def test_a_dataset_that_wraps_another_is_read_itself():
    trainer = quiet_trainer(optimizer="adam", batch_size=8, num_batches_per_epoch=2)
    model = MODELS["N-BEATS"]
    arguments = {**model.arguments, "loss_function": "MAPE"}
    found = []
    fit = trainer.fit
    trainer.fit = lambda net, windows, *rest: (
        found.append(windows),
        fit(net, windows, *rest),
    )
    data = Scaled(list(data_of(model)))
    model.estimator(**arguments, trainer=trainer).train(data, prefetch_factor=None)
    assert float(found[0].series.values.mean()) > 1000


def test_arguments_that_are_handed_on_are_known():
    trainer = quiet_trainer(batch_size=8)
    model = MODELS["DeepVAR"]
    estimator = with_scott(model.estimator)(
        **model.arguments, dtype=np.float32, trainer=trainer
    )
    assert estimator.dtype == np.float32


@pytest.mark.parametrize("name", ["N-BEATS", "LSTNet", "TempFlow", "TimeGrad"])
def test_predictors_do_not_depend_on_the_trainer(name, tmp_path):
    estimator = estimator_of(
        name,
        num_batches_per_epoch=2,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        optimizer=lambda p: torch.optim.RMSprop(p, lr=1e-3),
    )
    data = data_of(MODELS[name])
    predictor = estimator.train(data)
    predictor.serialize(tmp_path)
    expected = forecast_with_seed(predictor, list(data))
    for again in (
        type(predictor).deserialize(tmp_path),
        pickle.loads(pickle.dumps(predictor)),
    ):
        np.testing.assert_allclose(forecast_with_seed(again, list(data)), expected)


@pytest.mark.parametrize("output", ["sampled", "best"])
def test_buffers_that_change_their_shape_are_kept_and_resumed(output, tmp_path):
    """Implicit quantiles leave the last batch's levels behind, as buffers."""
    model = MODELS["DeepAR"]
    data = data_of(model)

    def trained(folder: Any, epochs: int) -> Any:
        # The library keeps one network for all of a process; this lets it make another.
        ImplicitQuantileOutput.in_features = 1
        estimator = with_scott(model.estimator)(
            **model.arguments,
            distr_output=ImplicitQuantileOutput(output_domain="Real"),
            trainer=quiet_trainer(
                batch_size=8,
                num_batches_per_epoch=4,
                inner_steps=4,
                method="plain",
                epochs=epochs,
                output=output,
                checkpoint=folder,
                resume=folder is not None,
            ),
        )
        return estimator.train(data, validation_data=data)

    trained(tmp_path, 1)
    found = trained(tmp_path, 3)
    found = [p.detach().clone() for p in found.prediction_net.parameters()]
    expected = trained(None, 3).prediction_net.parameters()
    for x, y in zip(found, expected):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_a_marginal_transformation_which_is_random_trains():
    model = MODELS["DeepVAR"]
    estimator = with_scott(model.estimator)(
        **model.arguments,
        use_marginal_transformation=True,
        trainer=quiet_trainer(batch_size=8, num_batches_per_epoch=4),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library divides by zero there
        estimator.train(data_of(model))
    assert np.isfinite(estimator.trainer.history["train_loss"]).all()


@pytest.mark.parametrize("name", ["LSTNet", "DeepVAR"])
def test_windows_of_every_model_can_be_clustered(name):
    estimator = estimator_of(
        name, stratifier=Stratifier.kmeans(3), num_batches_per_epoch=2
    )
    estimator.train(data_of(MODELS[name]))
    assert len(estimator.trainer.strata) == 3


def test_one_seed_gives_one_model():
    data = data_of(MODELS["DeepAR"])
    one, other = (estimator_of("DeepAR").train_model(data).trained_net for _ in range(2))
    for x, y in zip(one.parameters(), other.parameters()):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_percentage_losses_are_the_librarys_own():
    net = NBEATSTrainingNetwork(
        loss_function="MAPE",
        freq="H",
        prediction_length=4,
        context_length=12,
        num_stacks=1,
        widths=[4],
        num_blocks=[1],
        num_block_layers=[1],
        expansion_coefficient_lengths=[2],
        sharing=[False],
        stack_types=["G"],
    )
    generator = torch.Generator().manual_seed(0)
    forecast = torch.randn(6, 4, generator=generator)
    future = torch.randn(6, 4, generator=generator)
    future[0, 0] = 0.0
    ones = torch.ones_like(future)
    torch.testing.assert_close(
        mape_loss(forecast, future, ones), net.mape_loss(forecast, future)
    )
    torch.testing.assert_close(
        smape_loss(forecast, future, ones), net.smape_loss(forecast, future)
    )


def test_missing_values_are_refused_where_the_library_has_no_mask():
    gaps = rows()
    gaps[1, 50] = np.nan
    estimator = SimpleFeedForwardEstimator(**LENGTHS, trainer=quiet_trainer())
    with pytest.raises(MissingValuesError, match="'1' has no value at 1990-01-03 02:00"):
        estimator.train(dataset(gaps, "H"), prefetch_factor=None)


def test_the_librarys_ensemble_cannot_be_made_at_all():
    """Why it is not in the table: 0.6.0 forgets to hand the trainer on."""
    with pytest.raises(ValueError, match=r"trainer\s+field required"):
        NBEATSEnsembleEstimator(freq="H", prediction_length=4)


#: The docs' table: which model is held to which tests above.
COLUMNS = ("trains", "loss falls", "predicts", "serialises", "backtests")
CONTRACT = {name: dict.fromkeys(COLUMNS, True) for name in MODELS}


def test_the_documentation_says_what_the_tests_show():
    assert documented("PyTorchTS") == CONTRACT
