"""The PyTorchTS stack: its networks, its predictor, and its trainer's interface."""

# No postponed annotations here: GluonTS' ``validated`` reads them as types.
from pathlib import Path
from typing import Any

import torch
from gluonts.core import serde
from gluonts.core.component import validated
from gluonts.dataset.common import Dataset
from gluonts.itertools import Cached, Cyclic
from gluonts.model.predictor import Predictor
from gluonts.torch.model.predictor import PyTorchPredictor
from gluonts.torch.modules.distribution_output import DistributionOutput
from gluonts.transform import Transformation
from pts import Trainer
from pts.model import PyTorchEstimator
from pts.model.n_beats.n_beats_network import NBEATSNetwork as LibraryNBEATS
from pts.model.simple_feedforward import SimpleFeedForwardPredictionNetwork
from pts.modules import StudentTOutput
from torch import Tensor, nn

from pts_scott._utils.rng import isolated_rng
from pts_scott._utils.spacing import evenly_spaced
from pts_scott.backends.pytorchts_losses import ContextScaler, LibraryLosses
from pts_scott.data.instance_index import InstanceIndex
from pts_scott.data.loader_arguments import warn_unused_loader
from pts_scott.data.pipeline import Pipeline
from pts_scott.errors import about_validation_data
from pts_scott.models.networks import NBEATSHead, observed_mean

NAME = "pytorchts"

#: Bases of the estimators whose training can be replaced.
LIBRARY_ESTIMATORS = (PyTorchEstimator,)

#: What belongs to the trainer, and PyTorchTS' estimators have no argument for.
TRAINER_DECIDES: dict[str, str] = {
    "lr": "learning_rate",
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "batch_size": "batch_size",
    "num_batches_per_epoch": "num_batches_per_epoch",
    "epochs": "epochs",
    "trainer_kwargs": "trainer_kwargs",
}

STATISTICS = 1024  # windows, for layers that need a look at the data first


class TrainerBase(Trainer):  # type: ignore[misc]
    """What makes a trainer one that PyTorchTS' estimators accept and call."""

    def __init__(self) -> None:
        """Settings are those of ``ScottTrainer``; PyTorchTS' own are not used."""

    def __call__(
        self, net: nn.Module, train_iter: Any, validation_iter: Any | None = None
    ) -> None:
        """Train a network of PyTorchTS' own estimators, in place of their loop.

        Parameters
        ----------
        net
            The training network. Its loss of each window is taken in place of the mean
            over a batch.
        train_iter, validation_iter
            The loaders that the estimator made. Their windows are found again in the
            dataset behind them and gathered as tensors.

        Raises
        ------
        WindowLossError
            If the network returns no loss.
        """
        warn_unused_loader({"num_workers": train_iter.num_workers})
        windows = _windows_behind(train_iter)
        validation = None
        if validation_iter is not None:
            with about_validation_data():
                validation = _windows_behind(validation_iter)
        network = LibraryLosses(net)
        place = self.device  # type: ignore[attr-defined]
        some = windows.to(place).gather(evenly_spaced(len(windows), STATISTICS).to(place))
        network.fit_statistics(some)
        self.fit(network, windows, validation)  # type: ignore[attr-defined]


def _windows_behind(loader: Any) -> InstanceIndex:
    """The windows that a loader of PyTorchTS draws from."""
    transformed = loader.dataset.transformed_dataset
    dataset = transformed.base_dataset
    while isinstance(dataset, (Cached, Cyclic)):
        dataset = dataset.iterable
    return Pipeline.read(transformed.transformation).windows(dataset)


class SimpleFeedForwardNetwork(SimpleFeedForwardPredictionNetwork):  # type: ignore[misc]
    """PyTorchTS' feed-forward network with one loss a window."""

    @validated()
    def __init__(
        self,
        context_length: int,
        prediction_length: int,
        num_hidden_dimensions: list[int],
        distr_output: DistributionOutput,
        batch_normalization: bool,
        num_parallel_samples: int = 100,
    ) -> None:
        super().__init__(
            num_parallel_samples=num_parallel_samples,
            num_hidden_dimensions=num_hidden_dimensions,
            prediction_length=prediction_length,
            context_length=context_length,
            batch_normalization=batch_normalization,
            mean_scaling=True,
            distr_output=distr_output,
        )
        self.scaler = ContextScaler()

    def loss(
        self, past_target: Tensor, future_target: Tensor, future_observed_values: Tensor
    ) -> Tensor:
        """Negative log likelihood of each window, over its observed steps."""
        nll = -self.get_distr(past_target).log_prob(future_target)
        return observed_mean(nll, future_observed_values)


class NBEATSNetwork(NBEATSHead):
    """PyTorchTS' N-BEATS with one loss a window."""

    @validated()
    def __init__(
        self,
        context_length: int,
        prediction_length: int,
        periodicity: int,
        num_stacks: int,
        widths: list[int],
        num_blocks: list[int],
        num_block_layers: list[int],
        expansion_coefficient_lengths: list[int],
        stack_types: list[str],
        loss_function: str = "MAPE",
        scaling: bool = True,
    ) -> None:
        super().__init__()
        self.periodicity = periodicity
        self.loss_function = loss_function
        self.scaling = scaling
        self.network = LibraryNBEATS(
            prediction_length=prediction_length,
            context_length=context_length,
            num_stacks=num_stacks,
            widths=widths,
            num_blocks=num_blocks,
            num_block_layers=num_block_layers,
            expansion_coefficient_lengths=expansion_coefficient_lengths,
            sharing=[False] * num_stacks,
            stack_types=stack_types,
        )

    def predict(self, context: Tensor) -> Tensor:
        forecast: Tensor = self.network(context)
        return forecast


