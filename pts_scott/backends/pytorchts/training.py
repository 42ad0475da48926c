"""Training of PyTorchTS' own estimators, whose ``train_model`` calls the trainer."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from gluonts.dataset.common import Dataset
from gluonts.transform import SelectFields
from pts.model import PyTorchEstimator, get_module_forward_input_names
from pts.model.causal_deepar import CausalDeepAREstimator
from pts.model.deepar import DeepAREstimator
from pts.model.deepvar import DeepVAREstimator
from pts.model.lstnet import LSTNetEstimator
from pts.model.n_beats import NBEATSEnsembleEstimator, NBEATSEstimator
from pts.model.simple_feedforward import SimpleFeedForwardEstimator
from pts.model.tempflow import TempFlowEstimator
from pts.model.tft import TemporalFusionTransformerEstimator
from pts.model.time_grad import TimeGradEstimator
from pts.model.transformer import TransformerEstimator
from pts.model.transformer_tempflow import TransformerTempFlowEstimator
from torch import nn

from pts_scott._utils.rng import isolated_rng
from pts_scott.backends.pytorchts.predictor import RebuiltPredictor, is_serializable
from pts_scott.data.instance_index import InstanceIndex
from pts_scott.data.loader_arguments import warn_unused_loader
from pts_scott.data.pipeline import Pipeline
from pts_scott.data.window_index import WindowIndex

LIBRARY_ESTIMATORS: tuple[type, ...] = (PyTorchEstimator,)
MODELS: tuple[type, ...] = (
    CausalDeepAREstimator,
    DeepAREstimator,
    DeepVAREstimator,
    LSTNetEstimator,
    NBEATSEnsembleEstimator,
    NBEATSEstimator,
    SimpleFeedForwardEstimator,
    TempFlowEstimator,
    TemporalFusionTransformerEstimator,
    TimeGradEstimator,
    TransformerEstimator,
    TransformerTempFlowEstimator,
)
CPU = torch.device("cpu")

TOGETHER = "forecasts several series together"
UNSUITABLE: dict[str, str] = {
    "CausalDeepAR": "needs a field 'control' in its data",
    "DeepVAR": TOGETHER,
    "LSTNet": TOGETHER,
    "NBEATSEnsemble": "cannot be constructed in PyTorchTS 0.6.0",
    "TempFlow": TOGETHER,
    "TimeGrad": TOGETHER,
    "TransformerTempFlow": TOGETHER,
}

# PyTorchTS' estimators have none of these arguments, but GluonTS' have.
TRAINER_DECIDES: dict[str, str] = {
    "lr": "learning_rate",
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "batch_size": "batch_size",
    "num_batches_per_epoch": "num_batches_per_epoch",
    "epochs": "epochs",
    "trainer_kwargs": "trainer_kwargs",
}


def train_model(
    estimator: Any,
    training_data: Dataset,
    validation_data: Dataset | None = None,
    **loader: Any,
) -> Any:
    """Call PyTorchTS' own ``train_model``, which calls the trainer.

    Parameters
    ----------
    estimator
        An estimator of PyTorchTS with a `ScottTrainer`.
    training_data, validation_data
        Entries with ``start`` and ``target``, and the features that the model uses.
    **loader
        Arguments of PyTorchTS' data loaders. Windows are gathered as tensors without
        worker processes, and torch 2 refuses to prefetch without them.
    """
    # PyTorchTS itself passes a prefetch_factor.
    warn_unused_loader({k: v for k, v in loader.items() if k != "prefetch_factor"})
    loader.update(num_workers=0, prefetch_factor=None)
    trainer = estimator.trainer
    with isolated_rng(trainer.next_seed(), trainer.device):  # seeds initial weights, too
        output = estimator.library_estimator.train_model(
            estimator, training_data, validation_data, **loader
        )
        return output._replace(predictor=_serializable(output.predictor, estimator))


def _serializable(predictor: Any, estimator: Any) -> Any:
    """Return the predictor, with its estimator if the library cannot serialise it."""
    if is_serializable(predictor.prediction_net):
        return predictor
    return RebuiltPredictor.like(predictor, estimator)


def create_windows(estimator: Any, dataset: Dataset) -> InstanceIndex:
    """Return the windows of a dataset that an estimator trains on."""
    device = estimator.trainer.device
    with isolated_rng(0, device):
        network = estimator.create_training_network(device)
        chain = (
            estimator.create_transformation()
            + estimator.create_instance_splitter("training")
            + SelectFields(get_module_forward_input_names(network))
        )
    return Pipeline.read(chain).windows(dataset)


def train_windows(
    estimator: Any, windows: WindowIndex, validation: WindowIndex | None = None
) -> Any:
    """Train on windows that `create_windows` returned, and return the predictor."""
    trainer = estimator.trainer
    with isolated_rng(trainer.next_seed(), trainer.device):
        network = estimator.create_training_network(trainer.device)
        trainer.fit_library_network(network, windows, validation)
        predictor = estimator.create_predictor(
            estimator.create_transformation(), network, trainer.device
        )
        return _serializable(predictor, estimator)


def missing_arguments(
    estimator: type, arguments: dict[str, Any], dataset: Dataset, trainer: Any
) -> dict[str, Any]:
    """Return ``input_size``, which PyTorchTS leaves to its users, if it is not given.

    A network with an input size of 1 is run up to the layer that has this size.
    """
    needed = "input_size" in inspect.signature(estimator).parameters
    if not needed or "input_size" in arguments:
        return {}
    trial = estimator(**arguments, input_size=1, trainer=trainer)
    windows = create_windows(trial, dataset)
    with isolated_rng(0, CPU):
        network = trial.create_training_network(CPU)
    for name, layer in network.named_modules():
        if isinstance(layer, nn.RNNBase) or name == "encoder_input":
            layer.register_forward_pre_hook(_raise_input_size)
    try:
        network(**windows.gather(torch.zeros(1, dtype=torch.long)))
    except _InputSizeError as found:
        return {"input_size": found.size}
    return {}


class _InputSizeError(Exception):
    """Carries the size of a layer's input out of a forward pass."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def _raise_input_size(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    raise _InputSizeError(inputs[0].shape[-1])


def training_mixins(estimator: type) -> tuple[type, ...]:
    """Return no bases: PyTorchTS' estimators need nothing but the trainer."""
    return ()


def estimator_arguments(arguments: dict[str, Any], trainer: Any) -> dict[str, Any]:
    """Return the arguments of a library's estimator with its trainer."""
    return {**arguments, "trainer": trainer}
