"""Training of GluonTS' own estimators with a `ScottTrainer` in place of their loop."""

from __future__ import annotations

from typing import Any

from gluonts.dataset.common import Dataset
from gluonts.model.predictor import Predictor
from gluonts.torch.model.d_linear import DLinearEstimator
from gluonts.torch.model.deep_npts import DeepNPTSEstimator
from gluonts.torch.model.deepar import DeepAREstimator
from gluonts.torch.model.estimator import PyTorchLightningEstimator, TrainOutput
from gluonts.torch.model.i_transformer import ITransformerEstimator
from gluonts.torch.model.lag_tst import LagTSTEstimator
from gluonts.torch.model.mqf2 import MQF2MultiHorizonEstimator
from gluonts.torch.model.patch_tst import PatchTSTEstimator
from gluonts.torch.model.predictor import PyTorchPredictor
from gluonts.torch.model.simple_feedforward import SimpleFeedForwardEstimator
from gluonts.torch.model.tft import TemporalFusionTransformerEstimator
from gluonts.torch.model.tide import TiDEEstimator
from gluonts.torch.model.wavenet import WaveNetEstimator

from pts_scott._utils.arguments import check_names
from pts_scott._utils.rng import isolated_rng
from pts_scott.backends.gluonts.deep_npts import (
    DeepNPTSTraining,
    deep_npts_windows,
    train_deep_npts,
)
from pts_scott.backends.gluonts.loader_windows import SinglePassDataset, loader_windows
from pts_scott.backends.gluonts.losses import GluonTSLosses, mark_initialized
from pts_scott.backends.gluonts.module_checks import check_module_steps, model_of
from pts_scott.data.instance_index import InstanceIndex
from pts_scott.data.loader_arguments import warn_unused_loader
from pts_scott.data.window_index import WindowIndex
from pts_scott.errors import ArgumentError, about_validation_data

LIBRARY_ESTIMATORS: tuple[type, ...] = (PyTorchLightningEstimator, DeepNPTSEstimator)
MODELS: tuple[type, ...] = (
    DeepAREstimator,
    DeepNPTSEstimator,
    DLinearEstimator,
    ITransformerEstimator,
    LagTSTEstimator,
    MQF2MultiHorizonEstimator,
    PatchTSTEstimator,
    SimpleFeedForwardEstimator,
    TemporalFusionTransformerEstimator,
    TiDEEstimator,
    WaveNetEstimator,
)
UNSUITABLE: dict[str, str] = {"ITransformer": "forecasts several series together"}

TRAINER_DECIDES: dict[str, str] = {
    "lr": "learning_rate",
    "weight_decay": "weight_decay",
    "patience": "scheduler",
    "batch_size": "batch_size",
    "num_batches_per_epoch": "num_batches_per_epoch",
    "epochs": "epochs",
    "trainer_kwargs": "trainer_kwargs",
}


