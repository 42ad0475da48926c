"""`ScottTrainer` as a trainer that PyTorchTS' estimators accept and call."""

from __future__ import annotations

from typing import Any

from gluonts.itertools import Cached, Cyclic
from pts import Trainer
from torch import nn

from pts_scott.backends.pytorchts.losses import PyTorchTSLosses
from pts_scott.backends.window_sample import sample_batch
from pts_scott.data.instance_index import InstanceIndex
from pts_scott.data.loader_arguments import warn_unused_loader
from pts_scott.data.pipeline import Pipeline
from pts_scott.data.window_index import WindowIndex
from pts_scott.errors import about_validation_data
from pts_scott.training import trainer as training


class ScottTrainer(training.ScottTrainer, Trainer):  # type: ignore[misc]  # noqa: D101
    # PyTorchTS' own settings are not used, so its __init__ is never called.
    __doc__ = training.ScottTrainer.__doc__

    def __call__(
        self, net: nn.Module, train_iter: Any, validation_iter: Any | None = None
    ) -> None:
        """Train a network of PyTorchTS' own estimators, in place of their loop.

        Parameters
        ----------
        net
            The training network. Its loss of each window replaces the mean over a batch.
        train_iter, validation_iter
            The loaders that the estimator made. Windows are gathered as tensors from
            the datasets behind them.

        Raises
        ------
        WindowLossError
            If the network returns no loss.
        """
        warn_unused_loader({"num_workers": train_iter.num_workers})
        windows = _loader_windows(train_iter)
        validation = None
        if validation_iter is not None:
            with about_validation_data():
                validation = _loader_windows(validation_iter)
        self.fit_library_network(net, windows, validation)

    def fit_library_network(
        self, net: nn.Module, windows: WindowIndex, validation: WindowIndex | None
    ) -> None:
        """Train a training network of PyTorchTS on windows, in place."""
        network = PyTorchTSLosses(net)
        network.fit_statistics(sample_batch(windows.to(self.device)))
        self.fit(network, windows, validation)


def _loader_windows(loader: Any) -> InstanceIndex:
    """Return the windows that a loader of PyTorchTS draws from."""
    transformed = loader.dataset.transformed_dataset
    dataset = transformed.base_dataset
    while isinstance(dataset, (Cached, Cyclic)):
        dataset = dataset.iterable
    return Pipeline.read(transformed.transformation).windows(dataset)
