"""AutoGluon's GluonTS models, trained by a `ScottTrainer`.

Importing this module registers ``ScottDeepAR``, ``ScottDLinear``, ``ScottPatchTST``,
``ScottSimpleFeedForward``, ``ScottTemporalFusionTransformer``, ``ScottTiDE`` and
``ScottWaveNet``, which `TimeSeriesPredictor.fit` then accepts by name.

Examples
--------
>>> import pts_scott.integrations.autogluon                        # doctest: +SKIP
>>> TimeSeriesPredictor(prediction_length=24).fit(                 # doctest: +SKIP
...     frame, hyperparameters={"ScottDeepAR": {}, "PatchTST": {}}
... )
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from typing import Any

try:
    from autogluon.timeseries.models.gluonts import (
        DeepARModel,
        DLinearModel,
        PatchTSTModel,
        SimpleFeedForwardModel,
        TemporalFusionTransformerModel,
        TiDEModel,
        WaveNetModel,
    )
    from autogluon.timeseries.models.gluonts.dataset import SimpleGluonTSDataset
except ImportError as error:
    raise ImportError(
        "pts_scott.integrations.autogluon needs AutoGluon: "
        "pip install 'pts-scott[autogluon]'."
    ) from error
from gluonts.time_feature import time_features_from_frequency_str

from pts_scott._utils.arguments import check_names
from pts_scott.backends import ScottTrainer
from pts_scott.models.with_scott import with_scott
from pts_scott.strata.stratifier import Stratifier

__all__ = [
    "ScottDLinearModel",
    "ScottDeepARModel",
    "ScottPatchTSTModel",
    "ScottSimpleFeedForwardModel",
    "ScottTemporalFusionTransformerModel",
    "ScottTiDEModel",
    "ScottWaveNetModel",
]

#: AutoGluon's names of arguments of the trainer.
ALIASES = {"max_epochs": "epochs", "lr": "learning_rate"}
#: Hyperparameters that AutoGluon itself uses, besides those of trainer and estimator.
AUTOGLUON = {
    *("early_stopping_patience", "keep_lightning_logs", "predict_batch_size"),
    *("covariate_regressor", "covariate_scaler", "target_scaler", "max_cat_cardinality"),
    *("disable_known_covariates", "disable_past_covariates", "disable_static_features"),
    *("freq", "prediction_length", "quantiles", "cardinality"),
}


class ScottModel:
    """Mixin that puts a `ScottTrainer` into AutoGluon's wrapper of a GluonTS model.

    The network, its features and its defaults are AutoGluon's. Hyperparameters are those
    of its wrapper, those of the GluonTS estimator, and the arguments of `ScottTrainer`;
    ``stratifier`` may also be the text of a policy, e.g. ``"calendar('weekday')"``.
    """

    # Of AutoGluon's wrappers:
    freq: str
    path: str
    callbacks: list[Any]
    _get_default_hyperparameters: Callable[[], dict[str, Any]]
    _get_estimator_class: Callable[[], type]
    _get_estimator_init_args: Callable[[], dict[str, Any]]
    _is_gpu_available: Callable[[], bool]

    def _get_estimator(self) -> Any:
        """Return the estimator with SCott."""
        found = self._get_estimator_init_args()
        estimator = with_scott(self._get_estimator_class())
        of_estimator = {*inspect.signature(estimator).parameters} - {"trainer"}
        of_trainer = {*inspect.signature(ScottTrainer).parameters}
        known = of_estimator | of_trainer | {*ALIASES} | AUTOGLUON
        known |= {*self._get_default_hyperparameters()}
        check_names(type(self).__name__.removesuffix("Model"), found, sorted(known))
        settings = {ALIASES.get(name, name): value for name, value in found.items()}
        trainer = self._trainer({k: v for k, v in settings.items() if k in of_trainer})
        arguments = {k: v for k, v in settings.items() if k in of_estimator - of_trainer}
        if "freq" in of_estimator:
            # AutoGluon gives every estimator the same frequency, from which some derive
            # their features; windows need that of the data.
            if "time_features" in of_estimator and not arguments.get("time_features"):
                features = time_features_from_frequency_str(arguments["freq"])
                arguments["time_features"] = features
            arguments["freq"] = SimpleGluonTSDataset._get_freq_for_period(self.freq)
        return estimator(**arguments, trainer=trainer)

    def _trainer(self, settings: dict[str, Any]) -> ScottTrainer:
        if isinstance(settings.get("stratifier"), str):
            settings["stratifier"] = Stratifier.parse(settings["stratifier"])
        lightning: dict[str, Any] = {
            "limit_val_batches": 3,
            "callbacks": self.callbacks,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": self.path,
            "accelerator": "gpu" if self._is_gpu_available() else "cpu",
            **(settings.pop("trainer_kwargs", None) or {}),
        }
        # Lightning attaches the run to callbacks, and AutoGluon saves those it was given.
        given = lightning["callbacks"] or []
        given = given if isinstance(given, list | tuple) else [given]
        lightning["callbacks"] = [copy(callback) for callback in given]
        settings.setdefault("device", _device(lightning))
        if "max_epochs" in lightning:
            settings["epochs"] = lightning.pop("max_epochs")
        return ScottTrainer(**settings, trainer_kwargs=lightning)


def _device(lightning: dict[str, Any]) -> str:
    """Take Lightning's choice of a device out of its arguments."""
    accelerator, devices = lightning.pop("accelerator"), lightning.pop("devices", 1)
    if isinstance(devices, list) and len(devices) == 1 and accelerator in ("gpu", "cuda"):
        return f"cuda:{devices[0]}"
    return {"gpu": "cuda", "cuda": "cuda", "mps": "mps", "cpu": "cpu"}.get(
        accelerator, "auto"
    )


class ScottDeepARModel(ScottModel, DeepARModel):
    """AutoGluon's DeepAR, trained by a `ScottTrainer`."""


class ScottDLinearModel(ScottModel, DLinearModel):
    """AutoGluon's DLinear, trained by a `ScottTrainer`."""


class ScottPatchTSTModel(ScottModel, PatchTSTModel):
    """AutoGluon's PatchTST, trained by a `ScottTrainer`."""


class ScottSimpleFeedForwardModel(ScottModel, SimpleFeedForwardModel):
    """AutoGluon's SimpleFeedForward, trained by a `ScottTrainer`."""


class ScottTemporalFusionTransformerModel(ScottModel, TemporalFusionTransformerModel):
    """AutoGluon's TFT, trained by a `ScottTrainer`."""


class ScottTiDEModel(ScottModel, TiDEModel):
    """AutoGluon's TiDE, trained by a `ScottTrainer`."""


class ScottWaveNetModel(ScottModel, WaveNetModel):
    """AutoGluon's WaveNet, trained by a `ScottTrainer`."""
