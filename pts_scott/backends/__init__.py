"""The two backends: PyTorchTS where it is installed, the current GluonTS otherwise.

Everything that imports ``pts`` or ``gluonts.torch`` lives in the two folders here. The
rest of the package uses ``backend``, which offers what `Backend` documents.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import torch
from gluonts.dataset.common import Dataset
from gluonts.model.predictor import Predictor
from gluonts.transform import Transformation
from torch import nn

from pts_scott.data.instance_index import InstanceIndex
from pts_scott.data.window_index import WindowIndex
from pts_scott.training import trainer as training

__all__ = ["Backend", "ScottTrainer", "backend"]


class Backend(Protocol):
    """The interface of a backend module."""

    #: "gluonts" or "pytorchts".
    NAME: str
    #: Base classes of the estimators that `with_scott` accepts.
    LIBRARY_ESTIMATORS: tuple[type, ...]
    #: The library's estimators, which configs can name.
    MODELS: tuple[type, ...]
    #: Models that a config cannot describe, and why not.
    UNSUITABLE: dict[str, str]
    #: Estimator arguments about training, and the trainer argument that replaces each.
    TRAINER_DECIDES: dict[str, str]
    #: The library's class of predictors of torch networks.
    PREDICTOR: type
    #: The library's own N-BEATS with one loss per window; None if it has none.
    nbeats: Callable[..., nn.Module] | None

    @property
    def ScottTrainer(self) -> type[training.ScottTrainer]:  # noqa: N802
        """The trainer class, as the library's estimators need it."""

    def simple_feedforward(
        self,
        context_length: int,
        prediction_length: int,
        hidden_dimensions: list[int],
        distr_output: Any | None,
        batch_norm: bool,
    ) -> nn.Module:
        """Return the library's own feed-forward network, with one loss per window."""

    def make_predictor(
        self,
        network: nn.Module,
        input_names: list[str],
        input_transform: Transformation,
        prediction_length: int,
        freq: str,
        batch_size: int,
        device: torch.device,
    ) -> Predictor:
        """Return a predictor of the library that forecasts with a trained network."""

    def restore_predictor(self, predictor: Any) -> Any:
        """Complete a deserialised predictor with state that the library does not save."""

    def training_mixins(self, estimator: type) -> tuple[type, ...]:
        """Return the bases that an estimator class needs in addition to its trainer."""

    def estimator_arguments(
        self, arguments: dict[str, Any], trainer: Any
    ) -> dict[str, Any]:
        """Return the arguments with which the library's ``__init__`` is called."""

    def train_model(
        self,
        estimator: Any,
        training_data: Dataset,
        validation_data: Dataset | None = None,
        **kwargs: Any,
    ) -> Any:
        """Train an estimator of `with_scott`; return what its ``train_model`` returns."""

    def create_windows(self, estimator: Any, dataset: Dataset) -> InstanceIndex:
        """Return the windows of a dataset that an estimator of `with_scott` trains on."""

    def train_windows(
        self,
        estimator: Any,
        windows: WindowIndex,
        validation: WindowIndex | None = None,
    ) -> Predictor:
        """Train an estimator of `with_scott` on windows of `create_windows`."""

    def missing_arguments(
        self, estimator: type, arguments: dict[str, Any], dataset: Dataset, trainer: Any
    ) -> dict[str, Any]:
        """Return required arguments that follow from the others and the data."""


def _has_pytorchts() -> bool:
    """Return whether PyTorchTS is installed; a mere folder named pts is not it."""
    found = find_spec("pts")
    return found is not None and found.origin is not None


backend: Backend
if _has_pytorchts():
    from pts_scott.backends import pytorchts

    backend = pytorchts
else:
    from pts_scott.backends import gluonts

    backend = gluonts

if TYPE_CHECKING:
    from pts_scott.training.trainer import ScottTrainer
else:
    ScottTrainer = backend.ScottTrainer
