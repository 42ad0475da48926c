"""Lightning around the outer loop: one outer loop is one ``training_step``.

Progress bars, loggers, callbacks, checkpoints and devices are Lightning's; its cost
is paid once in K steps.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.progress import _ProcessedTracker
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pts_scott import __version__
from pts_scott._utils.rng import (
    Generators,
    changed_sources,
    global_state,
    offset_global_seed,
    set_global_state,
)
from pts_scott._utils.text import cause, one_line, shorten
from pts_scott.data.window_index import Batch, WindowIndex
from pts_scott.engine.compiled import FusedStep, can_fuse
from pts_scott.engine.distributed import Processes, ProcessGroup
from pts_scott.engine.gradients import (
    Gradients,
    Losses,
    mean_loss,
    set_buffers,
    uncached_autocast,
)
from pts_scott.engine.model_checks import plain_attributes
from pts_scott.engine.nonfinite_windows import failing, has_diverged, name_windows
from pts_scott.engine.rollback import Undo
from pts_scott.engine.self_check import SelfCheck
from pts_scott.errors import (
    DamagedCheckpointError,
    DivergenceError,
    ModelError,
    ProcessError,
    ScottError,
    ScottWarning,
    SelfCheckError,
    WindowLossError,
)
from pts_scott.method.output import Kept
from pts_scott.method.scott import (
    OuterLoop,
    Scott,
    Settings,
    WindowDraws,
    fits_one_pass,
    geometric_length,
)
from pts_scott.strata.partition import Strata
from pts_scott.training.budget import Budget, History, Stopwatch
from pts_scott.training.callbacks import Observer
from pts_scott.training.fault_log import FaultLog
from pts_scott.training.signals import hear_termination

EVALUATION_BATCH = 1024
LOG_SECONDS = 0.1
KEY = "pts_scott"  # of our own part in Lightning's checkpoints
FORMAT = 1
#: What that part holds, besides format and version.
STATE: dict[str, type | tuple[type, ...]] = {
    "identity": dict,
    "between": bool,
    "finished": bool,
    "budget": list,
    "steps": int,
    "outer": int,
    "seconds": float,
    "latest": (float, type(None)),
    "latest_loss": float,
    "faults": dict,
    "random": list,
    "buffers": dict,
    "generators": dict,
    "scott": dict,
    "kept": dict,
    "history": dict,
}


@dataclass(frozen=True)
class Plan:
    """Everything that one training run is told, besides network and windows."""

    settings: Settings
    budget: Budget
    coefficient: float | str
    num_batches_per_epoch: int
    output: str
    clip_gradient: float | None
    make_optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
    make_scheduler: Callable[[torch.optim.Optimizer], LRScheduler] | None = None
    skip_limit: int = 10
    must_compile: bool = False  # a compiled step that is wrong is an error


class OuterLoopModule(pl.LightningModule):
    """A network, its windows, and the method that trains it, as Lightning sees them.

    Parameters
    ----------
    losses
        The window losses of the network.
    gradients
        Their gradient estimators.
    windows, strata
        What to train on; ``strata`` is None for methods without.
    validation
        Windows for ``val_loss``; None for no validation.
    plan
        Method, budgets and output.
    generators
        The streams of random numbers.
    history
        Where each outer loop writes its row.
    identity
        What tells this run from others, for its checkpoints.
    """

    def __init__(
        self,
        losses: Losses,
        gradients: Gradients,
        windows: WindowIndex,
        strata: Strata | None,
        validation: WindowIndex | None,
        plan: Plan,
        generators: Generators,
        history: History,
        identity: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.identity = identity or {}
        self.losses = losses
        self.gradients = gradients
        self.windows = windows
        self.validation = validation
        self.plan = plan
        self.generators = generators
        self.history = history
        self.clock = Stopwatch()
        self.steps = 0
        self.outer = 0
        self.faults = FaultLog(
            gradients, windows, plan.skip_limit, lambda: self.processes.first
        )
        #: Whether the run has come to its end; a checkpoint says so.
        self.finished = False
        self._stop_asked = False
        self._between = False
        self._logged = -math.inf
        self._latest: float | None = None  # loss by which a scheduler has yet to decide
        self._latest_loss = math.nan
        self._random: dict[str, Any] | None = None  # of a checkpoint, still to be set
        self.strata_count = len(strata) if strata is not None else len(windows)
        #: Why steps that were to be compiled are not; None otherwise.
        self.compile_fallback: str | None = None
        self.self_check_seconds = 0.0
        self._optimizer_has_state = False
        self._attributes: dict[str, str] = {}  # of the network, when it was compiled
        self._probes = torch.zeros(0, dtype=torch.long)  # finite before the first step
        self._trained: list[str] = list(losses.trainable())
        self._anchor_size = plan.settings.anchor_size(strata, windows)
        self._step_windows = plan.settings.step_windows(strata, windows)
        self._step_cost = plan.settings.step_size(strata, windows)
        self._first_cost = plan.settings.first_step_size(strata, windows)
        self._kept = Kept(plan.output, losses, generators.output)
        self.scott = Scott(
            gradients,
            self._gather,
            WindowDraws(plan.settings, windows, strata, generators),
            plan.settings,
            step=lambda: None,  # the optimizer's, once Lightning has made it
            clip_gradient=plan.clip_gradient,
        )

    def _gather(self, numbers: Tensor) -> Batch:
        return self.windows.gather(numbers, self.losses.fields)

    # -- the outer loops of an epoch ------------------------------------------------

    def outer_loops(self) -> Iterator[int]:
        """What Lightning iterates over: outer loops until the epoch is full."""
        while not self.epoch_is_full():
            yield self.outer

    def epoch_is_full(self) -> bool:
        """Whether no outer loop is left to do in this epoch."""
        return self.steps >= self._epoch_end() or not self._allowed(self._first_cost)

    def _epoch_end(self) -> int:
        """Steps that are due at the end of the current epoch."""
        return (self.current_epoch + 1) * self.plan.num_batches_per_epoch

    def _allowed(self, cost: int) -> bool:
        return self.plan.budget.allows(
            self.steps, self.seconds, self.gradients.count, cost
        )

    @property
    def processes(self) -> Processes:
        """Who trains this network together."""
        return self.scott.processes

    @property
    def seconds(self) -> float:
        """Seconds of training, on which all processes agree."""
        group = self.processes
        return group.seconds if isinstance(group, ProcessGroup) else self.clock.seconds

    @property
    def interrupted(self) -> bool:
        """Whether training is to end with the current outer loop, everywhere."""
        group = self.processes
        if isinstance(group, ProcessGroup):
            return group.interrupted
        return self._stop_asked

    def interrupt(self) -> None:
        """End training with the current outer loop, as Ctrl-C and SIGTERM do."""
        self._stop_asked = True

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.interrupted and not self.epoch_is_full():
            self.trainer.should_stop = True

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """One outer loop."""
        # Lightning fetches one ahead, so the last call may find nothing left to do.
        if self.epoch_is_full() or self.interrupted:
            return
        learning_rate = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
        self._kept.see_snapshot(learning_rate * self.strata_count)
        before, fused = self.steps, self.scott.fused_steps

        def exhausted() -> bool:
            allowed = self._allowed(self._step_cost)
            self.steps += int(allowed)
            return not allowed

        with (
            uncached_autocast(),
            self._named_failure(self.windows, lambda: self.scott.at_hand),
            self._noticed_draws(),
        ):
            report = self.scott.outer_loop(self._length(), self.coefficient(), exhausted)
        self.steps = before + report.steps
        self._advance(self.scott.fused_steps - fused)
        self._record(report)

    @contextmanager
    def _noticed_draws(self) -> Iterator[None]:
        """Notice a network that draws random numbers for some windows only.

        No probe has met them, so that the two passes of an inner step saw other numbers.
        """
        if self.gradients.stochastic or not self.plan.settings.has_anchor:
            yield
            return
        before = global_state(self.device)
        yield
        drawn = changed_sources(before, global_state(self.device))
        if drawn:
            self.gradients.stochastic = drawn
            self._train_eagerly(
                f"{self.losses.name} draws random numbers for some windows, which was "
                f"not noticed before step {self.steps}",
                "up to here the two passes of an inner step saw different ones, from "
                "here on they see the same, without compilation",
            )

    @contextmanager
    def _named_failure(
        self, windows: WindowIndex, numbers: Callable[[], Tensor | None]
    ) -> Iterator[None]:
        """A block in which a network that fails on a window is told apart from others.

        Parameters
        ----------
        windows, numbers
            Where to look for that window.
        """
        try:
            yield
        except ScottError:
            raise
        except Exception as error:
            suspects = numbers()
            found = None
            if suspects is not None:
                found = failing(self.losses, windows, suspects)
            if found is None:  # it is not the network, or needs another batch to fail
                raise
            number, reason = found
            if has_diverged(self.gradients, self.windows, self._probes):
                raise DivergenceError(
                    f"training diverged: at step {self.steps} {self.losses.name} fails "
                    "on windows that it was checked on before training "
                    f"({cause(reason)}). Lower learning_rate, or set clip_gradient."
                ) from error
            raise WindowLossError(
                f"{self.losses.name} fails on {name_windows(windows, number)}: "
                f"{cause(reason)}. Look at the values and features of that window: a "
                "category, say, must be below its cardinality."
            ) from error

    def _advance(self, steps: int) -> None:
        """Tell Lightning, and schedulers, of steps that the optimizer did not make."""
        if steps:
            self.trainer.optimizers[0]._opt_called = True  # type: ignore[attr-defined]
        progress = (
            self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        )
        for part in (progress.total, progress.current):
            part.ready += steps
            part.completed += steps

    def _length(self) -> int:
        settings = self.plan.settings
        if not settings.has_anchor:  # nothing ties these steps together: cut as epochs do
            return min(settings.inner_steps, self._epoch_end() - self.steps)
        if settings.inner_length == "geometric":
            return geometric_length(self.strata_count, self.generators.length)
        return settings.inner_steps

    def coefficient(self) -> float:
        """The control variate's c in the outer loop that begins now."""
        if isinstance(self.plan.coefficient, str):  # "linear": from 1 to 0
            return 1.0 - self.spent()
        return self.plan.coefficient

    def spent(self) -> float:
        """The share of the budget that is used up."""
        return self.plan.budget.spent(self.steps, self.seconds, self.gradients.count)

    def _record(self, report: OuterLoop) -> None:
        losses, squared_norm = report.read()
        good = [loss for loss in losses if not math.isnan(loss)]
        train_loss = sum(good) / len(good) if good else math.nan
        self.clock.stop()  # the search for the windows behind a fault is not training
        self.faults.see(report, losses, self.steps)
        self.clock.start()
        if self.faults.gave_up:
            self.trainer.should_stop = True
        spent = {
            "gradients": self.gradients.count,
            "anchors": self.scott.anchors,
            "seconds": self.clock.seconds,
            "skipped": self.faults.skipped,
        }
        self.outer += 1
        if report.steps == 0:  # an anchor, then a budget at its end or a length of zero
            self.history.extend(**spent)
            return
        self.history.add(
            step=self.steps,
            outer=self.outer,
            epoch=self.current_epoch,
            train_loss=train_loss,
            update_norm=math.sqrt(squared_norm),
            **spent,
        )
        if not math.isnan(train_loss):  # else not a step of this outer loop was finite
            self._latest_loss = train_loss
            if self.validation is None:
                self._latest = train_loss
            self.faults.see_loss(train_loss, self.steps)
        if self._somebody_listens():
            # Callbacks take what is not finite for the end of training; it was skipped.
            if not math.isnan(self._latest_loss):
                self.log("train_loss", self._latest_loss, prog_bar=True, batch_size=1)
            self.log("done", self.spent(), prog_bar=True, batch_size=1)

    def _somebody_listens(self) -> bool:
        """Whether to log now: Lightning's log takes as long as a small step.

        A logger or a callback hears of every outer loop; a progress bar, which is for a
        person, of the last in an epoch and some of the others.
        """
        now = time.perf_counter()
        if (
            now - self._logged < LOG_SECONDS
            and not self.trainer.loggers
            and all(
                isinstance(c, pl.callbacks.ProgressBar | Observer)
                for c in self._callbacks
            )
            and not self.epoch_is_full()
        ):
            return False
        self._logged = now
        return True

    @property
    def _callbacks(self) -> list[pl.Callback]:
        return self.trainer.callbacks  # type: ignore[attr-defined, no-any-return]

    # -- Lightning's hooks ----------------------------------------------------------

    def configure_optimizers(self) -> Any:
        """The optimizer whose gradient is replaced by v, and its scheduler."""
        optimizer = self.plan.make_optimizer(list(self.losses.trainable().values()))
        self._optimizer_has_state = bool(optimizer.state)
        if self.plan.make_scheduler is None:
            return optimizer
        scheduler = self.plan.make_scheduler(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_train_start(self) -> None:
        hear_termination(self.interrupt)
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        self.scott.step = optimizer.step
        # Of half precision; it is Lightning's, and keeps its state in the checkpoints.
        scaler = self.gradients.scaler = getattr(
            self.trainer.precision_plugin, "scaler", None
        )
        if scaler is not None:
            scaler.scale(torch.ones((), device=self.device))  # it begins when first used
        if self.trainer.world_size > 1:
            self._join()
        self._check_still_trained()
        check = SelfCheck(self.scott, self.windows)
        with self._self_checking():
            check.check_network()
        self._probes = check.finite
        self.faults.begin(check.finite)
        if self.gradients.compiled:
            self._compile(optimizer.optimizer, check)
        if not self.gradients.compiled:
            with self._self_checking():
                check.check_engine(
                    optimizer.optimizer, self._step_windows, self._anchor_size
                )
            if self._needs_no_norm():
                self.scott.undo = Undo(
                    optimizer.optimizer,
                    self.gradients.parameters,
                    initialised=self._optimizer_has_state,
                )
        if self._random is not None:
            set_global_state(self._random, self.device)
        self.clock.start()

    def _needs_no_norm(self) -> bool:
        """Whether steps are made for which nobody asks the norm of v."""
        return not (
            self.plan.settings.has_anchor
            or self.plan.clip_gradient is not None
            or self.scott.deferred
            or self.gradients.scaler is not None
        )

    def _join(self) -> None:
        """Train together with the other processes that Lightning has started."""
        group = ProcessGroup(
            self.gradients.dtype,
            self.device,
            lambda: (self.clock.seconds, self._stop_asked),
        )
        group.seconds = self.clock.seconds
        for rank, identity in enumerate(group.gathered(self.identity)):
            if identity != self.identity:
                raise ProcessError(
                    f"process {rank} trains another model, or on other data, than "
                    f"process {group.rank}; start all with the same script and data."
                )
        behind = [self.steps, self.outer, self.gradients.count]
        if any(other != behind for other in group.gathered(behind)):
            raise ProcessError(
                "the processes do not begin at the same step: some have found a "
                "checkpoint, and others another one, or none. The folder of checkpoints "
                "must be one that all hosts share."
            )
        # Each process drew a seed of its own if none was given: the first one's counts.
        self.generators.load_state_dict(group.gathered(self.generators.state_dict())[0])
        offset_global_seed(group.rank)  # dropout's masks differ
        self.scott.processes = group

    @contextmanager
    def _self_checking(self) -> Iterator[None]:
        """Check in the precision of training, and take the time."""
        began = time.perf_counter()
        with self.trainer.precision_plugin.train_step_context():
            yield
        self.self_check_seconds += time.perf_counter() - began

    def _compile(self, optimizer: torch.optim.Optimizer, check: SelfCheck) -> None:
        """Compile and check before the clock starts; the seconds are in the history."""
        began, parameters = time.perf_counter(), self.gradients.parameters
        self._attributes = plain_attributes(self.losses.network)
        if (
            self.device.type == "cpu"
            and fits_one_pass(self._step_windows)
            and can_fuse(optimizer, parameters)
            and not self._is_watched()
        ):
            self.scott.fused = FusedStep(
                self.gradients, self._gather, optimizer, self.plan.clip_gradient
            )
        try:
            check.check_functional()
            self.scott.warm_up(self._anchor_size)
            self.history.compile_seconds += time.perf_counter() - began
            with self._self_checking():
                check.check_engine(optimizer, self._step_windows, self._anchor_size)
        except Exception as error:
            # Any part of the compiler may fail on a network that runs well without it.
            if isinstance(error, SelfCheckError) and self.plan.must_compile:
                raise
            reason = f"{type(error).__name__}: {one_line(error, 200)}"
            self._train_eagerly(
                f"{self.losses.name} could not be compiled, so it is trained without",
                reason,
            )

    def _check_still_trained(self) -> None:
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
                "and go on with train_from (or fit)."
            )

    def _is_watched(self) -> bool:
        """Whether a callback wants to be called at every single update."""
        return any(
            is_overridden("on_before_optimizer_step", callback, pl.Callback)
            for callback in self._callbacks
        )

    def on_train_epoch_start(self) -> None:
        self._check_still_trained()
        if self.gradients.compiled:
            self._check_attributes()

    def _check_attributes(self) -> None:
        """Go on without compiled steps if what they took for constant was changed."""
        now = plain_attributes(self.losses.network)
        changed = [name for name in now if now[name] != self._attributes.get(name)]
        if changed:
            self._train_eagerly(
                f"{self.losses.name} is trained without compilation from step "
                f"{self.steps} on",
                f"{shorten(changed)} of the network was changed after its steps were "
                "compiled, which take it for constant",
            )

    def _train_eagerly(self, message: str, reason: str) -> None:
        """Use no compiled step from now on, and say why."""
        self.compile_fallback = reason
        warnings.warn(f"{message}: {reason}", ScottWarning, stacklevel=3)
        self.scott.fused = None
        self.gradients.use_autograd()

    def on_train_end(self) -> None:
        self.finish()

    def on_train_epoch_end(self) -> None:
        passed = 1 + self._skip_epochs()
        scheduler = self.lr_schedulers()
        if isinstance(scheduler, ReduceLROnPlateau):
            if self._latest is not None:
                scheduler.step(self._latest)
            self._latest = None
        elif isinstance(scheduler, LRScheduler):
            for _ in range(passed):
                scheduler.step()
        if not self._allowed(self._first_cost):
            self.trainer.should_stop = True

    def _skip_epochs(self) -> int:
        """Leave out epochs whose steps were made by an anchor of this one.

        An anchor's inner steps are not cut where an epoch ends. Callbacks and schedulers
        would take an epoch without a step for one that brought nothing.
        """
        progress = self.trainer.fit_loop.epoch_progress
        total, current = progress.total, progress.current
        assert isinstance(total, _ProcessedTracker)
        assert isinstance(current, _ProcessedTracker)
        made = self.steps // self.plan.num_batches_per_epoch
        skipped = max(0, made - current.processed)
        for part in (total, current):
            part.ready += skipped
            part.started += skipped
            part.processed += skipped
            part.completed += skipped
        return skipped

    def on_validation_start(self) -> None:
        self.clock.stop()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """The mean loss over all windows of the validation data."""
        assert self.validation is not None
        numbers = torch.arange(len(self.validation))
        own, _ = self.processes.own(numbers, numbers)
        total = 0.0
        if len(own):
            with (
                uncached_autocast(),
                self._named_failure(self.validation, lambda: own.to(self.device)),
            ):
                total = len(own) * float(evaluate(self.losses, self.validation, own))
        value = self.processes.sums([total])[0] / len(numbers)
        self.history.extend(val_loss=value)
        self._latest = value
        self._kept.see_validation(value)
        shared = self.processes.size > 1  # they agree already, and Lightning wants to see
        self.log("val_loss", value, prog_bar=True, batch_size=1, sync_dist=shared)

    def on_validation_end(self) -> None:
        self.clock.start()

    # -- the run, written down ------------------------------------------------------

    @contextmanager
    def between_loops(self) -> Iterator[None]:
        """A block in which nothing is under way, so that a run can go on from there."""
        self._between = True
        try:
            yield
        finally:
            self._between = False

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        run = {"format": FORMAT, "version": __version__, "identity": self.identity}
        run["between"] = self._between
        checkpoint[KEY] = {**run, **self.state_dict_of_run()}
        if self._between:
            # The loop that Lightning has made ready has not begun.
            loops = checkpoint["loops"]["fit_loop"]
            for part in loops["epoch_loop.batch_progress"].values():
                if isinstance(part, dict):
                    part["ready"] = part["completed"]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with a run; whatever ended it, it has not ended any more."""
        with intact():
            self._check_parameters(checkpoint)
            self.load_state_dict_of_run(checkpoint[KEY])
        self.finished = False
        self.faults.go_on()

    def state_dict_of_run(self) -> dict[str, Any]:
        """All that the rest of the run depends on and Lightning does not keep."""
        random = global_state(self.device)
        buffers = self.losses.named_buffers() if self.gradients.stateful else ()
        budget = self.plan.budget
        return {
            "finished": self.finished,
            "budget": [budget.steps, budget.seconds, budget.gradients],
            "steps": self.steps,
            "outer": self.outer,
            "seconds": self.clock.seconds,
            "latest": self._latest,
            "latest_loss": self._latest_loss,
            "faults": self.faults.state_dict(),
            "random": self.processes.gathered(random),
            "buffers": {name: buffer.clone() for name, buffer in buffers},
            "generators": self.generators.state_dict(),
            "scott": self.scott.state_dict(),
            "kept": self._kept.state_dict(),
            "history": self.history.state_dict(),
        }

    def load_state_dict_of_run(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        for name in ("finished", "steps", "outer"):
            setattr(self, name, state[name])
        self._latest, self._latest_loss = state["latest"], state["latest_loss"]
        self.faults.load_state_dict(state["faults"])
        self.clock = Stopwatch(state["seconds"])
        set_buffers(self.losses, state["buffers"])
        self.generators.load_state_dict(state["generators"])
        self.scott.load_state_dict(state["scott"])
        self._kept.load_state_dict(state["kept"])
        self.history.load_state_dict(state["history"])
        random = state["random"]
        self._random = random[min(self._rank(), len(random) - 1)]

    def is_beyond(self, state: dict[str, Any]) -> bool:
        """Whether the run of a checkpoint has used up the budget that there is now."""
        budget, cost = self.plan.budget, self._first_cost
        with intact():
            count = state["scott"]["gradients"]
            return not budget.allows(state["steps"], state["seconds"], count, cost)

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Take the result of a run that is not trained any further."""
        with intact():
            self._check_parameters(checkpoint)
            self.load_state_dict_of_run(checkpoint[KEY])  # first: buffers' shapes
            self.load_state_dict(checkpoint["state_dict"])
        self.finished = True
        self.finish()

    def _check_parameters(self, checkpoint: dict[str, Any]) -> None:
        """See that the parameters are those that the run had."""
        found = checkpoint["state_dict"]
        for name, parameter in self.named_parameters():
            if found[name].shape != parameter.shape:
                raise ValueError(f"{name} has shape {tuple(found[name].shape)}")

    def _rank(self) -> int:
        return self.trainer.global_rank if self._trainer is not None else 0

    def finish(self) -> None:
        """Stop the clock, and leave the parameters that training returns."""
        self.clock.stop()
        self._kept.restore()


@contextmanager
def intact() -> Iterator[None]:
    """A block that reads a checkpoint, which may hold anything.

    Raises
    ------
    DamagedCheckpointError
        In place of what comes of that.
    """
    try:
        yield
    except ScottError:
        raise
    except Exception as error:
        raise DamagedCheckpointError(
            f"the checkpoint does not hold what was written ({cause(error)}); it was "
            "changed since then. Remove it to start again."
        ) from error


def evaluate(
    losses: Losses, windows: WindowIndex, numbers: Tensor | None = None
) -> Tensor:
    """The mean loss over windows of an index, in evaluation mode; None for all."""
    if numbers is None:
        numbers = torch.arange(len(windows))
    parts = numbers.to(windows.device).split(EVALUATION_BATCH)
    batches = (windows.gather(part, losses.fields) for part in parts)
    with losses.mode(training=False):
        return mean_loss(losses, batches)
