"""ScottTrainer: what users configure and hand to an estimator."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pandas as pd
import torch
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.io import CheckpointIO
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from pts_scott._utils.arguments import (
    named_arguments,
    one_of,
    real_number,
    switch,
    whole_number,
)
from pts_scott._utils.rng import Generators, fresh_seed, isolated
from pts_scott.data.windows import WindowIndex, require_windows
from pts_scott.engine.distributed import told_apart
from pts_scott.engine.gradients import Gradients, Losses
from pts_scott.engine.model_checks import (
    check_model,
    training_effects,
    uncompilable,
)
from pts_scott.errors import (
    ArgumentError,
    CheckpointMismatchError,
    ModelError,
    ScottWarning,
    about_validation_data,
)
from pts_scott.method.scott import METHODS, Settings
from pts_scott.strata.partition import Strata, default_stratifier
from pts_scott.strata.stratifier import Stratifier
from pts_scott.training.budget import Budget, History
from pts_scott.training.checkpoint_files import CheckpointFiles
from pts_scott.training.checkpoint_files import read as read_checkpoint
from pts_scott.training.checkpoints import Checkpoints, WriteCheckpoints
from pts_scott.training.ddp_strategy import SharedGradients, is_shared
from pts_scott.training.fingerprint import check_same_run, describe_optimizer, identity_of
from pts_scott.training.lightning_module import KEY, OuterLoopModule, Plan
from pts_scott.training.optimizers import (
    OptimizerFactory,
    check_optimizer,
    make_optimizer,
    serialisable,
)
from pts_scott.training.signals import interruptible
from pts_scott.training.threads import (
    choose_threads,
    is_large_step,
    is_recurrent,
    limited_threads,
)
from pts_scott.training.trainer_checks import (
    MIXED,
    check_other_writers,
    check_trainer_kwargs,
    check_validation,
    has_compiler,
    lightning_accelerator,
    resolve_device,
)

SchedulerFactory = Callable[[torch.optim.Optimizer], LRScheduler]

# Compiling takes tens of seconds, and saves two to five milliseconds in each step of a
# small network (benchmarks/steps.py). The rule is fixed, not timed: compiled and eager
# runs round differently, and one seed must give one result.
STEPS_THAT_REPAY_COMPILING = 10_000
SECONDS_THAT_REPAY_COMPILING = 60.0


class ScottTrainer:
    """Trains a forecasting model with SCott, or with a method it is compared with.

    Parameters
    ----------
    method
        "scott": control variates with a stratified anchor; "scsg": with a uniform
        anchor of the same size; "svrg": with the full gradient. "stratified": every
        step is a stratified mini-batch; "plain": a uniform one.
    optimizer
        "sgd", "adam", "adamw", "adagrad" or another name of ``torch.optim`` in lower
        case; an optimizer class; or a function from a list of parameters to an
        optimizer. S-Adam is method="scott" with optimizer="adam".
    learning_rate, weight_decay
        Options of an optimizer that is given by name or class. A function sets its own.
    scheduler
        A function from the optimizer to a scheduler of its step size, e.g.
        ``lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=10)``; it is
        stepped after each epoch, by ``val_loss`` (otherwise ``train_loss``) if it asks.
    stratifier
        The policy; None for a calendar policy that suits the frequency.
    batch_size
        M, windows in a uniform mini-batch.
    anchor_batch_size
        b, windows from each stratum for an anchor (or a stratified step).
    inner_steps
        K, the most inner steps between two anchors.
    inner_length
        "fixed": Algorithm 2's K; "geometric": Algorithm 1's random length with mean
        B. Algorithm 1 as in the paper has gamma=None.
    gamma
        γ, early stop of the inner loop when ‖v(t,k)‖² ≤ γ‖v(t,0)‖²; None for none.
    coefficient
        c of the control variate: 1 is the paper's method, 0 the plain optimizer;
        "linear" goes from 1 to 0 as the budget is used up.
    epochs, num_batches_per_epoch
        Epochs and steps an epoch. An anchor's inner steps are not cut where an epoch
        ends: of epochs shorter than ``inner_steps``, those that end within them are
        counted, without a validation of their own. With epochs=None a budget ends
        training.
    time_budget
        Seconds of training: sampling, anchors, both passes and updates; not
        evaluation, not compilation.
    gradient_budget
        Gradients computed in all; never exceeded.
    output
        "last" parameters; "sampled": a snapshot drawn with probability ∝ α_t·B, as
        the paper returns; "best" on ``validation_data``.
    clip_gradient
        Largest norm of an update; None for no clipping.
    device
        "auto" (CUDA where there is one), "cpu", "cuda", "cuda:1", or any accelerator
        that torch reports as available and Lightning knows, as "mps".
    compile
        Whether to compile the steps; "auto" where the number of steps repays it. A
        compiled network is taken as it is when training starts: attributes of it that
        a callback changes later are not seen.
    threads
        Threads of the CPU; "auto" for what OMP_NUM_THREADS says, otherwise for one,
        or half of more than two cores if steps are large.
    seed
        Seed of everything random; None for a new one each time.
    trainer_kwargs
        Handed to ``lightning.Trainer``: callbacks, logger, strategy, …
    checkpoint
        A folder for checkpoints, written every ten minutes and at the end, or
        ``Checkpoints(folder, minutes=10)`` with other settings; None for none.
    resume
        Whether to go on from the checkpoint in that folder, if there is one: the run
        then ends as it would have without the interruption, to the bit on the CPU. A
        run that was finished is read and not trained again, unless its budget is now
        larger.
    skip_limit
        A step whose loss or gradient is not finite is skipped, with a warning that names
        its windows, and the anchor is drawn anew; after this many in a row training
        ends, with the parameters before them.

    Attributes
    ----------
    history : pandas.DataFrame
        One row for each outer loop of the last run: step, outer, epoch, gradients,
        anchors, seconds, train_loss (mean over the outer loop's mini-batches),
        val_loss, update_norm (‖v‖ of its last step, before clipping), skipped (steps that
        were not finite, so far), compile_seconds (of the whole run, not contained in
        seconds).
    strata : Strata or None
        The strata of the last run.
    compile_seconds, stratify_seconds : float
        Seconds that compilation and stratification took; neither is in the history's
        seconds.
    checkpoint_seconds, self_check_seconds : float
        Seconds that checkpoints, and the self-check before the first step, took in the
        last run; not in the history's seconds.
    compiled : bool
        Whether the steps of the last run were compiled.
    compile_fallback : str or None
        Why the last run was not compiled although it was to be; None otherwise.
    interrupted, gave_up : bool
        Whether the last run was ended by Ctrl-C (or by a checkpoint that could not be
        written, if that is asked for), or by ``skip_limit`` steps in a row that were not
        finite.
    lightning : lightning.Trainer or None
        Lightning's own trainer of the last run.

    Examples
    --------
    >>> trainer = ScottTrainer(method="scott", optimizer="adam", epochs=20, seed=1)
    >>> estimator = SimpleFeedForwardEstimator(        # doctest: +SKIP
    ...     freq="h", prediction_length=24, context_length=72, trainer=trainer
    ... )
    >>> predictor = estimator.train(dataset)           # doctest: +SKIP
    """

    @named_arguments
    def __init__(
        self,
        method: str = "scott",
        optimizer: str | type[torch.optim.Optimizer] | OptimizerFactory = "sgd",
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-5,
        stratifier: Stratifier | None = None,
        batch_size: int = 32,
        anchor_batch_size: int = 1,
        inner_steps: int = 20,
        inner_length: str = "fixed",
        gamma: float | None = 0.125,
        coefficient: float | str = 1.0,
        epochs: int | None = 100,
        num_batches_per_epoch: int = 50,
        time_budget: float | None = None,
        gradient_budget: int | None = None,
        output: str = "last",
        clip_gradient: float | None = None,
        device: str | torch.device = "auto",
        compile: bool | str = "auto",
        threads: int | str = "auto",
        seed: int | None = None,
        trainer_kwargs: Mapping[str, Any] | None = None,
        scheduler: SchedulerFactory | None = None,
        checkpoint: Checkpoints | str | Path | None = None,
        resume: bool = False,
        skip_limit: int = 10,
    ) -> None:
        self.settings = Settings(
            method=one_of("method", method, METHODS),
            batch_size=whole_number("batch_size", batch_size),
            anchor_batch_size=whole_number("anchor_batch_size", anchor_batch_size),
            inner_steps=whole_number("inner_steps", inner_steps),
            inner_length=one_of("inner_length", inner_length, ("fixed", "geometric")),
            gamma=_optional(real_number, "gamma", gamma),
        )
        if self.settings.gamma is not None and self.settings.gamma >= 1:
            raise ArgumentError(
                f"gamma={gamma!r}: expected less than 1; otherwise the first inner step "
                "meets it, and every step would need an anchor of its own."
            )
        given: dict[str, Any] = self.given_arguments  # type: ignore[attr-defined]
        numbers = ("learning_rate", "weight_decay")
        self.optimizer = check_optimizer(
            optimizer, {name: given[name] for name in numbers if name in given}
        )
        if scheduler is not None and not callable(scheduler):
            raise ArgumentError(
                "scheduler is no function; pass one that makes a scheduler, e.g. "
                "scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9)."
            )
        self.scheduler = scheduler
        self.learning_rate = real_number("learning_rate", learning_rate, exclusive=True)
        self.weight_decay = real_number("weight_decay", weight_decay)
        self.stratifier = _check_stratifier(stratifier)
        self.batch_size = self.settings.batch_size
        self.coefficient = (
            one_of("coefficient", coefficient, ("linear",))
            if isinstance(coefficient, str)
            else real_number("coefficient", coefficient, maximum=1.0)
        )
        self.epochs = _optional(whole_number, "epochs", epochs)
        self.num_batches_per_epoch = whole_number(
            "num_batches_per_epoch", num_batches_per_epoch
        )
        self.time_budget = _optional(
            real_number, "time_budget", time_budget, exclusive=True
        )
        self.gradient_budget = _optional(whole_number, "gradient_budget", gradient_budget)
        if self.epochs is None and not (self.time_budget or self.gradient_budget):
            raise ArgumentError(
                "epochs=None needs a time_budget or a gradient_budget, or training "
                "would never end."
            )
        self.output = one_of("output", output, ("last", "sampled", "best"))
        self.clip_gradient = _optional(
            real_number, "clip_gradient", clip_gradient, exclusive=True
        )
        self.device = resolve_device(device)
        if compile not in (True, False, "auto"):
            raise ArgumentError(f"compile={compile!r}: expected True, False or 'auto'.")
        self.compile = compile
        self.threads = (
            one_of("threads", threads, ("auto",))
            if isinstance(threads, str)
            else whole_number("threads", threads)
        )
        self.seed = _optional(whole_number, "seed", seed, minimum=0, maximum=2**63 - 1)
        self.trainer_kwargs = check_trainer_kwargs(trainer_kwargs)
        self.checkpoint = Checkpoints.of(checkpoint)
        self.resume = switch("resume", resume)
        if self.resume and self.checkpoint is None:
            raise ArgumentError(
                "resume=True needs a folder to go on from: checkpoint='runs/traffic'."
            )
        self.skip_limit = whole_number("skip_limit", skip_limit)
        # Callbacks that remember what they have seen; a second run starts anew.
        self._fresh = [
            (callback, copy.deepcopy(vars(callback)))
            for callback in self._callbacks()
            if isinstance(callback, EarlyStopping | Checkpoint)
        ]
        self._history = History()
        self.strata: Strata | None = None
        self.stratify_seconds = 0.0
        self.checkpoint_seconds = 0.0
        self.self_check_seconds = 0.0
        self.compiled = False
        self.compile_fallback: str | None = None
        self.interrupted = False
        self.gave_up = False
        self.lightning: pl.Trainer | None = None

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """By this GluonTS writes a trainer down; what it has trained is not kept."""
        given: dict[str, Any] = dict(self.given_arguments)  # type: ignore[attr-defined]
        if "optimizer" in given:
            given["optimizer"] = serialisable(given["optimizer"])
        if isinstance(given.get("device"), torch.device):  # which GluonTS can't write
            given["device"] = str(given["device"])
        return (), given

    def __getstate__(self) -> dict[str, Any]:
        """What can be copied and pickled: not Lightning's part of the last run."""
        return {**self.__dict__, "lightning": None, "strata": None}

    def __repr__(self) -> str:
        given = self.given_arguments.items()  # type: ignore[attr-defined]
        return f"ScottTrainer({', '.join(f'{k}={v!r}' for k, v in given)})"

    @property
    def history(self) -> pd.DataFrame:
        """One row for each outer loop of the last run."""
        return self._history.frame()

    @property
    def compile_seconds(self) -> float:
        """Seconds that compilation took in the last run."""
        return self._history.compile_seconds

    def fit(
        self,
        network: nn.Module,
        windows: WindowIndex,
        validation_windows: WindowIndex | None = None,
        seed: int | None = None,
    ) -> None:
        """Train a network in place.

        Estimators call this; call it yourself to train a network of your own.

        Parameters
        ----------
        network
            A module with ``loss(past_target, future_target, …)`` that returns one
            loss a window.
        windows
            The windows to train on.
        validation_windows
            Windows on which ``val_loss`` is measured after each epoch.
        seed
            In place of the trainer's seed.
        """
        if not isinstance(network, nn.Module):
            raise ArgumentError(
                f"network={network!r}: expected an instance of torch.nn.Module."
            )
        require_windows(windows)
        if self.output == "best" and validation_windows is None:
            raise ArgumentError(
                "output='best' needs validation data to choose by: pass validation_data "
                "to the estimator's train or train_from, or validation_windows to fit."
            )
        seed = self.next_seed() if seed is None else seed
        self._history = History()
        self.compiled, self.compile_fallback = False, None
        losses = Losses(network, windows.fields)
        with isolated(seed, self.device), self._threads(network, windows):
            network.to(self.device)
            windows = windows.to(self.device)
            check_model(losses, windows)
            if validation_windows is not None:
                validation_windows = validation_windows.to(self.device)
                with about_validation_data():
                    check_validation(losses, windows, validation_windows)
            losses.train()
            began = time.perf_counter()
            self.strata = self._stratify(windows)
            self.stratify_seconds = time.perf_counter() - began
            self._check_gradient_budget(windows)
            gradients = self._make_gradients(losses, windows)
            module = OuterLoopModule(
                losses,
                gradients,
                windows,
                self.strata,
                validation_windows,
                self._plan(),
                Generators.from_seed(seed, self.device),
                self._history,
                identity_of(
                    losses,
                    windows,
                    self.strata,
                    validation_windows,
                    self._decisive_settings(list(losses.trainable().values())),
                ),
            )
            self._run(module)
        losses.eval()

    def _decisive_settings(self, parameters: list[nn.Parameter]) -> dict[str, Any]:
        """What a resumed run must have in common with the one before."""
        optimizer, scheduler = self.optimizer, self.scheduler
        if self.checkpoint is not None and not isinstance(optimizer, str):
            optimizer = describe_optimizer(self._make_optimizer(parameters))
        return {
            **dataclasses.asdict(self.settings),
            "seed": self.seed,
            "optimizer": optimizer if isinstance(optimizer, str) else "a function",
            "scheduler": getattr(scheduler, "__qualname__", scheduler and "a function"),
            "learning_rate": self.learning_rate,
            "weight_decay": self.weight_decay,
            "coefficient": self.coefficient,
            "num_batches_per_epoch": self.num_batches_per_epoch,
            "clip_gradient": self.clip_gradient,
            "output": self.output,
        }

    def next_seed(self) -> int:
        """The seed of a run: the trainer's, or a new one each time if it has none."""
        return fresh_seed() if self.seed is None else self.seed

    def _threads(
        self, network: nn.Module, windows: WindowIndex
    ) -> AbstractContextManager[None]:
        number = self.threads
        if isinstance(number, str):
            number = choose_threads(network, self.batch_size, windows.context_length)
        return limited_threads(number)

    def _stratify(self, windows: WindowIndex) -> Strata | None:
        if self.settings.method in ("svrg", "plain"):
            return None
        policy = self.stratifier or default_stratifier(windows.series.timeline.offset)
        strata = policy.stratify(windows)
        anchor = len(strata) * self.settings.anchor_batch_size
        if self.settings.has_anchor and anchor < self.batch_size:
            warnings.warn(
                f"an anchor of {len(strata)} strata x anchor_batch_size="
                f"{self.settings.anchor_batch_size} rests on fewer windows than a "
                f"mini-batch of {self.batch_size}, and its noise stays for all its inner "
                "steps: raise anchor_batch_size, or choose a finer stratifier.",
                ScottWarning,
                stacklevel=4,
            )
        return strata

    def _check_gradient_budget(self, windows: WindowIndex) -> None:
        need = self.settings.first_step_size(self.strata, windows)
        if self.gradient_budget is not None and self.gradient_budget < need:
            raise ArgumentError(
                f"gradient_budget={self.gradient_budget}: the first step of "
                f"method={self.settings.method!r} needs {need} gradients here."
            )

    def _plan(self) -> Plan:
        steps = None if self.epochs is None else self.epochs * self.num_batches_per_epoch
        return Plan(
            settings=self.settings,
            budget=Budget(steps, self.time_budget, self.gradient_budget),
            coefficient=self.coefficient,
            num_batches_per_epoch=self.num_batches_per_epoch,
            output=self.output,
            clip_gradient=self.clip_gradient,
            make_optimizer=self._make_optimizer,
            make_scheduler=None if self.scheduler is None else self._make_scheduler,
            skip_limit=self.skip_limit,
            must_compile=self.compile is True,
        )

    def _make_scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        assert self.scheduler is not None
        scheduler = self.scheduler(optimizer)
        if not isinstance(scheduler, LRScheduler):
            raise ArgumentError(
                f"scheduler returned {type(scheduler).__name__}; expected a function "
                "from the optimizer to a scheduler of torch.optim.lr_scheduler."
            )
        return scheduler

    def _make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return make_optimizer(
            self.optimizer,
            parameters,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            # A scaler of half precision has to look at gradients before the update.
            fusable=not self._is_mixed,
        )

    def _make_gradients(self, losses: Losses, windows: WindowIndex) -> Gradients:
        stochastic, stateful = training_effects(losses, windows)
        compiled = self._should_compile(losses, windows)
        # Equal masks and buffers in both passes are kept by the eager way alone.
        obstacle = uncompilable(losses, windows, stochastic, stateful)
        if compiled and obstacle:
            compiled = False
            if self.compile is True:
                warnings.warn(
                    f"{losses.name} {obstacle}, so its steps are not compiled.",
                    ScottWarning,
                    stacklevel=4,
                )
        gradients = Gradients(losses, compiled=compiled)
        gradients.stochastic, gradients.stateful = stochastic, stateful
        if stateful and self._is_shared:
            raise ModelError(
                f"{losses.name} changes its buffers while it trains, and they would "
                "differ between processes; train it in one."
            )
        return gradients

    def _should_compile(self, losses: Losses, windows: WindowIndex) -> bool:
        wanted = (
            bool(self.compile)
            and windows.compiles
            and not self._is_shared
            and not self._is_mixed
        )
        if self.compile == "auto":
            wanted = (
                wanted
                # torch.func takes the fused kernel of recurrent layers away.
                and not is_recurrent(losses)
                and not is_large_step(losses, self.batch_size, windows.context_length)
                and self._repays_compiling()
            )
        if wanted and self.device.type == "cpu" and not has_compiler():
            self.compile_fallback = "no C++ compiler was found"
            warnings.warn(
                "no C++ compiler was found, so gradients are not compiled; install g++ "
                "or clang++ for several times the speed, or pass compile=False.",
                ScottWarning,
                stacklevel=5,
            )
            return False
        return wanted

    def _repays_compiling(self) -> bool:
        steps = math.inf
        if self.epochs is not None:
            steps = self.epochs * self.num_batches_per_epoch
        if self.gradient_budget is not None:
            passes = 2 if self.settings.has_anchor else 1
            steps = min(steps, self.gradient_budget / (passes * self.batch_size))
        seconds = self.time_budget or math.inf
        return (
            steps >= STEPS_THAT_REPAY_COMPILING
            and seconds >= SECONDS_THAT_REPAY_COMPILING
        )

    def _run(self, module: OuterLoopModule) -> None:
        callbacks = self._callbacks()
        files = CheckpointFiles(callbacks)
        self.checkpoint_seconds = 0.0
        for callback, state in self._fresh:
            vars(callback).clear()
            vars(callback).update(copy.deepcopy(state))
        writer = None
        if self.checkpoint is not None:
            writer = WriteCheckpoints(self.checkpoint, files)
            callbacks.append(writer)
        start = self._checkpoint_to_resume(module)
        self.lightning = self._make_lightning(module, callbacks, files)
        self.interrupted, self.gave_up = False, module.faults.gave_up
        if module.finished:
            return
        with warnings.catch_warnings(), interruptible(module.interrupt), self._held():
            # Lightning's own, about its use of torch; nobody here can change it.
            warnings.filterwarnings("ignore", ".*treespec, LeafSpec.*", FutureWarning)
            # And about layers that stay in evaluation mode on purpose.
            warnings.filterwarnings("ignore", "Found .* in eval mode at the start")
            with told_apart() if self._is_shared else nullcontext():
                self.lightning.fit(
                    module, _Iterable(module.outer_loops), [0], ckpt_path=start
                )
        self.interrupted, self.gave_up = module.interrupted, module.faults.gave_up
        self.compiled = module.gradients.compiled
        self.compile_fallback = self.compile_fallback or module.compile_fallback
        self.self_check_seconds = module.self_check_seconds
        self.checkpoint_seconds = 0.0 if writer is None else writer.seconds

    def _held(self) -> AbstractContextManager[None]:
        """The folder of checkpoints, for this run alone."""
        assert self.lightning is not None
        if self.checkpoint is None or not self.lightning.is_global_zero:
            return nullcontext()
        return self.checkpoint.held()

    def _checkpoint_to_resume(self, module: OuterLoopModule) -> Path | None:
        """The checkpoint to go on from; one of a finished run is loaded at once."""
        if self.checkpoint is None or not os.path.exists(self.checkpoint.path):
            return None
        path = self.checkpoint.path
        if not self.resume:
            warnings.warn(
                f"there is a checkpoint of an earlier run in {path.parent}, which this "
                "one will replace; to go on from it, pass resume=True.",
                ScottWarning,
                stacklevel=5,
            )
            return None
        checkpoint = read_checkpoint(path, map_location="cpu")
        state = checkpoint[KEY]
        check_same_run(state["identity"], module.identity)
        if not state["between"]:
            raise CheckpointMismatchError(
                f"{path} was written by a callback in the midst of an epoch, and a run "
                "cannot go on from there; remove it to start again."
            )
        budget = list(dataclasses.astuple(module.plan.budget))
        ended = state["finished"] and state["budget"] == budget
        if ended or module.is_beyond(state):
            module.restore(checkpoint)
            return None
        return path

    def _make_lightning(
        self,
        module: OuterLoopModule,
        callbacks: list[pl.Callback],
        files: CheckpointFiles,
    ) -> pl.Trainer:
        index = self.device.index
        plugins = self._plugins()
        if self.checkpoint is not None:
            check_other_writers(self.checkpoint.path.parent, callbacks, plugins)
        shared = None
        if self._is_shared:
            shared = SharedGradients.like(self.trainer_kwargs["strategy"])
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            plugins = [*plugins, files]
        lightning = pl.Trainer(
            **{
                "accelerator": lightning_accelerator(self.device),
                "devices": [index] if index is not None else 1,
                "logger": False,
                "enable_checkpointing": any(isinstance(c, Checkpoint) for c in callbacks),
                "enable_model_summary": False,
                **self.trainer_kwargs,
                **({"strategy": shared} if shared is not None else {}),
                "callbacks": callbacks,
                "plugins": plugins,
                "max_epochs": -1 if self.epochs is None else self.epochs,
                "num_sanity_val_steps": 0,
                **({"limit_val_batches": 0} if module.validation is None else {}),
            }
        )
        if lightning.world_size > 1 and not self._is_shared:
            raise ArgumentError(
                "trainer_kwargs ask for several processes; they train one network "
                "together with trainer_kwargs={'strategy': 'ddp', 'devices': 2}."
            )
        return lightning

    @property
    def _is_mixed(self) -> bool:
        """Whether passes are in half precision, by Lightning's autocast."""
        return self.trainer_kwargs.get("precision") in MIXED or any(
            isinstance(plugin, MixedPrecision) for plugin in self._plugins()
        )

    def _plugins(self) -> list[Any]:
        given = self.trainer_kwargs.get("plugins") or []
        return list(given) if isinstance(given, list | tuple) else [given]

    @property
    def _is_shared(self) -> bool:
        """Whether several processes are to share the work."""
        return is_shared(self.trainer_kwargs.get("strategy"))

    def _callbacks(self) -> list[pl.Callback]:
        given = self.trainer_kwargs.get("callbacks") or []
        return [given] if isinstance(given, pl.Callback) else list(given)


class _Iterable:
    """A new iterator for each epoch."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __iter__(self) -> Any:
        return self._make()


def _optional(check: Callable[..., Any], name: str, value: Any, **limits: Any) -> Any:
    return None if value is None else check(name, value, **limits)


def _check_stratifier(stratifier: Any) -> Stratifier | None:
    if stratifier is None or isinstance(stratifier, Stratifier):
        return stratifier
    raise ArgumentError(
        f"stratifier={stratifier!r}: expected a policy, e.g. "
        "Stratifier.calendar('weekday', 'season')."
    )