def train_model(
    estimator: Any,
    training_data: Dataset,
    validation_data: Dataset | None = None,
    from_predictor: PyTorchPredictor | None = None,
    ckpt_path: str | None = None,
    **unused: Any,
) -> Any:
    """Train as GluonTS' ``train_model`` does, with the estimator's ``trainer``.

    Parameters
    ----------
    estimator
        A ``PyTorchLightningEstimator`` or DeepNPTS with a `ScottTrainer` as ``trainer``.
    training_data, validation_data
        Entries with ``start`` and ``target``, and the features that the model uses.
    from_predictor
        Predictor whose parameters training starts from.
    ckpt_path
        Refused: checkpoints of GluonTS' own loop cannot be resumed.
    **unused
        ``shuffle_buffer_length`` and ``cache_data``, which have no effect.

    Returns
    -------
    TrainOutput
        For DeepNPTS the trained network, as its own ``train_model`` returns it.
    """
    if ckpt_path is not None:
        raise ArgumentError(
            f"ckpt_path={ckpt_path!r} resumes a run of GluonTS' own loop; to continue "
            "from trained parameters, use train_from(predictor, training_data)."
        )
    check_names(
        f"{type(estimator).__name__}.train",
        unused,
        ("training_data", "validation_data", "shuffle_buffer_length", "cache_data"),
    )
    warn_unused_loader(unused)
    if isinstance(estimator, DeepNPTSEstimator):
        windows, validation = deep_npts_windows(estimator, training_data), None
        if validation_data is not None:
            with about_validation_data():
                validation = deep_npts_windows(estimator, validation_data).last()
        return train_deep_npts(estimator, windows, validation)
    trainer = estimator.trainer
    seed = trainer.next_seed()
    transformation = estimator.create_transformation()
    with isolated_rng(seed, trainer.device):
        module = estimator.create_lightning_module()
        if from_predictor is not None:
            module.load_state_dict(from_predictor.network.state_dict())
            mark_initialized(module)
        windows = _training_windows(estimator, training_data, transformation, module)
        validation = None
        if validation_data is not None:
            data = SinglePassDataset(validation_data, transformation)
            loader = estimator.create_validation_data_loader(data, module)
            with about_validation_data():
                validation = loader_windows(loader, data)
        _fit(trainer, module, windows, validation, seed)
    return TrainOutput(
        transformation=transformation,
        trained_net=module,
        trainer=trainer.lightning,
        predictor=estimator.create_predictor(transformation, module),
    )


def create_windows(estimator: Any, dataset: Dataset) -> InstanceIndex:
    """Return the windows of a dataset that an estimator trains on."""
    if isinstance(estimator, DeepNPTSEstimator):
        return deep_npts_windows(estimator, dataset)
    with isolated_rng(0, estimator.trainer.device):
        module = estimator.create_lightning_module()
        transformation = estimator.create_transformation()
        return _training_windows(estimator, dataset, transformation, module)


def train_windows(
    estimator: Any, windows: WindowIndex, validation: WindowIndex | None = None
) -> Predictor:
    """Train on windows that `create_windows` returned."""
    if isinstance(estimator, DeepNPTSEstimator):
        return estimator.get_predictor(train_deep_npts(estimator, windows, validation))
    trainer = estimator.trainer
    seed = trainer.next_seed()
    with isolated_rng(seed, trainer.device):
        module = estimator.create_lightning_module()
        _fit(trainer, module, windows, validation, seed)
    return estimator.create_predictor(estimator.create_transformation(), module)


def _training_windows(
    estimator: Any, dataset: Dataset, transformation: Any, module: Any
) -> InstanceIndex:
    data = SinglePassDataset(dataset, transformation)
    return loader_windows(estimator.create_training_data_loader(data, module), data)


def _fit(
    trainer: Any,
    module: Any,
    windows: WindowIndex,
    validation: WindowIndex | None,
    seed: int,
) -> None:
    """Train the model of a Lightning module in place."""
    network = GluonTSLosses(model_of(module), windows.fields)
    network.initialize_from(windows)
    check_module_steps(module, network, windows)
    with network.fixed_default_scale(windows):
        trainer.fit(network, windows, validation, seed=seed)


def missing_arguments(
    estimator: type, arguments: dict[str, Any], dataset: Dataset, trainer: Any
) -> dict[str, Any]:
    """Return nothing: GluonTS' estimators derive the sizes of their inputs themselves."""
    return {}


def training_mixins(estimator: type) -> tuple[type, ...]:
    """Return the bases that an estimator class needs in addition to its trainer.

    Raises
    ------
    ArgumentError
        If the class has its own ``train_model``, which would never be called.
    """
    if not estimator.train_model.__module__.startswith("gluonts."):  # type: ignore[attr-defined]
        raise ArgumentError(
            f"{estimator.__name__} has its own train_model, which ScottTrainer would "
            "replace. Move what it does to the data into create_transformation or "
            "create_training_data_loader, and remove it."
        )
    return (DeepNPTSTraining,) if issubclass(estimator, DeepNPTSEstimator) else ()


def estimator_arguments(arguments: dict[str, Any], trainer: Any) -> dict[str, Any]:
    """Return the arguments as they are: GluonTS' estimators take no trainer."""
    return arguments
