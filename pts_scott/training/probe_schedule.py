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
SHARE = 0.035  # of the cost of all steps, for probes
STEP_OVERHEAD = 16  # of a step, in gradients: what a step costs regardless of M
PROBE_OVERHEAD = 2000  # of a probe, in gradients: fitting and comparing strata
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
        Steps of the whole run; None if only time limits it. Then 5,000 are expected, and
        later as many as were made so far.
    window_cost
        Cost of a probed window, in gradients of a mini-batch.
    required
        Whether the first probe is made in any case, because the sampler asks for it.
    """

    batch_size: int
    planned: float | None
    window_cost: int
    required: bool = False

    def next_after(self, step: int) -> float:
        """Return the first step after ``step`` at which a probe is due."""
        if step < FIRST_STEP:
            return FIRST_STEP
        if self.planned is None:  # from the expected length on, their distance doubles
            later = _next_power(max(step, EXPECTED_STEPS), RATIOS[0])
            return min(later, _next_power(step, self._ratio))
        return _next_power(step, self._ratio)

    def windows(self, step: int) -> int:
        """Return how many windows to probe at a step; 0 for too few to be of use."""
        steps = self._expected / self._probes(self._ratio)
        if self.planned is None:
            # Probes double their distance, so all of them cost as much as two of these.
            steps = max(steps, step / 2)
        count = self._affordable(steps)
        if self.required and step < 2 * FIRST_STEP:
            count = max(count, MIN_WINDOWS)
        return 0 if count < MIN_WINDOWS else int(min(count, MAX_WINDOWS))

    @property
    def _expected(self) -> float:
        return EXPECTED_STEPS if self.planned is None else self.planned

    @property
    def _ratio(self) -> float:
        """The ratio of the steps of two probes: the smallest that is affordable.

        It is infinite if a run can afford one probe at most.
        """
        for ratio in RATIOS:
            # Doubling only where it is cheap: strata change little between such probes.
            needed = 2 * MAX_WINDOWS if ratio == RATIOS[0] else MIN_WINDOWS
            if self._affordable(self._expected / self._probes(ratio)) >= needed:
                return ratio
        return math.inf

    def _probes(self, ratio: float) -> int:
        """Return how many probes there are at a ratio."""
        if self._expected <= FIRST_STEP or math.isinf(ratio):
            return 1
        return 1 + math.floor(math.log(self._expected / FIRST_STEP, ratio))

    def _affordable(self, steps: float) -> float:
        """Return how many windows a probe can have, at the cost of so many steps."""
        cost = SHARE * steps * (self.batch_size + STEP_OVERHEAD)
        return (cost - PROBE_OVERHEAD) / self.window_cost


def _next_power(step: float, ratio: float) -> float:
    """Return the first step after ``step`` that is 100 times a power of the ratio."""
    if math.isinf(ratio):
        return math.inf
    passed = math.floor(math.log(step / FIRST_STEP, ratio) + 1e-9) + 1
    return FIRST_STEP * ratio**passed
