"""PyTorchTS' own estimators at small sizes, with data and trainers for them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gluonts.dataset.common import ListDataset
from gluonts.transform import Chain, SelectFields
from pts.model import get_module_forward_input_names
from pts.model.causal_deepar import CausalDeepAREstimator
from pts.model.deepar import DeepAREstimator
from pts.model.deepvar import DeepVAREstimator
from pts.model.lstnet import LSTNetEstimator
from pts.model.n_beats import NBEATSEstimator
from pts.model.simple_feedforward import SimpleFeedForwardEstimator
from pts.model.tempflow import TempFlowEstimator
from pts.model.tft import TemporalFusionTransformerEstimator
from pts.model.time_grad import TimeGradEstimator
from pts.model.transformer import TransformerEstimator
from pts.model.transformer_tempflow import TransformerTempFlowEstimator

from helpers.library_contract import full_contract
from helpers.training import quiet_trainer
from pts_scott import with_scott
from pts_scott._utils.rng import isolated_rng

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
    """An estimator class with its arguments, and what its data and losses are like."""

    estimator: type
    arguments: dict[str, Any]
    multivariate: bool = False
    control: bool = False
    features: dict[str, Any] = field(default_factory=dict)
    random: bool = False  # whether its loss draws random numbers
    fall: float = 0.1  # the share of its size by which the loss falls
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
CONTRACT = full_contract(MODELS)
WITH_FEATURES = [name for name, model in MODELS.items() if model.features]


def dataset_of(model: Model, missing: bool = False, length: int = 160) -> ListDataset:
    """Return waves with a little noise, and features of every kind."""
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
    """Return an estimator with SCott, and a trainer for a few steps."""
    model = MODELS[name]
    # The library removes keys from dictionaries that it is given.
    arguments = copy.deepcopy({**model.arguments, **(model.features if features else {})})
    settings = {"optimizer": "adam", "learning_rate": model.learning_rate}
    settings |= {"num_batches_per_epoch": model.steps, "batch_size": 8, **trainer}
    return with_scott(model.estimator)(**arguments, trainer=quiet_trainer(**settings))


def chain_of(estimator: Any, net: torch.nn.Module, mode: str = "training") -> Chain:
    """Return the pipeline that the library's own train_model builds."""
    names = get_module_forward_input_names(net)
    return (
        estimator.create_transformation()
        + estimator.create_instance_splitter(mode)
        + SelectFields(names)
    )


def network_of(estimator: Any, seed: int = 1) -> torch.nn.Module:
    """Return an untrained training network."""
    with isolated_rng(seed, CPU):
        return estimator.create_training_network(CPU)
