"""When gradients are probed during a run, and how many windows each probe measures.

Both depend on counts alone, never on a clock, so that one seed gives one result. Probes
double their distance. Their windows follow the budget: a probed window costs a few
gradients of a mini-batch, a step costs M and an overhead, and all probes together cost a
small share of all steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_STEP = 100
SHARE = 0.04  # of the cost of all steps, for probes
STEP_OVERHEAD = 16  # of a step, in gradients: what a step costs regardless of M
PROBE_OVERHEAD = 1500  # of a probe, in gradients: fitting and comparing strata
MIN_WINDOWS, MAX_WINDOWS = 128, 512
EXPECTED_STEPS = 5000  # of a run that only time limits, at least
RATIOS = (2, 4, 8, 16)


@dataclass(frozen=True)
class ProbeSchedule:
    """The steps at which gradients are probed.

    Parameters
    ----------
    batch_size
        M.
    planned
        Steps of the whole run; None if only time limits it. Then as many are expected
        as were made so far, and at least 5,000.
    window_cost
        Cost of a probed window, in gradients of a mini-batch.
    """

    batch_size: int
    planned: float | None
    window_cost: int

    def next_after(self, step: int) -> float:
        """Return the first step after ``step`` at which a probe is due."""
        if step < FIRST_STEP:
            return FIRST_STEP
        ratio = self._ratio(self._expected(step))
        passed = math.floor(math.log(step / FIRST_STEP, ratio) + 1e-9) + 1
        return FIRST_STEP * ratio**passed

    def windows(self, step: int) -> int:
        """Return how many windows to probe at a step; 0 for too few to be of use."""
        expected = self._expected(step)
        count = self._windows_per_probe(expected, self._ratio(expected))
        return 0 if count < MIN_WINDOWS else int(min(count, MAX_WINDOWS))

    def _expected(self, step: int) -> float:
        """Return the steps among which the cost of probes is shared."""
        return max(EXPECTED_STEPS, step) if self.planned is None else self.planned

    def _ratio(self, steps: float) -> float:
        """Return the ratio of the steps of two probes: the smallest that is affordable.

        It is infinite if a run can afford one probe at most.
        """
        for ratio in RATIOS:
            if self._windows_per_probe(steps, ratio) >= MIN_WINDOWS:
                return ratio
        return math.inf

    def _windows_per_probe(self, steps: float, ratio: float) -> float:
        probes = 1
        if steps > FIRST_STEP and math.isfinite(ratio):
            probes += math.floor(math.log(steps / FIRST_STEP, ratio))
        cost = SHARE * steps * (self.batch_size + STEP_OVERHEAD) / probes
        return (cost - PROBE_OVERHEAD) / self.window_cost
