"""ScottTrainer: the trainer that users configure and pass to an estimator."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pandas as pd
import torch
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from pts_scott._utils.arguments import (
    named_arguments,
    one_of,
    real_number,
    switch,
    whole_number,
)
from pts_scott._utils.rng import fresh_seed, isolated_rng
from pts_scott.data.window_index import WindowIndex
from pts_scott.engine.losses import Losses
from pts_scott.engine.model_checks import check_model
from pts_scott.errors import ArgumentError, about_validation_data
from pts_scott.method.hyperparameters import Hyperparameters
from pts_scott.method.methods import METHODS
from pts_scott.method.objective import check_objective
from pts_scott.strata.partition import Strata
from pts_scott.strata.policy import Policy
from pts_scott.training.budget import Budget
from pts_scott.training.checkpoints import Checkpoints
from pts_scott.training.configured import Configured
from pts_scott.training.history import History
from pts_scott.training.lightning_assembly import LightningOptions
from pts_scott.training.lightning_module import OuterLoopModule
from pts_scott.training.optimizers import (
    OptimizerFactory,
    check_optimizer,
    make_optimizer,
)
from pts_scott.training.run_assembly import RunAssembly
from pts_scott.training.run_execution import RunExecution
from pts_scott.training.threads import thread_limit
from pts_scott.training.trainer_checks import (
    check_coefficient,
    check_compile,
    check_ends,
    check_gamma,
    check_inputs,
    check_sampling,
    check_scheduler,
    check_stratifier,
    check_threads,
    check_trainer_kwargs,
    check_validation,
    optional,
    resolve_device,
)

SchedulerFactory = Callable[[torch.optim.Optimizer], LRScheduler]


class ScottTrainer(Configured):
    """Trains a forecasting model, drawing the windows from which its gradients are best.

    Parameters
    ----------
    method
        "auto": measures gradients along the run, and draws mini-batches from the strata
        that reduce their variance most, if any do; "stratified": from given ones;
        "plain": uniform ones. "scott": control variates with a stratified anchor, the
        paper's method; "scsg": a uniform anchor of the same size; "svrg": the full
        gradient. "mars", "storm": corrected by the previous step. See docs/methods.md.
    optimizer
        "sgd", "adam", "adamw", "adagrad" or another name of ``torch.optim`` in lower
        case; a class, e.g. of schedulefree; or a function from a list of parameters to
        an optimizer. S-Adam is method="scott" with optimizer="adam".
    learning_rate, weight_decay
        Options of an optimizer that is given by name or class. A function sets its own.
    scheduler
        A function from the optimizer to a scheduler of its step size, e.g.
        ``lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=10)``; it is
        stepped after each epoch, by ``val_loss`` (otherwise ``train_loss``) if it asks.
    stratifier
        The policy; None for a calendar policy that suits the frequency. "auto" tries
        several, and this one, too.
    allocation
        Which share of a sample comes from which stratum: "proportional" to its windows;
        "equal"; "spread", by its windows times the measured spread of their gradients; or
        {label: share}. None is what the method's paper says: for "stratified" it is
        proportional, and for "scott" equal in anchors and uniform in mini-batches; a
        given one is used in both. It never changes what is minimised.
    batch_size
        M, windows in the mini-batch of a step.
    anchor_batch_size
        b, windows from each stratum for an anchor.
    inner_steps
        K, maximum number of inner steps between two anchors.
    inner_length
        "fixed": Algorithm 2's K; "geometric": Algorithm 1's random length with mean
        B. Algorithm 1 as in the paper has gamma=None.
    gamma
        γ, early stop of the inner loop when ‖v(t,k)‖² ≤ γ‖v(t,0)‖²; None for none.
    coefficient
        c of the control variate, or factor of another correction: 1 is the paper's
        method, 0 the plain optimizer; "linear" goes from 1 to 0 with the budget.
    epochs
        How many; with None a budget ends training.
    num_batches_per_epoch
        Steps per epoch. Its end does not interrupt the inner steps of an anchor: epochs
        that end within them are counted, but not validated.
    time_budget
        Seconds of training: sampling, anchors, both passes and updates; neither
        evaluation nor compilation.
    gradient_budget
        Total number of gradients computed; never exceeded.
    output
        "last" parameters; "sampled": a snapshot drawn with probability ∝ α_t·B, as
        the paper returns; "best" on ``validation_data``; "auto": the best if there is
        validation data, otherwise the last.
    clip_gradient
        Maximum norm of an update; None for no clipping.
    device
        "auto" (CUDA if available), "cpu", "cuda", "cuda:1", or any accelerator that torch
        reports as available and Lightning supports, such as "mps".
    compile
        Whether to compile the steps; "auto" to do so if the number of steps repays it. A
        network is compiled as it is when training starts: later changes of its
        attributes by a callback have no effect.
    threads
        CPU threads; "auto": OMP_NUM_THREADS if it is set, otherwise one, or half of the
        cores if there are more than two and steps are large.
    seed
        Seed of everything random; None for a new one each time.
    trainer_kwargs
        Arguments of ``lightning.Trainer``: callbacks, logger, strategy, …
    checkpoint
        A folder for checkpoints, written every ten minutes and at the end, or
        ``Checkpoints(folder, minutes=10)`` with other settings; None for none.
    resume
        Whether to resume from the checkpoint in that folder, if there is one: the run
        then ends as it would have without the interruption, bit-identical on the CPU. A
        finished run is loaded and not trained again, unless its budget is now larger.
    skip_limit
        A step whose loss or gradient is non-finite is skipped, with a warning that names
        its windows, and the next anchor is drawn; after this many in a row training
        ends, with the parameters before them.
    objective
        How much each window counts in the loss: "windows", all alike; "series", all
        series alike; a half-life in time such as "90 days"; or {label: weight} for the
        strata of ``stratifier``. It changes what is minimised, whatever the allocation.
    replacement
        Whether a window may be drawn again before all others of its stratum; False for
        reshuffled windows, as in a loop over epochs.

    Attributes
    ----------
    history : pandas.DataFrame
        One row per outer loop of the last run: step, outer, epoch, gradients,
        anchors, seconds, train_loss (mean over the outer loop's mini-batches),
        val_loss, update_norm (‖v‖ of its last step, before clipping), skipped
        (non-finite steps so far), probe_gradients and probe_seconds (contained in
        gradients and seconds), sampler (of mini-batches), compile_seconds (of the whole
        run, not contained in seconds).
    strata : Strata or None
        The strata that the last run used last.
    compile_seconds, stratify_seconds : float
        Seconds that compilation and stratification took; neither is in the history's
        seconds.
    checkpoint_seconds, self_check_seconds : float
        Seconds that checkpoints, and the self-check before the first step, took in the
        last run; not in the history's seconds.
    compiled : bool
        Whether the steps of the last run were compiled.
    compile_fallback : str or None
        Why the last run was not compiled although it should have been; None otherwise.
    interrupted, gave_up : bool
        Whether the last run was ended by Ctrl-C (or by a checkpoint that could not be
        written, with ``on_error="stop"``), or by ``skip_limit`` non-finite steps in a
        row.
    lightning : lightning.Trainer or None
        Lightning's own trainer of the last run.

    Examples
    --------
    >>> trainer = ScottTrainer(epochs=20, seed=1)
    >>> estimator = SimpleFeedForwardEstimator("h", 24, trainer=trainer)  # doctest: +SKIP
    >>> predictor = estimator.train(dataset)                              # doctest: +SKIP
    """

    @named_arguments
    def __init__(
        self,
        method: str = "auto",
        optimizer: str | type[torch.optim.Optimizer] | OptimizerFactory = "adam",
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-5,
        stratifier: Policy | None = None,
        allocation: str | Mapping[str, float] | None = None,
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
        output: str = "auto",
        clip_gradient: float | None = 10.0,
        device: str | torch.device = "auto",
        compile: bool | str = "auto",
        threads: int | str = "auto",
        seed: int | None = None,
        trainer_kwargs: Mapping[str, Any] | None = None,
        scheduler: SchedulerFactory | None = None,
        checkpoint: Checkpoints | str | Path | None = None,
        resume: bool = False,
        skip_limit: int = 10,
        objective: str | timedelta | Mapping[str, float] = "windows",
        replacement: bool = True,
    ) -> None:
        self.hyperparameters = Hyperparameters(
            method=one_of("method", method, METHODS),
            batch_size=whole_number("batch_size", batch_size),
            anchor_batch_size=whole_number("anchor_batch_size", anchor_batch_size),
            inner_steps=whole_number("inner_steps", inner_steps),
            inner_length=one_of("inner_length", inner_length, ("fixed", "geometric")),
            gamma=check_gamma(gamma),
            allocation=check_sampling(method, allocation),
            replacement=switch("replacement", replacement),
        )
        self.objective = check_objective(objective)
        given = self.given_arguments
        numbers = ("learning_rate", "weight_decay")
        self.optimizer = check_optimizer(
            optimizer, {name: given[name] for name in numbers if name in given}
        )
        self.scheduler: SchedulerFactory | None = check_scheduler(scheduler)
        self.learning_rate = real_number("learning_rate", learning_rate, exclusive=True)
        self.weight_decay = real_number("weight_decay", weight_decay)
        self.stratifier = check_stratifier(stratifier)
        self.batch_size = self.hyperparameters.batch_size
        self.coefficient = check_coefficient(coefficient)
        self.epochs = optional(whole_number, "epochs", epochs)
        self.num_batches_per_epoch = whole_number(
            "num_batches_per_epoch", num_batches_per_epoch
        )
        self.time_budget = optional(
            real_number, "time_budget", time_budget, exclusive=True
        )
        self.gradient_budget = optional(whole_number, "gradient_budget", gradient_budget)
        check_ends(self.budget)
        self.output = one_of("output", output, ("auto", "last", "sampled", "best"))
        self.clip_gradient = optional(
            real_number, "clip_gradient", clip_gradient, exclusive=True
        )
        self.device = resolve_device(device)
        self.compile = check_compile(compile)
        self.threads = check_threads(threads)
        self.seed = optional(whole_number, "seed", seed, minimum=0, maximum=2**63 - 1)
        self.trainer_kwargs = check_trainer_kwargs(trainer_kwargs)
        self.checkpoint = Checkpoints.of(checkpoint)
        self.resume = switch("resume", resume)
        if self.resume and self.checkpoint is None:
            raise ArgumentError(
                "resume=True needs a folder to resume from: checkpoint='runs/traffic'."
            )
        self.skip_limit = whole_number("skip_limit", skip_limit)
        # These callbacks have state, which a second run resets.
        self._fresh = [
            (c, copy.deepcopy(vars(c)))
            for c in self._lightning_options.callbacks
            if isinstance(c, EarlyStopping | Checkpoint)
        ]
        self._history = History()
        self._report = ""
        self.strata: Strata | None = None
        self.stratify_seconds = self.checkpoint_seconds = self.self_check_seconds = 0.0
        self.compiled = self.interrupted = self.gave_up = False
        self.compile_fallback: str | None = None
        self.lightning: pl.Trainer | None = None

    @property
    def history(self) -> pd.DataFrame:
        """One row per outer loop of the last run."""
        return self._history.frame()

    @property
    def compile_seconds(self) -> float:
        """Seconds that compilation took."""
        return self._history.compile_seconds

    def report(self) -> str:
        """Return which sampler the last run used when, and why, in a sentence each."""
        return self._report

    def fit(
        self,
        network: nn.Module,
        windows: WindowIndex,
        validation_windows: WindowIndex | None = None,
        seed: int | None = None,
    ) -> None:
        """Train a network in place.

        Estimators call this; call it yourself to train a custom network.

        Parameters
        ----------
        network
            A module with ``loss(past_target, future_target, …)`` that returns one
            loss per window.
        windows
            The windows to train on.
        validation_windows
            Windows on which ``val_loss`` is measured after each epoch.
        seed
            In place of the trainer's seed.
        """
        output = self._output(validation_windows is not None)
        check_inputs(network, windows, validation_windows, output)
        seed = self.next_seed() if seed is None else seed
        self._history, self._report = History(), ""
        self.compiled, self.compile_fallback = False, None
        losses = Losses(network, windows.fields)
        device = self._lightning_options.process_device(self.device)
        with (
            isolated_rng(seed, device),
            thread_limit(self.threads, network, self.batch_size, windows.context_length),
        ):
            network.to(device)
            windows = windows.to(device)
            check_model(losses, windows)
            if validation_windows is not None:
                validation_windows = validation_windows.to(device)
                with about_validation_data():
                    check_validation(losses, windows, validation_windows)
            losses.train()
            assembly = RunAssembly(self, losses, windows, output)
            self.stratify_seconds = assembly.stratify_seconds
            self.strata = assembly.strata
            self._run(assembly.make_module(validation_windows, seed, self._history))
        losses.eval().to(device)  # Lightning leaves it on the CPU

    @property
    def budget(self) -> Budget:
        """Limits of a run."""
        steps = None if self.epochs is None else self.epochs * self.num_batches_per_epoch
        return Budget(steps, self.time_budget, self.gradient_budget)

    def next_seed(self) -> int:
        """Return the seed of a run: the trainer's, or a new one if it has none."""
        return fresh_seed() if self.seed is None else self.seed

    # -- one run, put together ---------------------------------------------------------

    def _output(self, validates: bool) -> str:
        """Return which parameters a run returns."""
        return ("best" if validates else "last") if self.output == "auto" else self.output

    @property
    def _lightning_options(self) -> LightningOptions:
        return LightningOptions(self.trainer_kwargs)

    def _make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return make_optimizer(
            self.optimizer,
            parameters,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            # The scaler of mixed precision has to read gradients before the update.
            fusable=not self._lightning_options.is_mixed_precision,
        )

    def _run(self, module: OuterLoopModule) -> None:
        """Train with Lightning, from a checkpoint if there is one to resume."""
        for callback, state in self._fresh:
            vars(callback).clear()
            vars(callback).update(copy.deepcopy(state))
        self.compile_fallback = module.compile_fallback
        self.interrupted, self.checkpoint_seconds = False, 0.0
        execution = RunExecution(self, module)
        self.lightning = execution.lightning
        self.gave_up = module.runner.faults.gave_up
        if not module.state.finished:
            execution.fit()
            self.interrupted = module.interrupted
            self.gave_up = module.runner.faults.gave_up
            self.compiled = module.compiled
            self.compile_fallback = module.compile_fallback
            self.self_check_seconds = module.self_check_seconds
            self.checkpoint_seconds = execution.checkpoint_seconds
        self.strata, self._report = module.runner.strata, module.runner.report()
