"""Setup of a run's sampling: strata, objective, and the probes that adapt the sampler."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Mapping

import pandas as pd
import torch

from pts_scott.data.window_index import WindowIndex
from pts_scott.diagnostics.gradient_sketches import GradientSketches
from pts_scott.diagnostics.sampler_choice import SamplerChoice
from pts_scott.engine.losses import Losses
from pts_scott.errors import ArgumentError, ScottWarning
from pts_scott.method.hyperparameters import Hyperparameters
from pts_scott.method.methods import METHODS, Method
from pts_scott.method.objective import Objective
from pts_scott.strata.calendar import default_stratifier
from pts_scott.strata.candidates import candidate_policies, label
from pts_scott.strata.learned import tree_class
from pts_scott.strata.partition import Strata
from pts_scott.strata.policy import Policy
from pts_scott.training.budget import Budget
from pts_scott.training.probe_schedule import (
    EXPECTED_STEPS,
    FIRST_STEP,
    ProbeSchedule,
)
from pts_scott.training.probes import Probes


class SamplingSetup:
    """The strata and the objective of a run, and its candidates for a better sampler.

    Parameters
    ----------
    windows
        The windows to train on.
    hyperparameters
        The method, and its allocation.
    stratifier
        The user's policy; None for none.
    objective
        How much each window counts in the loss.

    Raises
    ------
    ArgumentError, StratificationError
    """

    def __init__(
        self,
        windows: WindowIndex,
        hyperparameters: Hyperparameters,
        stratifier: Policy | None,
        objective: str | pd.Timedelta | Mapping[str, float],
    ) -> None:
        self._windows, self._numbers = windows, hyperparameters
        if stratifier is not None and stratifier.needs_gradients:
            stratifier = copy.deepcopy(stratifier)  # it keeps features of the windows
        self._given = stratifier
        self._method = METHODS[hyperparameters.method]
        self._policy: Policy | None = None
        by_label = isinstance(objective, Mapping)
        if self._needs_strata or by_label:
            offset = windows.series.timeline.offset
            self._policy = stratifier or default_stratifier(offset)
        #: The partition that the run starts with; None if it needs none, or finds it.
        self.strata = self._stratify() if self._needs_strata else None
        strata = self._stratify() if by_label and self.strata is None else self.strata
        if by_label and strata is None:
            raise ArgumentError(
                "objective: weights by stratum need strata with fixed labels, not "
                f"{self._policy}, whose strata are found during training."
            )
        self.objective = Objective.of(objective, windows, strata)
        self._choice: SamplerChoice | None = self._make_choice()

    @property
    def _needs_strata(self) -> bool:
        return self._method.uses_strata or self._numbers.allocation is not None

    def _stratify(self) -> Strata | None:
        assert self._policy is not None
        if self._policy.needs_gradients:
            if isinstance(self._numbers.allocation, Mapping):
                raise ArgumentError(
                    "allocation: shares by label need strata with fixed labels, not "
                    f"{self._policy}, whose strata are found during training."
                )
            if self._method.uses_anchor:
                raise ArgumentError(
                    f"stratifier={self._policy}: its strata are found during training, "
                    f"but method={self._numbers.method!r} draws anchors from strata at "
                    "once. Use method='stratified' or 'auto', or a policy that another "
                    "run has fitted: trainer.strata.stratifier."
                )
            return None
        strata = self._policy.stratify(self._windows)
        self._warn_of_small_anchor(strata)
        return strata

    def _warn_of_small_anchor(self, strata: Strata) -> None:
        numbers = self._numbers
        anchor = len(strata) * numbers.anchor_batch_size
        is_stratified = self._method.uses_strata and self._method.uses_anchor
        if is_stratified and anchor < numbers.batch_size:
            warnings.warn(
                f"an anchor of {len(strata)} strata x anchor_batch_size="
                f"{numbers.anchor_batch_size} averages fewer windows than a mini-batch "
                f"of {numbers.batch_size}, and its noise affects all its inner steps: "
                "raise anchor_batch_size, or choose a finer stratifier.",
                ScottWarning,
                stacklevel=6,
            )

    def _make_choice(self) -> SamplerChoice | None:
        """Return the candidates of a run whose sampler adapts; None for a fixed one."""
        size = self._numbers.batch_size
        if self._method.chooses_strata:
            policies = candidate_policies(self._windows, self._given)
            choice = SamplerChoice(self._windows, policies, size)
            for name, policy in policies.items():
                if not policy.needs_gradients:
                    choice.strata(name)  # sorted before the clock starts
            return choice
        if self._policy is None or not self._adapts(self._policy):
            return None
        choice = SamplerChoice(self._windows, {label(self._policy): self._policy}, size)
        if self.strata is not None:
            choice.add(label(self._policy), self.strata)
        return choice

    def _adapts(self, policy: Policy) -> bool:
        return self._needs_strata and (
            policy.needs_gradients or self._numbers.allocation == "spread"
        )

    def make_probes(
        self,
        losses: Losses,
        method: Method,
        budget: Budget,
        generator: torch.Generator,
        seed: int,
    ) -> Probes | None:
        """Return the measurements that adapt the sampler; None for a fixed one."""
        if self._choice is None:
            return None
        planned = _planned_steps(budget, method)
        asked = not method.chooses_strata
        if asked and planned is not None and planned <= FIRST_STEP:
            warnings.warn(
                f"gradients are first measured at step {FIRST_STEP}, and this run has "
                f"{planned:.0f}: no window is drawn by the spread of gradients or from "
                "strata that are found from them. Train for more steps.",
                ScottWarning,
                stacklevel=5,
            )
        if planned is None or planned > FIRST_STEP:
            tree_class()  # its import takes a while, and is not training
        schedule = functools.partial(
            ProbeSchedule, self._numbers.batch_size, planned, required=asked
        )
        return Probes(
            losses,
            self._windows,
            method,
            self._choice,
            str(self._numbers.allocation or method.allocation),
            GradientSketches(losses, seed % 2**31),
            schedule,
            self.objective,
            generator,
        )


def _planned_steps(budget: Budget, method: Method) -> float | None:
    """Return the number of steps that the budget allows; None if only time limits it."""
    limits: list[float] = []
    if budget.steps is not None:
        limits.append(budget.steps)
    if budget.gradients is not None:
        limits.append(budget.gradients / method.step_cost)
    # Time may end a run before, but not much before a limit that is close.
    if not limits or (budget.seconds is not None and min(limits) > EXPECTED_STEPS):
        return None
    return min(limits)