def simple_feedforward(
    context_length: int,
    prediction_length: int,
    hidden_dimensions: list[int],
    distr_output: Any | None,
    batch_norm: bool,
) -> nn.Module:
    """PyTorchTS' own feed-forward network."""
    return SimpleFeedForwardNetwork(
        context_length=context_length,
        prediction_length=prediction_length,
        num_hidden_dimensions=hidden_dimensions,
        distr_output=distr_output or StudentTOutput(),
        batch_normalization=batch_norm,
    )


def nbeats(**kwargs: Any) -> nn.Module:
    """PyTorchTS' own N-BEATS."""
    return NBEATSNetwork(**kwargs)


def make_predictor(
    network: nn.Module,
    input_names: list[str],
    input_transform: Transformation,
    prediction_length: int,
    freq: str,
    batch_size: int,
    device: torch.device,
) -> PyTorchPredictor:
    """A GluonTS 0.9 predictor around a trained network."""
    return PyTorchPredictor(
        input_names=input_names,
        prediction_net=network,
        batch_size=batch_size,
        prediction_length=prediction_length,
        freq=freq,
        input_transform=input_transform,
        device=device,
    )


def with_trainer(arguments: dict[str, Any], trainer: Any) -> dict[str, Any]:
    """The arguments of a library's estimator, with its trainer."""
    return {**arguments, "trainer": trainer}


def mixins(estimator: type) -> tuple[type, ...]:
    """What an estimator class needs besides a trainer: nothing here."""
    return ()


def made_whole(predictor: Any) -> Any:
    """A predictor that was read back, with what the library's files do not say."""
    return predictor


def train_model(
    estimator: Any,
    training_data: Dataset,
    validation_data: Dataset | None = None,
    **loader: Any,
) -> Any:
    """PyTorchTS' own ``train_model``, which calls the trainer.

    Parameters
    ----------
    estimator
        An estimator of PyTorchTS with a `ScottTrainer`.
    training_data, validation_data
        Entries with ``start`` and ``target``, and what else the model asks for.
    **loader
        What PyTorchTS' loaders take. Windows are gathered as tensors, so that no worker
        is needed; and torch 2 refuses to prefetch without one.
    """
    # PyTorchTS itself passes a prefetch_factor.
    warn_unused_loader({k: v for k, v in loader.items() if k != "prefetch_factor"})
    loader.update(num_workers=0, prefetch_factor=None)
    trainer = estimator.trainer
    with isolated_rng(trainer.next_seed(), trainer.device):  # of initial weights, too
        output = estimator.library_estimator.train_model(
            estimator, training_data, validation_data, **loader
        )
        if not _can_be_read_back(output.predictor.prediction_net):
            predictor = RebuiltPredictor.like(output.predictor, estimator)
            output = output._replace(predictor=predictor)
    return output


class RebuiltPredictor(PyTorchPredictor):  # type: ignore[misc]
    """A predictor whose network its estimator makes again when it is read back.

    PyTorchTS can't write down the prediction networks of N-BEATS, LSTNet, TempFlow and
    TimeGrad, or can't read them again.
    """

    estimator: Any

    @classmethod
    def like(cls, predictor: PyTorchPredictor, estimator: Any) -> "RebuiltPredictor":
        """The same predictor, which knows the estimator that made it."""
        # Of the trainer, the size of batches is all that a predictor depends on.
        trainer = type(estimator.trainer)(
            batch_size=estimator.trainer.batch_size, device="cpu"
        )
        again = type(estimator)(**estimator.arguments, trainer=trainer)
        rebuilt = cls.__new__(cls)
        rebuilt.__dict__.update(predictor.__dict__, estimator=again)
        return rebuilt

    @classmethod
    def _made(cls, estimator: Any, device: torch.device) -> PyTorchPredictor:
        """An untrained predictor of an estimator."""
        with isolated_rng(0, device):
            network = estimator.create_training_network(device)
            transformation = estimator.create_transformation()
            return estimator.create_predictor(transformation, network, device)

    def serialize(self, path: Path) -> None:
        Predictor.serialize(self, path)
        (path / "estimator.json").write_text(serde.dump_json(self.estimator))
        # A forward pass may leave buffers behind that a new network does not have.
        new = self._made(self.estimator, torch.device("cpu")).prediction_net
        own = self.prediction_net.state_dict()
        state = {name: own[name] for name in new.state_dict()}
        torch.save(state, path / "prediction_net_state")

    @classmethod
    def deserialize(
        cls, path: Path, device: torch.device | None = None
    ) -> "RebuiltPredictor":
        estimator = serde.load_json((path / "estimator.json").read_text())
        device = torch.device("cpu" if device is None else device)
        predictor = cls._made(estimator, device)
        state = torch.load(
            path / "prediction_net_state", map_location=device, weights_only=True
        )
        predictor.prediction_net.load_state_dict(state)
        return cls.like(predictor, estimator)


def _can_be_read_back(network: nn.Module) -> bool:
    """Whether the library can write a network down, and make it again from that."""
    try:
        again = serde.load_json(serde.dump_json(network))
        again.load_state_dict(network.state_dict())
    except Exception:  # each of its networks fails in a way of its own
        return False
    return True
