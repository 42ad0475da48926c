"""The bridge to Lightning: one outer loop is one ``training_step``.

Progress bars, loggers, callbacks, checkpoints and devices are Lightning's; its cost is
paid once in K steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pts_scott._utils.text import shorten
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.build import EngineOptions
from pts_scott.engine.gradients import uncached_autocast
from pts_scott.engine.losses import evaluate
from pts_scott.engine.processes import Processes, ProcessGroup
from pts_scott.errors import ModelError
from pts_scott.training.callbacks import Observer
from pts_scott.training.clock import Stopwatch
from pts_scott.training.fingerprint import Fingerprint
from pts_scott.training.joining import join_processes
from pts_scott.training.lightning_progress import advance_steps, skip_epochs
from pts_scott.training.optimizers import use_own_kernels
from pts_scott.training.run_state import (
    KEY,
    RunState,
    check_shapes,
    intact_checkpoint,
)
from pts_scott.training.runner import OuterLoopRunner
from pts_scott.training.signals import stop_on_termination

LOG_SECONDS = 0.25


class OuterLoopModule(pl.LightningModule):
    """A run as Lightning sees it.

    Parameters
    ----------
    runner
        The outer loops of the run.
    validation
        Windows for ``val_loss``; None for no validation.
    fingerprint
        Fingerprint of the run, for its checkpoints.
    compile_fallback
        Why steps are not compiled although they should be; None otherwise.
    """

    def __init__(
        self,
        runner: OuterLoopRunner,
        validation: WindowIndex | None,
        fingerprint: Fingerprint | None = None,
        compile_fallback: str | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.runner = runner
        self.losses = runner.losses  # a submodule: Lightning moves and saves it
        self.validation = validation
        self.fingerprint = fingerprint or {}
        self._fallback = compile_fallback
        self._stop_requested = False
        self._between = False
        self._logged = -math.inf
        self._keeps_state = False
        self._trained = list(runner.losses.trainable())

    @property
    def state(self) -> RunState:
        """Counts, clock and history of the run."""
        return self.runner.state

    @property
    def windows(self) -> WindowIndex:
        """The training windows."""
        return self.runner.windows

    @property
    def steps(self) -> int:
        """Steps made so far."""
        return self.state.counters.steps

    @property
    def clock(self) -> Stopwatch:
        """The clock of this process."""
        return self.state.clock

    @property
    def seconds(self) -> float:
        """Seconds of training, on which all processes agree."""
        return self.runner.seconds

    @property
    def processes(self) -> Processes:
        """The processes that train this network."""
        return self.runner.processes

    @property
    def compiled(self) -> bool:
        """Whether steps are compiled."""
        return self.runner.compiled

    @property
    def compile_fallback(self) -> str | None:
        """Why steps are not compiled although they should be; None otherwise."""
        setup = self.runner.setup
        return self._fallback or (None if setup is None else setup.fallback)

    @property
    def self_check_seconds(self) -> float:
        """Seconds that the checks before the first step took."""
        return 0.0 if self.runner.setup is None else self.runner.setup.check_seconds

    def spent(self) -> float:
        """Return the share of the budget that is used up."""
        return self.runner.spent()

    # -- outer loops -------------------------------------------------------------------

    def outer_loops(self) -> Iterator[int]:
        """Yield outer loops until the epoch is complete, as the data of Lightning."""
        while not self.epoch_is_full():
            yield self.state.counters.outer

    def epoch_is_full(self) -> bool:
        """Return whether no outer loop is left in this epoch."""
        return self._steps_left() <= 0 or not self.runner.budget_allows_loop()

    def _steps_left(self) -> int:
        """Return the steps that are left in the current epoch."""
        due = (self.current_epoch + 1) * self.runner.plan.num_batches_per_epoch
        return due - self.steps

    @property
    def interrupted(self) -> bool:
        """Whether training ends with the current outer loop, in all processes."""
        group = self.processes
        if isinstance(group, ProcessGroup):
            return group.interrupted
        return self._stop_requested

    def interrupt(self) -> None:
        """End training with the current outer loop, as Ctrl-C and SIGTERM do."""
        self._stop_requested = True

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.interrupted and not self.epoch_is_full():
            self.trainer.should_stop = True

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Run one outer loop."""
        # Lightning fetches one ahead, so the last call may find nothing left to do.
        if self.epoch_is_full() or self.interrupted:
            return
        learning_rate = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
        before, runner = self.runner.compiled_steps, self.runner
        limit = self._steps_left() if self._epochs_are_observed() else None
        report = runner.outer_loop(learning_rate, limit)
        advance_steps(self.trainer, runner.compiled_steps - before)
        train_loss = runner.record(report, self.current_epoch)
        if runner.faults.gave_up:
            self.trainer.should_stop = True
        if train_loss is None:
            return
        if self.validation is None and not math.isnan(train_loss):
            self.state.scheduler_loss = train_loss
        if self._should_log():
            self._logged = time.perf_counter()
            # A non-finite loss would make callbacks end training; its step was skipped.
            if not math.isnan(self.state.train_loss):
                self.log("train_loss", self.state.train_loss, prog_bar=True, batch_size=1)
            self.log("done", self.spent(), prog_bar=True, batch_size=1)

    def _should_log(self) -> bool:
        """Return whether to log now; Lightning's log takes as long as a small step.

        Every outer loop is logged for a logger or a callback; for a progress bar only
        the last one in an epoch and some of the others.
        """
        return (
            self._loops_are_observed()
            or time.perf_counter() - self._logged >= LOG_SECONDS
            or self.epoch_is_full()
        )

    def _loops_are_observed(self) -> bool:
        """Return whether a logger or a callback may use what is logged."""
        return bool(self.trainer.loggers) or not all(
            isinstance(callback, pl.callbacks.ProgressBar | Observer)
            for callback in self._callbacks
        )

    def _epochs_are_observed(self) -> bool:
        """Return whether something takes place when an epoch ends.

        If not, an outer loop need not end there: an epoch of 50 steps of a small network
        takes Lightning as long as many of these steps.
        """
        return (
            self.validation is not None
            or self.runner.plan.make_scheduler is not None
            or self._loops_are_observed()
        )

    @property
    def _callbacks(self) -> list[pl.Callback]:
        return self.trainer.callbacks  # type: ignore[attr-defined, no-any-return]

    # -- the start of a run ------------------------------------------------------------

    def configure_optimizers(self) -> Any:
        """Make the optimizer whose gradient is replaced by v, and its scheduler."""
        plan, evaluated = self.runner.plan, self.runner.evaluated
        optimizer = self._make_optimizer()
        evaluated.use(optimizer)
        self._keeps_state = bool(optimizer.state) or evaluated.differ
        if plan.make_scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": plan.make_scheduler(optimizer)}

    def _make_optimizer(self) -> torch.optim.Optimizer:
        return self.runner.plan.make_optimizer(list(self.losses.trainable().values()))

    def on_train_start(self) -> None:
        """Make and check the engine, then start the clock."""
        stop_on_termination(self.interrupt)
        if self.trainer.world_size > 1:
            self.runner.processes = join_processes(
                *(self.runner, self.fingerprint, lambda: self._stop_requested),
                getattr(self.trainer.strategy, "reduced_dtype", None),
            )
        self._check_trainable_unchanged()
        self.runner.evaluated.train()
        self._start_engine()
        self.clock.start()

    def _start_engine(self) -> None:
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        # Lightning's scaler of mixed precision; its state is part of the checkpoints.
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            scaler.scale(torch.ones((), device=self.device))  # it is initialised lazily
        options = EngineOptions(
            optimizer.optimizer,
            optimizer.step,
            clip_gradient=self.runner.plan.clip_gradient,
            keeps_state=self._keeps_state,
            is_watched=any(
                is_overridden("on_before_optimizer_step", callback, pl.Callback)
                for callback in self._callbacks
            ),
        )
        precision = self.trainer.precision_plugin.train_step_context
        self.runner.start(options, scaler, precision)

    def _check_trainable_unchanged(self) -> None:
        """Refuse callbacks that freeze or unfreeze parameters during a run.

        Raises
        ------
        ModelError
        """
        now = list(self.losses.trainable())
        if now != self._trained:
            changed = sorted({*now} ^ {*self._trained})
            raise ModelError(
                f"requires_grad of {shorten(changed)} was changed after training began, "
                "but snapshot and optimizer hold the parameters that were trainable "
                "then. Train in two runs: set requires_grad and call train, set it again "
                "and continue with train_from (or fit)."
            )

    # -- epochs and validation ---------------------------------------------------------

    def on_train_epoch_start(self) -> None:
        self._check_trainable_unchanged()

    def on_train_epoch_end(self) -> None:
        made = self.steps // self.runner.plan.num_batches_per_epoch
        passed = 1 + skip_epochs(self.trainer, made)
        scheduler = self.lr_schedulers()
        if isinstance(scheduler, ReduceLROnPlateau):
            if self.state.scheduler_loss is not None:
                scheduler.step(self.state.scheduler_loss)
            self.state.scheduler_loss = None
        elif isinstance(scheduler, LRScheduler):
            for _ in range(passed):
                scheduler.step()
        if not self.runner.budget_allows_loop():
            self.trainer.should_stop = True

    def on_validation_start(self) -> None:
        self.clock.stop()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Compute the mean loss over all windows of the validation data."""
        with self.runner.evaluated.evaluating():
            value = self._validate()
            self.runner.output.offer_validated(value)
        self.state.history.extend(val_loss=value)
        self.state.scheduler_loss = value
        is_shared = self.processes.size > 1  # all processes have the same value
        self.log("val_loss", value, prog_bar=True, batch_size=1, sync_dist=is_shared)

    def _validate(self) -> float:
        assert self.validation is not None
        numbers = torch.arange(len(self.validation))
        own, _ = self.processes.shard(numbers, numbers)
        total = 0.0
        if len(own):
            with (
                uncached_autocast(),
                self.runner.named_errors(self.validation, lambda: own.to(self.device)),
            ):
                total = len(own) * float(evaluate(self.losses, self.validation, own))
        return self.processes.sums([total])[0] / len(numbers)

    def on_validation_end(self) -> None:
        self.clock.start()

    def on_train_end(self) -> None:
        self.finish()

    def finish(self) -> None:
        """Stop the clock, and restore the parameters that training returns."""
        self.clock.stop()
        self.runner.evaluated.finish()
        self.runner.output.restore()

    # -- checkpoints -------------------------------------------------------------------

    @contextmanager
    def between_loops(self) -> Iterator[None]:
        """Mark checkpoints as written between outer loops: a run can resume from them."""
        self._between = True
        try:
            yield
        finally:
            self._between = False

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        engine = self.runner.engine_state()
        state = self.state.state_dict(self.processes, engine, self.device)
        own = {"fingerprint": self.fingerprint, "between": self._between}
        checkpoint[KEY] = {**state, **own}
        if self._between:
            # The loop that Lightning marked as ready has not started.
            loops = checkpoint["loops"]["fit_loop"]
            for part in loops["epoch_loop.batch_progress"].values():
                if isinstance(part, dict):
                    part["ready"] = part["completed"]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Resume a run, regardless of why it ended before."""
        with intact_checkpoint():
            check_shapes(self, checkpoint["state_dict"])
            self.state.load_state_dict(checkpoint[KEY], self._rank())
            use_own_kernels(checkpoint["optimizer_states"][0], self._make_optimizer())
        self.state.finished = False
        self.runner.faults.retry()

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Load the result of a run that needs no further training."""
        with intact_checkpoint():
            check_shapes(self, checkpoint["state_dict"])
            self.state.load_state_dict(checkpoint[KEY], self._rank())  # buffers' shapes
            self.load_state_dict(checkpoint["state_dict"])
            saved = checkpoint["optimizer_states"][0]
            self.runner.evaluated.use(self._make_optimizer(), saved)
        self.state.finished = True
        self.finish()

    def _rank(self) -> int:
        return self.trainer.global_rank if self._trainer is not None else 0
