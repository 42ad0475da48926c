"""Predictors of PyTorchTS' networks, also of those that it cannot serialise itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gluonts.core import serde
from gluonts.model.predictor import Predictor
from gluonts.torch.model.predictor import PyTorchPredictor
from gluonts.transform import Transformation
from torch import nn

from pts_scott._utils.rng import isolated_rng

PREDICTOR: type = PyTorchPredictor


def make_predictor(
    network: nn.Module,
    input_names: list[str],
    input_transform: Transformation,
    prediction_length: int,
    freq: str,
    batch_size: int,
    device: torch.device,
) -> PyTorchPredictor:
    """Return a GluonTS 0.9 predictor of a trained network."""
    return PyTorchPredictor(
        input_names=input_names,
        prediction_net=network,
        batch_size=batch_size,
        prediction_length=prediction_length,
        freq=freq,
        input_transform=input_transform,
        device=device,
    )


def restore_predictor(predictor: Any) -> Any:
    """Return the predictor as it is: PyTorchTS' files are complete."""
    return predictor


class RebuiltPredictor(PyTorchPredictor):  # type: ignore[misc]
    """A predictor whose network is rebuilt by its estimator on deserialisation.

    PyTorchTS cannot serialise, or cannot deserialise, the prediction networks of N-BEATS,
    LSTNet, TempFlow and TimeGrad.
    """

    estimator: Any

    @classmethod
    def like(cls, predictor: PyTorchPredictor, estimator: Any) -> RebuiltPredictor:
        """Return the same predictor with the estimator that made it."""
        # A predictor depends on nothing of the trainer but the batch size.
        trainer = type(estimator.trainer)(
            batch_size=estimator.trainer.batch_size, device="cpu"
        )
        again = type(estimator)(**estimator.arguments, trainer=trainer)
        rebuilt = cls.__new__(cls)
        rebuilt.__dict__.update(predictor.__dict__, estimator=again)
        return rebuilt

    @classmethod
    def _untrained(cls, estimator: Any, device: torch.device) -> PyTorchPredictor:
        """Return an untrained predictor of an estimator."""
        with isolated_rng(0, device):
            network = estimator.create_training_network(device)
            transformation = estimator.create_transformation()
            return estimator.create_predictor(transformation, network, device)

    def serialize(self, path: Path) -> None:
        Predictor.serialize(self, path)
        (path / "estimator.json").write_text(serde.dump_json(self.estimator))
        # A forward pass may add buffers that a new network does not have.
        new = self._untrained(self.estimator, torch.device("cpu")).prediction_net
        own = self.prediction_net.state_dict()
        state = {name: own[name] for name in new.state_dict()}
        torch.save(state, path / "prediction_net_state")

    @classmethod
    def deserialize(
        cls, path: Path, device: torch.device | None = None
    ) -> RebuiltPredictor:
        estimator = serde.load_json((path / "estimator.json").read_text())
        device = torch.device("cpu" if device is None else device)
        predictor = cls._untrained(estimator, device)
        state = torch.load(
            path / "prediction_net_state", map_location=device, weights_only=True
        )
        predictor.prediction_net.load_state_dict(state)
        return cls.like(predictor, estimator)


def is_serializable(network: nn.Module) -> bool:
    """Return whether the library can serialise a network and read it again."""
    try:
        again = serde.load_json(serde.dump_json(network))
        again.load_state_dict(network.state_dict())
    except Exception:  # each network that it cannot serialise fails in a different way
        return False
    return True
