"""Base class of engine wrappers, which change only how a step is applied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from pts_scott.engine.eager import EagerEngine
from pts_scott.method.protocol import LoopReport, Sample, Step, Tensors


class EngineWrapper(ABC):
    """An engine that wraps another one.

    Parameters
    ----------
    engine
        The engine that executes steps.
    """

    def __init__(self, engine: EagerEngine) -> None:
        self.engine = engine

    @property
    def parameters(self) -> Tensors:
        """θ, as it is now."""
        return self.engine.parameters

    def set_snapshot(self, values: Tensors) -> None:
        """Make these values the snapshot."""
        self.engine.set_snapshot(values)

    def anchor(self, sample: Sample) -> Tensors:
        """Return g(t,0); the parameters become the snapshot."""
        return self.engine.anchor(sample)

    def direction(
        self, sample: Sample, anchor: Tensors | None, coefficient: float
    ) -> Any:
        """Return v(t,k)."""
        return self.engine.direction(sample, anchor, coefficient)

    @abstractmethod
    def apply(self, v: Any, last: bool) -> Step:
        """Update the parameters along v, or skip the step."""

    def finish(self, report: LoopReport) -> LoopReport:
        """Complete an outer loop."""
        return report

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the next outer loop, except parameters and optimizer.

        Between two outer loops there is neither a snapshot nor an anchor: each loop
        begins with new ones.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Continue from a saved state, if there is any."""
