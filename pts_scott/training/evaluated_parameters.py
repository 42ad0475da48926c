"""The parameters that are validated, measured and returned.

Most optimizers have one set of parameters. Schedule-free ones compute gradients at other
parameters than those that are evaluated, and switch between them by their methods
``train`` and ``eval``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from pts_scott.engine.losses import Losses


def has_modes(optimizer: Optimizer) -> bool:
    """Return whether an optimizer switches between training and evaluation."""
    return all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))


class EvaluatedParameters:
    """The parameters of a network as its optimizer wants them to be evaluated.

    Parameters
    ----------
    losses
        The network.
    """

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._optimizer: Any = None
        self._evaluating = False

    @property
    def differ(self) -> bool:
        """Whether they are other parameters than those of training."""
        return self._optimizer is not None

    def use(self, optimizer: Optimizer, state: dict[str, Any] | None = None) -> None:
        """Switch this optimizer from now on.

        Parameters
        ----------
        optimizer
            The optimizer of the run.
        state
            Its state in a checkpoint, if the parameters are those of that checkpoint.
        """
        if has_modes(optimizer):
            self._optimizer = optimizer
            if state is not None:
                optimizer.load_state_dict(state)

    def train(self) -> None:
        """Switch to the parameters at which gradients are computed."""
        if self._optimizer is not None:
            self._optimizer.train()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch to the parameters to evaluate, and back on exit.

        Switching back would round; the parameters are restored from a copy, so that an
        evaluation does not change the run.
        """
        if self._optimizer is None or self._evaluating:
            yield
            return
        parameters = [p.detach() for p in self._losses.trainable().values()]
        trained = [p.clone() for p in parameters]
        self._optimizer.eval()
        self._evaluating = True
        try:
            yield
        finally:
            self._evaluating = False
            self._optimizer.train()
            torch._foreach_copy_(parameters, trained)

    def finish(self) -> None:
        """Switch to the parameters to evaluate, at the end of training."""
        if self._optimizer is not None and not self._evaluating:
            self._optimizer.eval()
            self._evaluating = True

    def copy_state(self) -> Any:
        """Return a copy of them, and of the buffers."""
        with self.evaluating():
            return self._losses.copy_state()

    def restore_state(self, copy: Any) -> None:
        """Restore what `copy_state` returned."""
        self._losses.restore_state(copy)
