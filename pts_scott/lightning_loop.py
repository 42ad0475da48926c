"""Lightning around the outer loop: one outer loop is one ``training_step``.

Progress bars, loggers, callbacks, checkpoints and devices are Lightning's; its cost
is paid once in K steps.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pts_scott.budget import Budget, History, Stopwatch
from pts_scott.errors import ScottWarning
from pts_scott.fused import FusedStep, can_fuse
from pts_scott.gradients import Gradients, Losses, Tensors, mean_loss
from pts_scott.randomness import Generators
from pts_scott.scott import OuterLoop, Scott, Settings, WindowDraws, geometric_length
from pts_scott.strata import Strata
from pts_scott.windows import Batch, WindowIndex

EVALUATION_BATCH = 1024
LOG_SECONDS = 0.1


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


class Observer(pl.Callback):
    """A callback that looks at the module and does not read what is logged.

    Nothing is logged for it, which for small networks takes as long as a step.
    """


class Measurements(Observer):
    """Measures before training and at equal shares of its budget; the clock stands still.

    Parameters
    ----------
    times
        Measurements after the first.
    """

    def __init__(self, times: int) -> None:
        self._share = 1 / times
        self._made = 0
        self._last = -1  # step of the last measurement

    def measure(self, trainer: pl.Trainer, module: OuterLoopModule) -> None:
        """Look at the module; what this takes is not training time."""
        raise NotImplementedError

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure the start; the clock does not run yet."""
        assert isinstance(pl_module, OuterLoopModule)
        self._measure(trainer, pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Measure when another share of the budget is used up."""
        if pl_module.spent() >= self._made * self._share - 1e-9:
            pl_module.clock.stop()
            self._measure(trainer, pl_module)
            pl_module.clock.start()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure the end, if that was not done just now."""
        pl_module.clock.stop()
        if self._last < pl_module.steps:
            self._measure(trainer, pl_module)

    def _measure(self, trainer: pl.Trainer, module: OuterLoopModule) -> None:
        self._made += 1
        self._last = module.steps
        self.measure(trainer, module)


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
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
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
        self._logged = -math.inf
        self._latest = math.inf  # loss, by which a scheduler may decide
        self._diverged = False
        self.strata_count = len(strata) if strata is not None else len(windows)
        self._anchor_size = plan.settings.anchor_size(strata, windows)
        self._step_cost = plan.settings.step_size(strata, windows)
        self._first_cost = plan.settings.first_step_size(strata, windows)
        self._kept = _Kept(plan.output, gradients.parameters, generators.output)
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
        while not self._epoch_is_full():
            yield self.outer

    def _epoch_is_full(self) -> bool:
        return self.steps >= self._epoch_end() or not self._allowed(self._first_cost)

    def _epoch_end(self) -> int:
        """Steps that are due at the end of the current epoch."""
        return (self.current_epoch + 1) * self.plan.num_batches_per_epoch

    def _allowed(self, cost: int) -> bool:
        return self.plan.budget.allows(
            self.steps, self.clock.seconds, self.gradients.count, cost
        )

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """One outer loop."""
        # Lightning fetches one ahead, so the last call may find nothing left to do.
        if self._epoch_is_full():
            return
        learning_rate = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
        self._kept.see_snapshot(learning_rate * self.strata_count)
        before, fused = self.steps, self.scott.fused_steps

        def exhausted() -> bool:
            allowed = self._allowed(self._step_cost)
            self.steps += int(allowed)
            return not allowed

        report = self.scott.outer_loop(self._length(), self.coefficient(), exhausted)
        self.steps = before + report.steps
        self._advance(self.scott.fused_steps - fused)
        self._record(report)

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
        return self.plan.budget.spent(
            self.steps, self.clock.seconds, self.gradients.count
        )

    def _record(self, report: OuterLoop) -> None:
        train_loss = float(report.loss)  # waits for the device: seconds are whole
        spent = {
            "gradients": self.gradients.count,
            "anchors": self.scott.anchors,
            "seconds": self.clock.seconds,
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
            update_norm=math.sqrt(float(report.squared_norm)),
            **spent,
        )
        if self.validation is None:
            self._latest = train_loss
        if not math.isfinite(train_loss) and not self._diverged:
            self._diverged = True
            warnings.warn(
                f"the loss is {train_loss} at step {self.steps}: training diverges. "
                "Lower learning_rate, or set clip_gradient.",
                ScottWarning,
                stacklevel=2,
            )
        if self._somebody_listens():
            self.log("train_loss", train_loss, prog_bar=True, batch_size=1)
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
            and not self._epoch_is_full()
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
        if self.plan.make_scheduler is None:
            return optimizer
        scheduler = self.plan.make_scheduler(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_train_start(self) -> None:
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        self.scott.step = optimizer.step
        if self.gradients.compiled:
            self._compile(optimizer.optimizer)
        self.clock.start()

    def _compile(self, optimizer: torch.optim.Optimizer) -> None:
        """Compile before the clock starts; the seconds are in the history."""
        began, parameters = time.perf_counter(), self.gradients.parameters
        if (
            self.device.type == "cpu"
            and can_fuse(optimizer, parameters)
            and not self._is_watched()
        ):
            self.scott.fused = FusedStep(
                self.gradients, self._gather, optimizer, self.plan.clip_gradient
            )
        try:
            self.scott.warm_up(self._anchor_size)
        except Exception as error:
            # Any part of the compiler may fail on a network that runs well without it.
            warnings.warn(
                f"{self.losses.name} could not be compiled, so it is "
                f"trained without: {type(error).__name__}: {str(error)[:200]}",
                ScottWarning,
                stacklevel=2,
            )
            self.scott.fused = None
            self.gradients.use_autograd()
        self.history.compile_seconds = time.perf_counter() - began

    def _is_watched(self) -> bool:
        """Whether a callback wants to be called at every single update."""
        return any(
            is_overridden("on_before_optimizer_step", callback, pl.Callback)
            for callback in self._callbacks
        )

    def on_train_end(self) -> None:
        self.clock.stop()
        self._kept.restore()

    def on_train_epoch_end(self) -> None:
        scheduler = self.lr_schedulers()
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step(self._latest)
        elif isinstance(scheduler, LRScheduler):
            scheduler.step()
        if not self._allowed(self._first_cost):
            self.trainer.should_stop = True

    def on_validation_start(self) -> None:
        self.clock.stop()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """The mean loss over all windows of the validation data."""
        value = float(evaluate(self.losses, self.validation))  # type: ignore[arg-type]
        self.history.extend(val_loss=value)
        self._latest = value
        self._kept.see_validation(value)
        self.log("val_loss", value, prog_bar=True, batch_size=1)

    def on_validation_end(self) -> None:
        self.clock.start()


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


class _Kept:
    """The parameters that training returns: the last, a sampled snapshot, or the best."""

    def __init__(
        self, output: str, parameters: Tensors, generator: torch.Generator
    ) -> None:
        self._output = output
        self._parameters = parameters
        self._generator = generator
        self._copy: list[Tensor] | None = None
        self._weight = 0.0
        self._best = math.inf
        self._validated = False

    def see_snapshot(self, weight: float) -> None:
        """Keep θ(t,0) with probability ∝ α_t B, by a reservoir of one."""
        if self._output != "sampled":
            return
        self._weight += weight
        if torch.rand((), generator=self._generator).item() * self._weight < weight:
            self._keep()

    def see_validation(self, loss: float) -> None:
        """Keep the parameters if they are the best so far."""
        self._validated = True
        if self._output == "best" and loss < self._best:
            self._best = loss
            self._keep()

    def _keep(self) -> None:
        self._copy = [p.detach().clone() for p in self._parameters]

    def restore(self) -> None:
        """Put the kept parameters into the network."""
        if self._output == "best" and not self._validated:
            warnings.warn(
                "training ended before the first validation, so output='best' returns "
                "the last parameters; make epochs shorter or the budget larger.",
                ScottWarning,
                stacklevel=2,
            )
        if self._copy is not None:
            with torch.no_grad():
                torch._foreach_copy_(list(self._parameters), self._copy)
