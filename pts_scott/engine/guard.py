"""The guard: an engine whose non-finite steps are skipped or rolled back.

Whether a gradient is finite takes a pass over all of it, which can be a good part of a
step's time, and a compiled step has moved the parameters before anyone can ask. So where
nothing else needs the norm of v, steps are made unchecked: if an outer loop ends with
something non-finite, all of it is rolled back, and for some loops after it every step is
checked, so that one step is lost the next time and not a loop.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from pts_scott.engine.eager import Direction, EagerEngine
from pts_scott.engine.rollback import Rollback
from pts_scott.engine.wrapper import EngineWrapper
from pts_scott.method.protocol import LoopReport, Step

CHECKED_LOOPS = 50  # outer loops after a fault in which every step is checked


class GuardedEngine(EngineWrapper):
    """An engine, wrapped so that nothing non-finite reaches the parameters.

    Parameters
    ----------
    engine
        What executes steps.
    rollback
        Where an outer loop began, for engines whose steps are not all checked; None to
        check every step before its update.
    """

    def __init__(self, engine: EagerEngine, rollback: Rollback | None) -> None:
        super().__init__(engine)
        self._rollback = rollback
        self._checked_loops = 0  # that remain after a fault
        self._saved = False
        device = engine.gradients.parameters[0].device
        self._nan = torch.tensor(math.nan, device=device)
        self._no_norm = torch.zeros((), device=device)

    def apply(self, v: Any, last: bool) -> Step:
        """Update the parameters along v, or skip the step."""
        if self._rollback is None or self._checked_loops:
            return self._apply_checked(v, last)
        if not self._saved:  # the first step: parameters and snapshot are θ(t,0)
            self._save()
            self._saved = True
        if self.engine.knows_direction:
            if last:  # the norm is computed in any case
                return self._apply_checked(v, last)
            if not math.isfinite(v.loss):  # which is a single number
                return Step(v.windows, self._nan, self._no_norm, skipped=True)
        return self.engine.apply(v, last)

    def _apply_checked(self, v: Any, last: bool) -> Step:
        if self.engine.knows_direction:
            if self._is_finite(v):
                return self.engine.apply(v, last)
            return Step(v.windows, self._nan, v.squared_norm, skipped=True)
        self._save(with_snapshot=False)
        step = self.engine.apply(v, last)
        if math.isfinite(step.loss) and math.isfinite(step.squared_norm):
            return step
        self._restore()
        return step._replace(loss=self._nan, skipped=True)

    def _is_finite(self, v: Direction) -> bool:
        if not math.isfinite(v.loss):
            return False
        return math.isfinite(v.squared_norm) or self.engine.may_overflow()

    def finish(self, report: LoopReport) -> LoopReport:
        """Roll an outer loop back if it ended with something non-finite."""
        self._saved = False
        if not report.steps or self._rollback is None:
            return report
        if self._checked_loops:
            faulty = any(step.skipped for step in report.steps)
            self._checked_loops = CHECKED_LOOPS if faulty else self._checked_loops - 1
            return report
        if not self._is_faulty(report, self._rollback):
            return report
        self._restore()
        self._checked_loops = CHECKED_LOOPS
        return report.as_rolled_back()

    def _is_faulty(self, report: LoopReport, rollback: Rollback) -> bool:
        if self.engine.knows_direction:
            return rollback.is_needed()
        return not report.is_finite  # compiled steps know all their norms

    def _save(self, with_snapshot: bool = True) -> None:
        assert self._rollback is not None
        self.engine.load_optimizer_state()
        self._rollback.save(self.engine.snapshot if with_snapshot else ())

    def _restore(self) -> None:
        assert self._rollback is not None
        self._rollback.restore()
        if self.engine.knows_direction and self._rollback.is_needed():
            self._rollback.reset_state()  # the saved state was non-finite before
        self.engine.reread_step()

    def state_dict(self) -> dict[str, Any]:
        """Return how many outer loops are still checked step by step."""
        return {"checked_loops": self._checked_loops}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._checked_loops = state.get("checked_loops", 0)
