"""SCott: Algorithms 1 and 2 of the paper, for every method of the family.

Line numbers are those of the paper. Algorithm 1 draws the inner length K_t from a
geometric distribution; Algorithm 2, the practical version, makes at most K steps and
stops early by γ. The return line of both is `OutputSelector.offer_snapshot`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pts_scott.method.early_stop import EarlyStop
from pts_scott.method.methods import Method
from pts_scott.method.output import OutputSelector
from pts_scott.method.protocol import Counters, Engine, LoopReport, Step, Tensors


class Algorithm:
    """Outer loops that train one network.

    Parameters
    ----------
    method
        The windows that are drawn, and the direction computed from them.
    engine
        How a step is executed.
    early_stop
        Line 7.
    output
        The return line: which parameters training returns.
    counters
        Where anchors are counted; the engine counts gradients.
    length_generator
        Source of the random numbers for Algorithm 1's K_t.
    """

    def __init__(
        self,
        method: Method,
        engine: Engine,
        early_stop: EarlyStop,
        output: OutputSelector,
        counters: Counters,
        length_generator: torch.Generator,
    ) -> None:
        self.method = method
        self.engine = engine
        self._early_stop = early_stop
        self._output = output
        self._counters = counters
        self._length_generator = length_generator

    def outer_loop(
        self,
        step_size: float,
        coefficient: float,
        may_step: Callable[[int], bool],
        steps_together: int,
    ) -> LoopReport:
        """Run lines 2 to 9 once.

        Parameters
        ----------
        step_size
            α_t.
        coefficient
            c; 1 is the paper's method.
        may_step
            Returns whether the budget allows another step after so many in this loop.
        steps_together
            Steps after which an outer loop without an anchor ends.
        """
        method, engine, early_stop = self.method, self.engine, self._early_stop
        self._output.offer_snapshot(step_size * method.num_strata)  # the return line
        length = self._inner_length(steps_together)  # K_t
        anchor, anchor_windows = self._anchor()  # line 2: g(t,0), and θ(t,0) is kept
        early_stop.begin()
        steps: list[Step] = []
        more = length > 0 and may_step(0)
        while more:  # line 3
            xi = method.minibatch()  # line 4: ξ(t,k)
            v = method.direction(engine, xi, anchor, coefficient)  # line 5: v(t,k)
            more = len(steps) + 1 < length and may_step(len(steps) + 1)
            steps.append(engine.apply(v, last=not more))  # line 6: θ(t,k+1)
            method.applied(steps[-1])
            if early_stop(steps[-1]):  # line 7
                break  # line 8
        if steps and steps[-1].cancelled:
            steps.pop()
            method.put_back(xi)
        return LoopReport(steps, anchor_windows)

    def _inner_length(self, steps_together: int) -> int:
        """Choose K_t: at most K, or geometric with mean B."""
        numbers, method = self.method.hyperparameters, self.method
        if method.uses_anchor and numbers.inner_length == "geometric":
            return geometric_length(method.num_strata, self._length_generator)
        return method.inner_steps(steps_together)

    def _anchor(self) -> tuple[Tensors | None, Tensor | None]:
        sample = self.method.anchor()
        if sample is None:
            return None, None
        self._counters.anchors += 1
        return self.engine.anchor(sample), sample.windows


def geometric_length(mean: int, generator: torch.Generator) -> int:
    """Draw K_t ~ Geo(B/(B+1)): P(K = k) = p^k (1 − p) for k = 0, 1, …, with mean B."""
    p = mean / (mean + 1)
    uniform = 1.0 - torch.rand((), generator=generator, dtype=torch.float64).item()
    return int(math.log(uniform) / math.log(p))
