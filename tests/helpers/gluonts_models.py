"""GluonTS' own estimators at small sizes, with data and trainers for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from gluonts.dataset.common import ListDataset
from gluonts.torch.model.d_linear import DLinearEstimator
from gluonts.torch.model.deep_npts import DeepNPTSEstimator, DeepNPTSNetworkDiscrete
from gluonts.torch.model.deepar import DeepAREstimator
from gluonts.torch.model.i_transformer import ITransformerEstimator
from gluonts.torch.model.lag_tst import LagTSTEstimator
from gluonts.torch.model.mqf2 import MQF2MultiHorizonEstimator
from gluonts.torch.model.patch_tst import PatchTSTEstimator
from gluonts.torch.model.simple_feedforward import SimpleFeedForwardEstimator
from gluonts.torch.model.tft import TemporalFusionTransformerEstimator
from gluonts.torch.model.tide import TiDEEstimator
from gluonts.torch.model.wavenet import WaveNetEstimator

from helpers.library_contract import full_contract
from helpers.training import quiet_trainer
from pts_scott import with_scott
from pts_scott.backends.gluonts.loader_windows import SinglePassDataset, loader_windows

LENGTHS = {"prediction_length": 4, "context_length": 12}
TRANSFORMER = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "num_encoder_layers": 1}
#: Filter for the warning that DeepNPTS' embeddings are not trained.
NPTS_WARNING = "ignore:GluonTS keeps DeepNPTS' embeddings:pts_scott.errors.ScottWarning"


@dataclass(frozen=True)
class Model:
    """An estimator class with its arguments, and those that make it use features."""

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
CONTRACT = full_contract([*MODELS, "DeepNPTS"])
UNIVARIATE = [name for name, model in MODELS.items() if not model.multivariate]
WITH_FEATURES = [name for name, model in MODELS.items() if model.features]


def dataset_of(
    model: Model, missing: bool = False, length: int = 160, short: int = 0
) -> ListDataset:
    """Return waves with a little noise, and features of every kind."""
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
    """Return an estimator with SCott, and a trainer for a few steps."""
    model = MODELS[name]
    settings = {"optimizer": "adam", "learning_rate": 1e-2, "num_batches_per_epoch": 60}
    settings |= {"batch_size": 8, **trainer}
    arguments = {**model.arguments, **(model.features if features else {})}
    return with_scott(model.estimator)(**arguments, trainer=quiet_trainer(**settings))


def deep_npts(
    method: str, network_type: Any = DeepNPTSNetworkDiscrete, **more: Any
) -> Any:
    """Return DeepNPTS with SCott, and a trainer for a few steps."""
    settings = {"optimizer": "adam", "learning_rate": 1e-2, "num_batches_per_epoch": 60}
    trainer = quiet_trainer(method=method, batch_size=8, **settings, **more)
    return with_scott(DeepNPTSEstimator)(
        "h", 4, 12, trainer=trainer, network_type=network_type
    )


def windows_of(estimator: Any, module: Any, data: ListDataset) -> Any:
    """Return the windows that an estimator trains on."""
    entries = SinglePassDataset(data, estimator.create_transformation())
    return loader_windows(estimator.create_training_data_loader(entries, module), entries)
