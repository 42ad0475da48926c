"""Assembly of one run: network, windows, strata, plan and fingerprint."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from pts_scott._utils.rng import Generators
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.losses import Losses
from pts_scott.engine.training_effects import training_effects
from pts_scott.errors import ArgumentError
from pts_scott.method.methods import METHODS, Method
from pts_scott.training.compile_policy import CompileDecision, decide_compilation
from pts_scott.training.fingerprint import describe_optimizer, fingerprint_of
from pts_scott.training.history import History
from pts_scott.training.lightning_assembly import LightningOptions
from pts_scott.training.lightning_module import OuterLoopModule
from pts_scott.training.plan import Plan
from pts_scott.training.runner import OuterLoopRunner
from pts_scott.training.sampling_setup import SamplingSetup

if TYPE_CHECKING:
    from pts_scott.training.trainer import ScottTrainer


class RunAssembly:
    """The parts of one run.

    Parameters
    ----------
    trainer
        The options.
    losses, windows
        The network in training mode, and the windows to train on, both on the device.
    output
        Which parameters the run returns.
    """

    def __init__(
        self,
        trainer: ScottTrainer,
        losses: Losses,
        windows: WindowIndex,
        output: str = "last",
    ) -> None:
        self._trainer, self._losses, self._windows = trainer, losses, windows
        self._output = output
        self._options = LightningOptions(trainer.trainer_kwargs)
        began = time.perf_counter()
        self._sampling = SamplingSetup(
            windows, trainer.hyperparameters, trainer.stratifier, trainer.objective
        )
        self.strata = self._sampling.strata
        self.stratify_seconds = time.perf_counter() - began
        self.effects = training_effects(losses, windows)

    def make_module(
        self, validation: WindowIndex | None, seed: int, history: History
    ) -> OuterLoopModule:
        """Return the run as a Lightning module.

        Raises
        ------
        ArgumentError
        """
        trainer, compilation = self._trainer, self.decide_compilation()
        generators = Generators.from_seed(seed)
        numbers = trainer.hyperparameters
        method = METHODS[numbers.method](
            numbers, self._windows, self.strata, generators, self._sampling.objective
        )
        self._check_gradient_budget(method)
        probes = self._sampling.make_probes(
            self._losses, method, trainer.budget, generators.probe, seed
        )
        runner = OuterLoopRunner(
            self._losses,
            self.effects,
            self._windows,
            method,
            probes,
            self._plan(compilation),
            generators,
            history,
        )
        fingerprint = fingerprint_of(
            self._losses,
            self._windows,
            self.strata,
            validation,
            self._fingerprint_settings(),
        )
        return OuterLoopModule(runner, validation, fingerprint, compilation.fallback)

    def decide_compilation(self) -> CompileDecision:
        """Decide whether the steps of this run are compiled."""
        trainer, options = self._trainer, self._options
        return decide_compilation(
            trainer.compile,
            self._losses,
            self._windows,
            self.effects,
            trainer.hyperparameters,
            trainer.budget,
            on_cpu=trainer.device.type == "cpu",
            excluded=options.is_mixed_precision,
        )

    def _check_gradient_budget(self, method: Method) -> None:
        need, given = method.first_step_cost, self._trainer.gradient_budget
        if given is not None and given < need:
            name = self._trainer.hyperparameters.method
            raise ArgumentError(
                f"gradient_budget={given}: the first step of method={name!r} needs "
                f"{need} gradients here."
            )

    def _plan(self, compilation: CompileDecision) -> Plan:
        trainer = self._trainer
        return Plan(
            hyperparameters=trainer.hyperparameters,
            budget=trainer.budget,
            coefficient=trainer.coefficient,
            num_batches_per_epoch=trainer.num_batches_per_epoch,
            output=self._output,
            clip_gradient=trainer.clip_gradient,
            make_optimizer=trainer._make_optimizer,
            make_scheduler=None if trainer.scheduler is None else self._make_scheduler,
            skip_limit=trainer.skip_limit,
            compiled=compilation.compiled,
            must_compile=trainer.compile is True,
        )

    def _make_scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        assert self._trainer.scheduler is not None
        scheduler = self._trainer.scheduler(optimizer)
        if not isinstance(scheduler, LRScheduler):
            raise ArgumentError(
                f"scheduler returned {type(scheduler).__name__}; expected a function "
                "from the optimizer to a scheduler of torch.optim.lr_scheduler."
            )
        return scheduler

    def _fingerprint_settings(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share with the original one."""
        trainer = self._trainer
        optimizer, scheduler = trainer.optimizer, trainer.scheduler
        if trainer.checkpoint is not None and not isinstance(optimizer, str):
            parameters = list(self._losses.trainable().values())
            optimizer = describe_optimizer(trainer._make_optimizer(parameters))
        return {
            **_plain(dataclasses.asdict(trainer.hyperparameters)),
            "objective": str(trainer.objective),
            "stratifier": str(trainer.stratifier),
            "seed": trainer.seed,
            "optimizer": optimizer if isinstance(optimizer, str) else "a function",
            "scheduler": getattr(scheduler, "__qualname__", scheduler and "a function"),
            "learning_rate": trainer.learning_rate,
            "weight_decay": trainer.weight_decay,
            "coefficient": trainer.coefficient,
            "num_batches_per_epoch": trainer.num_batches_per_epoch,
            "clip_gradient": trainer.clip_gradient,
            "output": self._output,
        }


def _plain(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return hyperparameters with a table of shares as text."""
    allocation = numbers["allocation"]
    text = (
        allocation
        if allocation is None or isinstance(allocation, str)
        else str(allocation)
    )
    return {**numbers, "allocation": text}
